//! How much of each quota is used: one pair of gauges for all, so that one alert covers them.

use std::fmt;

use prometheus_client::{encoding::DescriptorEncoder, metrics::MetricType};
use semel::{QuotaUsage, Quotas};

/// What is used of one quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QuotaSample {
    name: &'static str,
    used: u64,
    limit: u64,
}

/// All quotas of which the usage is known.
pub(super) fn all(limits: &Quotas, usage: &QuotaUsage) -> Vec<QuotaSample> {
    let quota = |name, used: Option<u64>, limit| Some(QuotaSample { name, used: used?, limit });
    let disk = usage.store.disk.map(|disk| QuotaSample {
        name: "disk_bytes",
        used: disk.total.saturating_sub(disk.available),
        limit: disk.total.saturating_sub(limits.disk_free_min(disk.total)),
    });
    let quotas = [
        quota("records", usage.store.records, limits.records),
        quota("store_bytes", usage.store.bytes, limits.store_bytes),
        disk,
        quota("caller_records", Some(usage.caller_records), limits.records_per_caller),
        quota("caller_bytes", Some(usage.caller_bytes), limits.bytes_per_caller),
        quota("caller_held", Some(usage.caller_held), limits.held_per_caller),
    ];
    quotas.into_iter().flatten().collect()
}

/// Writes them out.
pub(super) fn encode(encoder: &mut DescriptorEncoder<'_>, quotas: &[QuotaSample]) -> fmt::Result {
    let used = "How much of a quota is used; of a caller, by the one that uses the most";
    family(encoder, "quota_used", used, quotas, |quota| quota.used)?;
    let limit = "From how much on new keys are refused with 503, or with 429 for a caller";
    family(encoder, "quota_limit", limit, quotas, |quota| quota.limit)
}

fn family(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    quotas: &[QuotaSample],
    value: fn(&QuotaSample) -> u64,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for quota in quotas {
        let value = i64::try_from(value(quota)).unwrap_or(i64::MAX);
        family.encode_family(&[("quota", quota.name)])?.encode_gauge(&value)?;
    }
    Ok(())
}
