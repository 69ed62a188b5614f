//! Encodes the counters for Prometheus.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use jiff::Timestamp;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text},
    metrics::MetricType,
    registry::Registry,
};
use semel::{Semel, core::Problem};

use super::{
    ANSWERS, EvictionReason, Metrics, OPERATIONS, RECORDS, RELOADS, ReconcileEvent, ScopeMetrics,
    UnguardedReason, UpstreamOutcome, WOULD, callers,
    process::ProcessStats,
    quota::{self, QuotaSample},
};

/// The counters and engine gauges at one point in time.
#[derive(Debug)]
struct Scrape {
    metrics: Arc<Metrics>,
    in_flight: usize,
    waiting: usize,
    quotas: Vec<QuotaSample>,
    arriving: usize,
    evicted_bodies: u64,
}

pub(super) fn encode(metrics: &Arc<Metrics>, semel: &Semel) -> String {
    let mut registry = Registry::with_prefix("semel");
    let scrape = Scrape {
        metrics: Arc::clone(metrics),
        in_flight: semel.in_flight(),
        waiting: semel.waiting(),
        quotas: quota::all(&semel.quotas(), &semel.quota_usage()),
        arriving: semel.arriving(),
        evicted_bodies: semel.evicted(),
    };
    registry.register_collector(Box::new(scrape));
    let mut process = Registry::default();
    process.register_collector(Box::new(ProcessStats { started: metrics.started }));
    let mut out = String::with_capacity(16 << 10);
    // Writing to a String cannot fail.
    let _ = text::encode_registry(&mut out, &process);
    let _ = text::encode(&mut out, &registry);
    out
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        let metrics = &self.metrics;
        build(encoder)?;
        self.requests(encoder)?;
        self.records(encoder)?;
        self.would(encoder)?;
        self.reconcile(encoder)?;
        self.store(encoder)?;
        self.upstream(encoder)?;
        let help = "Records with an expired lease that maintenance settled";
        counter(encoder, "lapsed", help, &metrics.lapsed)?;
        let help = "Records past retention that maintenance deleted";
        counter(encoder, "swept", help, &metrics.swept)?;
        self.unguarded(encoder)?;
        let help = "Requests refused because their head is malformed or ambiguous";
        counter(encoder, "malformed", help, &metrics.malformed)?;
        let help = "Requests refused because they match no route";
        counter(encoder, "unmatched_refused", help, &metrics.unmatched_refused)?;
        let help = "Requests to the API whose token is missing, unknown or of an insufficient role";
        counter(encoder, "api_auth_failures", help, &metrics.api_auth_failures)?;
        let help = "Answers recorded without their body because memory was short";
        counter(encoder, "not_retained", help, &metrics.not_retained)?;
        let help = "HTTP/2 streams that were reset because their client accepted no bytes";
        counter(encoder, "streams_reset", help, &metrics.streams_reset)?;
        if let Some(dropped) = metrics.dropped_log_lines.get() {
            let help = "Log lines that were dropped because the reader of the log is too slow";
            let kind = MetricType::Counter;
            let mut metric = encoder.encode_descriptor("log_lines_dropped", help, None, kind)?;
            metric.encode_counter::<NoLabelSet, u64, u64>(&dropped.count(), None)?;
        }
        if let Some(memory) = metrics.memory.get() {
            let help = "Bytes of request bodies and answers in memory";
            gauge(encoder, "memory_bytes", help, signed(memory.used()))?;
            let help = "Bytes of request bodies and answers that may be in memory";
            gauge(encoder, "memory_limit_bytes", help, signed(memory.bytes_max()))?;
        }
        gauge(encoder, "in_flight", "Operations in flight", signed(self.in_flight))?;
        let help = "Requests waiting for the answer of another request";
        gauge(encoder, "waiting", help, signed(self.waiting))?;
        let help = "Guarded requests whose body is being received";
        gauge(encoder, "arriving", help, signed(self.arriving))?;
        self.evicted(encoder)?;
        self.held(encoder)?;
        quota::encode(encoder, &self.quotas)?;
        callers::encode(encoder, metrics)?;
        let help = "Time since the store was created; a drop means that another store is in use";
        let created = metrics.store_created.load(Ordering::Relaxed);
        let age = Timestamp::now().as_second().saturating_sub(created);
        gauge(encoder, "store_age_seconds", help, age.max(0))?;
        self.config(encoder)?;
        let connections = metrics.connections.load(Ordering::Relaxed);
        gauge(encoder, "connections", "Open client connections", connections)?;
        let streams = metrics.streams.load(Ordering::Relaxed);
        gauge(encoder, "streams", "Open HTTP/2 streams of clients", streams)?;
        let help = "Open client connections that are tunnels, such as WebSockets";
        gauge(encoder, "tunnels", help, metrics.tunnels.load(Ordering::Relaxed))
    }
}

impl Scrape {
    fn requests(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Requests by how they were answered";
        let mut family = encoder.encode_descriptor("requests", help, None, MetricType::Counter)?;
        self.each_scope(|scope| {
            for (word, counter) in ANSWERS.iter().zip(&scope.answered) {
                put(&mut family, [("scope", &*scope.name), ("outcome", word)], counted(counter))?;
            }
            for (slug, count) in refusals(&scope.refused) {
                put(&mut family, [("scope", &*scope.name), ("outcome", slug)], count)?;
            }
            Ok(())
        })
    }

    fn unguarded(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Unguarded requests by reason; unmatched-keyed carried a key";
        let mut family = encoder.encode_descriptor("unguarded", help, None, MetricType::Counter)?;
        for (why, counter) in UnguardedReason::ALL.iter().zip(&self.metrics.unguarded) {
            put(&mut family, [("reason", why.as_str())], counted(counter))?;
        }
        Ok(())
    }

    /// The engine counts evicted bodies.
    fn evicted(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Connections and bodies closed because the client was idle or too slow, by \
                    reason; body, connection and tunnel were replaced by others, share and \
                    streams were refused";
        let mut family = encoder.encode_descriptor("evicted", help, None, MetricType::Counter)?;
        put(&mut family, [("reason", "body")], self.evicted_bodies)?;
        for (why, counter) in EvictionReason::ALL.iter().zip(&self.metrics.evicted) {
            put(&mut family, [("reason", why.as_str())], counted(counter))?;
        }
        Ok(())
    }

    fn records(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Record events; lost counts late writes that the fence refused, caller-changed \
                    claims of a request that another caller claimed minutes before";
        let mut family = encoder.encode_descriptor("records", help, None, MetricType::Counter)?;
        self.each_scope(|scope| {
            for (word, counter) in RECORDS.iter().zip(&scope.records) {
                put(&mut family, [("scope", &*scope.name), ("event", word)], counted(counter))?;
            }
            Ok(())
        })
    }

    /// Only scopes that were observed.
    fn would(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Requests of observing routes, by what a guard would have done";
        let mut family = encoder.encode_descriptor("observed", help, None, MetricType::Counter)?;
        self.each_scope(|scope| {
            let counters = || scope.would.iter().chain(&scope.observed_refusals);
            if counters().all(|counter| counted(counter) == 0) {
                return Ok(());
            }
            for ((would, problem), counter) in WOULD.iter().zip(&scope.would) {
                let labels = [("scope", &*scope.name), ("would", would), ("problem", problem)];
                put(&mut family, labels, counted(counter))?;
            }
            for (slug, count) in refusals(&scope.observed_refusals) {
                let labels = [("scope", &*scope.name), ("would", "refuse"), ("problem", slug)];
                put(&mut family, labels, count)?;
            }
            Ok(())
        })
    }

    /// Only scopes with a held record that was read.
    fn reconcile(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Reads of held records by what they found, and what became of the records";
        let mut family = encoder.encode_descriptor("reconcile", help, None, MetricType::Counter)?;
        self.each_scope(|scope| {
            if scope.reconcile.iter().all(|counter| counted(counter) == 0) {
                return Ok(());
            }
            for (event, counter) in ReconcileEvent::ALL.iter().zip(&scope.reconcile) {
                let labels = [("scope", &*scope.name), ("event", event.as_str())];
                put(&mut family, labels, counted(counter))?;
            }
            Ok(())
        })
    }

    fn store(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Response time of the store";
        let kind = MetricType::Histogram;
        let mut family = encoder.encode_descriptor("store_seconds", help, None, kind)?;
        for (word, histogram) in OPERATIONS.iter().zip(&self.metrics.store) {
            // Maintenance is not timed.
            if *word != "upkeep" {
                histogram.encode(family.encode_family(&[("operation", *word)])?)?;
            }
        }
        let help = "Store operations that failed";
        let kind = MetricType::Counter;
        let mut family = encoder.encode_descriptor("store_errors", help, None, kind)?;
        for (word, counter) in OPERATIONS.iter().zip(&self.metrics.store_errors) {
            put(&mut family, [("operation", *word)], counted(counter))?;
        }
        Ok(())
    }

    fn upstream(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Requests to the upstream by outcome";
        let mut family = encoder.encode_descriptor("upstream", help, None, MetricType::Counter)?;
        self.each_way(|scope| {
            for (outcome, counter) in UpstreamOutcome::ALL.iter().zip(&scope.upstream) {
                let labels = [("scope", &*scope.name), ("outcome", outcome.as_str())];
                put(&mut family, labels, counted(counter))?;
            }
            Ok(())
        })?;
        let kind = MetricType::Histogram;
        let help = "Response time of the upstream, failed requests included";
        let mut family = encoder.encode_descriptor("upstream_seconds", help, None, kind)?;
        self.each_way(|scope| {
            scope.upstream_seconds.encode(family.encode_family(&[("scope", &*scope.name)])?)
        })?;
        let help = "Time that retries waited for the answer of the running request";
        let mut family = encoder.encode_descriptor("wait_seconds", help, None, kind)?;
        self.each_scope(|scope| {
            scope.wait_seconds.encode(family.encode_family(&[("scope", &*scope.name)])?)
        })
    }

    /// The configuration and the certificate in use.
    fn config(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let metrics = &self.metrics;
        let help = "Reloads of the configuration, by result";
        let kind = MetricType::Counter;
        let mut family = encoder.encode_descriptor("config_reloads", help, None, kind)?;
        for (result, counter) in RELOADS.iter().zip(&metrics.reloads) {
            put(&mut family, [("result", *result)], counted(counter))?;
        }
        let help = "1 if the last reload was applied or there was none, otherwise 0";
        let applied = metrics.reload_applied.load(Ordering::Relaxed);
        gauge(encoder, "config_reload_successful", help, i64::from(applied))?;
        let help = "When the configuration in use was applied, in seconds since 1970";
        let applied = metrics.config_applied.load(Ordering::Relaxed);
        gauge(encoder, "config_applied_timestamp_seconds", help, applied)?;
        let help = "When the gateway's certificate expires, in seconds since 1970";
        let name = "certificate_not_after_timestamp_seconds";
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        match metrics.certificate_not_after.load(Ordering::Relaxed) {
            0 => Ok(()),
            not_after => metric.encode_gauge(&not_after),
        }
    }

    fn held(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let held = self.metrics.held.load();
        let help = "Records whose outcome is unknown, by the reason; counted every 15 s";
        let mut family = encoder.encode_descriptor("held", help, None, MetricType::Gauge)?;
        self.each_scope(|scope| {
            for (label, count) in held.of(&scope.name) {
                let labels = [("scope", &*scope.name), ("reason", label)];
                family.encode_family(&labels)?.encode_gauge(&count)?;
            }
            Ok(())
        })?;
        let help = "For how long the oldest of these records is held; 0 if there is none";
        let kind = MetricType::Gauge;
        let mut family = encoder.encode_descriptor("held_oldest_seconds", help, None, kind)?;
        self.each_scope(|scope| {
            for (label, _) in held.of(&scope.name) {
                let labels = [("scope", &*scope.name), ("reason", label)];
                let age = held.oldest(&scope.name, label).as_secs_f64();
                family.encode_family(&labels)?.encode_gauge(&age)?;
            }
            Ok(())
        })?;
        let help = "1 if there are more held records than were counted, otherwise 0";
        gauge(encoder, "held_incomplete", help, i64::from(!held.complete))
    }

    fn each_scope(&self, mut act: impl FnMut(&ScopeMetrics) -> fmt::Result) -> fmt::Result {
        for scope in self.metrics.scopes.load().iter() {
            act(scope)?;
        }
        act(&self.metrics.rest)
    }

    /// Each scope, and unguarded requests.
    fn each_way(&self, mut act: impl FnMut(&ScopeMetrics) -> fmt::Result) -> fmt::Result {
        self.each_scope(&mut act)?;
        act(&self.metrics.passing)
    }
}

/// The problems of a scope; those that share a slug are one.
fn refusals(counters: &[AtomicU64]) -> Vec<(&'static str, u64)> {
    let mut refusals: Vec<(&'static str, u64)> = Vec::with_capacity(Problem::ALL.len());
    for (problem, counter) in Problem::ALL.iter().zip(counters) {
        let count = counted(counter);
        match refusals.iter_mut().find(|(slug, _)| *slug == problem.slug()) {
            Some((_, sum)) => *sum = sum.saturating_add(count),
            None => refusals.push((problem.slug(), count)),
        }
    }
    refusals
}

fn build(encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let help = "The version of this program";
    let mut info = encoder.encode_descriptor("build", help, None, MetricType::Info)?;
    info.encode_info(&[("version", env!("CARGO_PKG_VERSION"))])
}

fn counter(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    counter: &AtomicU64,
) -> fmt::Result {
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    metric.encode_counter::<NoLabelSet, u64, u64>(&counted(counter), None)
}

fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: i64) -> fmt::Result {
    encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)
}

fn put<const N: usize>(
    family: &mut MetricEncoder<'_>,
    labels: [(&str, &str); N],
    count: u64,
) -> fmt::Result {
    let mut metric = family.encode_family(&labels)?;
    metric.encode_counter::<NoLabelSet, u64, u64>(&count, None)
}

fn counted(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn signed(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
