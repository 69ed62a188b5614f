//! Why callers were refused, and the keys that verify their tokens.

use std::{fmt, sync::atomic::Ordering};

use prometheus_client::{
    encoding::{DescriptorEncoder, NoLabelSet},
    metrics::MetricType,
};
use semel_tower::{CallerFailure, Jwks};

use super::Metrics;

/// Writes them out.
pub(super) fn encode(encoder: &mut DescriptorEncoder<'_>, metrics: &Metrics) -> fmt::Result {
    let help = "Requests whose token, certificate or network was refused, by reason; observed \
                requests included";
    let name = "caller_failures";
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (failure, counter) in CallerFailure::ALL.iter().zip(&metrics.caller_failures) {
        let count = counter.load(Ordering::Relaxed);
        let labels = [("reason", failure.as_str())];
        family.encode_family(&labels)?.encode_counter::<NoLabelSet, u64, u64>(&count, None)?;
    }
    let sets = metrics.key_sets.load();
    let help = "Time since the keys that verify tokens were last read; -1 if they never were";
    let mut family =
        encoder.encode_descriptor("jwks_age_seconds", help, None, MetricType::Gauge)?;
    for set in sets.iter() {
        let age = set.age().map(|age| i64::try_from(age.as_secs()).unwrap_or(i64::MAX));
        family.encode_family(&[("source", set.source())])?.encode_gauge(&age.unwrap_or(-1))?;
    }
    let help = "Failed attempts to read the keys that verify tokens";
    let name = "jwks_refresh_failures";
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for set in sets.iter() {
        let labels = [("source", set.source())];
        let count = Jwks::refresh_failures(set);
        family.encode_family(&labels)?.encode_counter::<NoLabelSet, u64, u64>(&count, None)?;
    }
    Ok(())
}
