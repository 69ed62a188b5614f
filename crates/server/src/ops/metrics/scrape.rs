//! Writes the counters out as a scraper wants them.

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
use semel::core::Problem;

use super::{
    ANSWERS, Metrics, OPERATIONS, RECORDS, ScopeMetrics, Unguarded, UpstreamOutcome, WOULD,
};

/// The counters at one moment, and what the engine says of itself.
#[derive(Debug)]
struct Scrape {
    metrics: Arc<Metrics>,
    in_flight: usize,
    waiting: usize,
}

pub(super) fn encode(metrics: &Arc<Metrics>, in_flight: usize, waiting: usize) -> String {
    let mut registry = Registry::with_prefix("semel");
    let scrape = Scrape { metrics: Arc::clone(metrics), in_flight, waiting };
    registry.register_collector(Box::new(scrape));
    let mut out = String::with_capacity(16 << 10);
    // Writing to a String cannot fail.
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
        self.store(encoder)?;
        self.upstream(encoder)?;
        let help = "Lapsed records that the upkeep moved where they belong";
        counter(encoder, "lapsed", help, &metrics.lapsed)?;
        let help = "Records past retention that the upkeep deleted";
        counter(encoder, "swept", help, &metrics.swept)?;
        self.unguarded(encoder)?;
        let help = "Requests refused because their head could not be read, or not in one way only";
        counter(encoder, "malformed", help, &metrics.malformed)?;
        let help = "Requests to the operators' listener without the right token";
        counter(encoder, "operator_refused", help, &metrics.operator_refused)?;
        gauge(encoder, "in_flight", "Operations that run now", signed(self.in_flight))?;
        let help = "Requests that wait now for an answer that another one makes";
        gauge(encoder, "waiting", help, signed(self.waiting))?;
        self.held(encoder)?;
        let help = "Time since the store was created; a drop means that another store is in use";
        let created = metrics.store_created.load(Ordering::Relaxed);
        let age = Timestamp::now().as_second().saturating_sub(created);
        gauge(encoder, "store_age_seconds", help, age.max(0))?;
        let connections = metrics.connections.load(Ordering::Relaxed);
        gauge(encoder, "connections", "Connections of clients that are open now", connections)
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
        let help = "Requests that were not guarded, by why; unmatched-keyed carried a key";
        let mut family = encoder.encode_descriptor("unguarded", help, None, MetricType::Counter)?;
        for (why, counter) in Unguarded::ALL.iter().zip(&self.metrics.unguarded) {
            put(&mut family, [("reason", why.as_str())], counted(counter))?;
        }
        Ok(())
    }

    fn records(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "What happened to records; lost counts late writes that the fence refused";
        let mut family = encoder.encode_descriptor("records", help, None, MetricType::Counter)?;
        self.each_scope(|scope| {
            for (word, counter) in RECORDS.iter().zip(&scope.records) {
                put(&mut family, [("scope", &*scope.name), ("event", word)], counted(counter))?;
            }
            Ok(())
        })
    }

    /// Only of scopes that were observed.
    fn would(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Requests of routes that only observe, by what would have been done with them";
        let mut family = encoder.encode_descriptor("would", help, None, MetricType::Counter)?;
        self.each_scope(|scope| {
            let counters = || scope.would.iter().chain(&scope.would_refuse);
            if counters().all(|counter| counted(counter) == 0) {
                return Ok(());
            }
            for ((would, problem), counter) in WOULD.iter().zip(&scope.would) {
                let labels = [("scope", &*scope.name), ("would", would), ("problem", problem)];
                put(&mut family, labels, counted(counter))?;
            }
            for (slug, count) in refusals(&scope.would_refuse) {
                let labels = [("scope", &*scope.name), ("would", "refuse"), ("problem", slug)];
                put(&mut family, labels, count)?;
            }
            Ok(())
        })
    }

    fn store(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "How long the store took to answer";
        let kind = MetricType::Histogram;
        let mut family = encoder.encode_descriptor("store_seconds", help, None, kind)?;
        for (word, histogram) in OPERATIONS.iter().zip(&self.metrics.store) {
            // Upkeep is not timed.
            if *word != "upkeep" {
                histogram.encode(family.encode_family(&[("operation", *word)])?)?;
            }
        }
        let help = "Questions that the store could not answer";
        let kind = MetricType::Counter;
        let mut family = encoder.encode_descriptor("store_errors", help, None, kind)?;
        for (word, counter) in OPERATIONS.iter().zip(&self.metrics.store_errors) {
            put(&mut family, [("operation", *word)], counted(counter))?;
        }
        Ok(())
    }

    fn upstream(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Requests to the upstream by what became of them";
        let mut family = encoder.encode_descriptor("upstream", help, None, MetricType::Counter)?;
        self.each_way(|scope| {
            for (outcome, counter) in UpstreamOutcome::ALL.iter().zip(&scope.upstream) {
                let labels = [("scope", &*scope.name), ("outcome", outcome.as_str())];
                put(&mut family, labels, counted(counter))?;
            }
            Ok(())
        })?;
        let kind = MetricType::Histogram;
        let help = "How long the upstream took, whatever became of the request";
        let mut family = encoder.encode_descriptor("upstream_seconds", help, None, kind)?;
        self.each_way(|scope| {
            scope.upstream_seconds.encode(family.encode_family(&[("scope", &*scope.name)])?)
        })?;
        let help = "How long repeats waited for the answer of the first";
        let mut family = encoder.encode_descriptor("wait_seconds", help, None, kind)?;
        self.each_scope(|scope| {
            scope.wait_seconds.encode(family.encode_family(&[("scope", &*scope.name)])?)
        })
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
        let help = "1 if there are more held records than were counted, otherwise 0";
        gauge(encoder, "held_incomplete", help, i64::from(!held.complete))
    }

    fn each_scope(&self, mut act: impl FnMut(&ScopeMetrics) -> fmt::Result) -> fmt::Result {
        for scope in self.metrics.scopes.load().iter() {
            act(scope)?;
        }
        act(&self.metrics.rest)
    }

    /// Each scope, and what no route guards.
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
