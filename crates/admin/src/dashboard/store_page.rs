//! The store: where it is, how full, and how fast it answers.

use std::{sync::Arc, time::Duration};

use axum::{extract::State, response::Response};
use maud::{Markup, html};
use semel_telemetry::metrics::StoreTotals;
use tokio::time::timeout;

use super::{
    layout,
    now::within,
    page_state::PageState,
    text::{bytes, count, safe},
    visitor::Visitor,
};

/// Timeout of the check whether the store answers.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) async fn page(State(state): State<Arc<PageState>>, visitor: Visitor) -> Response {
    let config = state.dashboard().config.get();
    let check = timeout(CHECK_TIMEOUT, state.semel.store().epoch()).await;
    let totals = state.metrics.totals();
    let content = html! {
        h1 { "Store" }
        @match &check {
            Ok(Ok(_)) => p.done { "The store answers." },
            Ok(Err(error)) => p.wrong role="alert" {
                "The store failed: " (safe(&error.to_string()))
            },
            Err(_) => p.wrong role="alert" { "The store did not answer within 2 s." },
        }
        div.columns {
            section.card {
                h2 { "Where" }
                dl.facts {
                    @for (name, value) in &config.settings { dt { (name) } dd { (safe(value)) } }
                    @if let Ok(Ok(epoch)) = check {
                        dt { "Acts of operators" } dd { (count(epoch.0)) }
                    }
                }
            }
            section.card { h2 { "How full" } (usage(&state)) }
        }
        section.card {
            h2 { "Calls since the start of this process" }
            (calls(&totals.store))
            p.note {
                "Maintenance settled " (count(totals.lapsed)) " records with an expired lease and "
                "deleted " (count(totals.swept)) " past their retention."
            }
        }
    };
    layout::page(&state, &visitor, ("Store", "store"), &content)
}

fn usage(state: &PageState) -> Markup {
    let (limits, usage) = (state.semel.quotas(), state.semel.quota_usage());
    let disk = usage.store.disk;
    let rows = [
        ("Records", usage.store.records, limits.records, count as fn(u64) -> String),
        ("Their size", usage.store.bytes, limits.store_bytes, bytes),
        (
            "Most records of one caller",
            Some(usage.caller_records),
            limits.records_per_caller,
            count,
        ),
        ("Most held of one caller", Some(usage.caller_held), limits.held_per_caller, count),
    ];
    let limit = |limit: u64, unit: fn(u64) -> String| match limit {
        u64::MAX => String::new(),
        limit => format!(" of {}", unit(limit)),
    };
    html! {
        dl.facts {
            @for (name, used, max, unit) in rows {
                @if let Some(used) = used { dt { (name) } dd { (unit(used)) (limit(max, unit)) } }
            }
            @if let Some(disk) = disk {
                dt { "Free on its disk" } dd { (bytes(disk.available)) " of " (bytes(disk.total)) }
            }
        }
    }
}

fn calls(operations: &[StoreTotals]) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label="Calls" {
            table {
                thead { tr {
                    th scope="col" { "Operation" }
                    th.number scope="col" { "Answered" }
                    th.number scope="col" { "Failed" }
                    th.number scope="col" { "50%" }
                    th.number scope="col" { "99%" }
                } }
                tbody { @for operation in operations { tr {
                    td { (operation.operation) }
                    td.number { (count(operation.latency.count())) }
                    td.number { (count(operation.errors)) }
                    @for percent in [50, 99] {
                        td.number {
                            @match operation.latency.percentile(percent) {
                                Some(latency) => (within(latency)),
                                None => "–",
                            }
                        }
                    }
                } } }
            }
        }
    }
}
