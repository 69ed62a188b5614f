//! The first page: what runs, and what was prevented.

use std::{sync::Arc, time::Duration};

use axum::{extract::State, response::Response};
use maud::{Markup, html};
use semel::core::Problem;
use semel_telemetry::format_duration;

use super::{
    chart::{Chart, Series},
    history::{Bucket, History, prevented},
    layout,
    page_state::PageState,
    text::{count, counted},
    visitor::Visitor,
};

pub(super) async fn page(State(state): State<Arc<PageState>>, visitor: Visitor) -> Response {
    let parts = state.with_history(live_parts);
    let content = html! {
        h1.hidden { "Now" }
        (parts)
        p.note {
            "Counted by this process; other servers on the same store have their own numbers. "
            span #live-status role="status" {}
            " " button #pause.plain hidden { "Pause" }
            noscript { a href="./" { "Load again" } }
        }
    };
    layout::page(&state, &visitor, ("Now", "./"), &content)
}

/// The parts that the script replaces.
pub(super) fn live_parts(history: &History) -> Markup {
    html! {
        section data-live="summary" { (summary(history)) (tiles(history)) }
        section.charts data-live="charts" aria-label="The last hour" {
            @for chart in charts(history) { (chart.render()) }
        }
    }
}

/// In words, what Semel did since it was started.
fn summary(history: &History) -> Markup {
    let (totals, since) = (&history.now, history.began.strftime("%H:%M UTC").to_string());
    let prevented = prevented(totals);
    let refusals: Vec<(&str, u64)> =
        totals.refused.iter().map(|(problem, count)| (problem.slug(), *count)).collect();
    html! {
        div.card {
            p.lead {
                strong {
                    @if prevented == 0 { "No duplicate execution had to be prevented" }
                    @else { (counted(prevented, "duplicate execution")) " prevented" }
                }
                " since " time datetime=(history.began) { (since) } "."
            }
            p.quiet {
                (counted(totals.executed, "operation")) " ran. "
                (counted(totals.replayed, "repeat")) " got the recorded answer, "
                (count(totals.joined)) " the answer of a running execution, and "
                (count(prevented.saturating_sub(totals.replayed).saturating_sub(totals.joined)))
                " had to wait or to be refused."
            }
            @if !refusals.is_empty() {
                details {
                    summary { "Refusals by problem" }
                    ul {
                        @for (slug, number) in refusals {
                            li { code { (slug) } ": " (count(number)) }
                        }
                    }
                }
            }
        }
    }
}

fn tiles(history: &History) -> Markup {
    let (totals, gauges) = (&history.now, history.gauges);
    let recent = format!("{} in the last 90 s", count(history.recent(|bucket| bucket.ran)));
    let replays = totals.replayed.saturating_add(totals.joined);
    let conflicts = totals
        .refused_for(Problem::InProgress)
        .saturating_add(totals.refused_for(Problem::KeyReused));
    let p99 = history.buckets().flatten().filter_map(|bucket| bucket.p99).last();
    let held = format!("{}{}", count(gauges.held), if gauges.held_is_cut { "+" } else { "" });
    let tiles = [
        ("Executions", count(totals.executed), recent, false),
        ("Replays", count(replays), "recorded or joined answers".to_owned(), false),
        ("Conflicts", count(conflicts), "running, or another request".to_owned(), false),
        ("In flight", count(gauges.in_flight), "operations".to_owned(), false),
        ("Waiting", count(gauges.waiting), "requests for an answer".to_owned(), false),
        ("Held", held, "counted every 15 seconds".to_owned(), gauges.held > 0),
        ("Store", p99.map_or("–".to_owned(), within), "99% of the calls".to_owned(), false),
    ];
    html! {
        dl.tiles {
            @for (name, value, note, is_alarm) in tiles {
                div.tile {
                    dt { (name) }
                    dd.value.alarm[is_alarm] { (value) }
                    dd.quiet { (note) }
                }
            }
        }
    }
}

/// A latency is known by the upper bound of its bucket.
pub(super) fn within(latency: Duration) -> String {
    format!("≤ {}", micros(as_micros(latency)))
}

fn micros(micros: u64) -> String {
    match micros {
        0..1000 => format!("{micros} µs"),
        _ => format_duration(Duration::from_micros(micros)),
    }
}

fn charts(history: &History) -> Vec<Chart> {
    let values = |value: fn(&Bucket) -> Option<u64>| {
        history.buckets().map(|bucket| bucket.and_then(value)).collect::<Vec<_>>()
    };
    let series = |name, class, values| Series { name, class, values };
    vec![
        Chart {
            title: "Guarded requests, each 30 s",
            series: vec![
                series("ran", "ran", values(|bucket| Some(bucket.ran))),
                series("prevented", "prevented", values(|bucket| Some(bucket.prevented))),
                series("refused", "refused", values(|bucket| Some(bucket.refused))),
            ],
            is_stacked: true,
            unit: count,
        },
        Chart {
            title: "In flight and waiting",
            series: vec![
                series("waiting", "refused", values(|bucket| Some(bucket.waiting_max))),
                series("in flight", "ran", values(|bucket| Some(bucket.in_flight_max))),
            ],
            is_stacked: true,
            unit: count,
        },
        Chart {
            title: "Latency of the store",
            series: vec![
                series("99%", "refused", values(|bucket| bucket.p99.map(as_micros))),
                series("50%", "ran", values(|bucket| bucket.p50.map(as_micros))),
            ],
            is_stacked: false,
            unit: micros,
        },
        Chart {
            title: "Held records",
            series: vec![series("held", "unknown", values(|bucket| Some(bucket.held)))],
            is_stacked: true,
            unit: count,
        },
    ]
}

fn as_micros(latency: Duration) -> u64 {
    u64::try_from(latency.as_micros()).unwrap_or(u64::MAX)
}
