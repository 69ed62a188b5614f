//! Charts as SVG. The picture has shapes only: its labels are HTML, so that they stay readable when
//! it is scaled, and a sentence says what it shows.

use std::fmt::Write as _;

use maud::{Markup, PreEscaped, html};

use super::history::BUCKETS;

/// The units of the picture: one bucket is this wide, with a gap at its end.
const BUCKET_WIDTH: u64 = 6;
const BAR_WIDTH: u64 = 5;
const HEIGHT: u64 = 120;

/// One series: its name, its CSS class, and its values; `None` where there is none.
pub(super) struct Series {
    pub(super) name: &'static str,
    pub(super) class: &'static str,
    pub(super) values: Vec<Option<u64>>,
}

/// A chart of the last hour.
pub(super) struct Chart {
    pub(super) title: &'static str,
    pub(super) series: Vec<Series>,
    /// Whether the series are parts of a whole, and so stand on each other.
    pub(super) is_stacked: bool,
    /// How a value is written.
    pub(super) unit: fn(u64) -> String,
}

impl Chart {
    pub(super) fn render(&self) -> Markup {
        let max = self.max();
        let summary = self.summary();
        let width = BUCKET_WIDTH.saturating_mul(u64::try_from(BUCKETS).unwrap_or(u64::MAX));
        let paths: String = self.paths(max.max(1));
        html! {
            figure.card {
                figcaption {
                    span { (self.title) }
                    span.legend {
                        @for series in &self.series {
                            span {
                                svg viewBox="0 0 1 1" aria-hidden="true" {
                                    rect.(series.class) width="1" height="1" {}
                                }
                                (series.name)
                            }
                        }
                    }
                }
                svg.plot role="img" aria-label=(summary) preserveAspectRatio="none"
                    viewBox={ "0 0 " (width) " " (HEIGHT) } { (PreEscaped(paths)) }
                div.axis aria-hidden="true" {
                    span { "−60 min" } span { "−30 min" } span { "now" }
                }
                div.axis {
                    span { "Highest: " @if max == 0 { "none" } @else { ((self.unit)(max)) } }
                }
            }
        }
    }

    /// The highest value, or sum if they are stacked.
    fn max(&self) -> u64 {
        let at = |place: usize| {
            let values =
                self.series.iter().filter_map(|it| it.values.get(place).copied().flatten());
            if self.is_stacked { values.sum() } else { values.max().unwrap_or_default() }
        };
        (0..BUCKETS).map(at).max().unwrap_or_default()
    }

    /// What the picture shows, in words.
    fn summary(&self) -> String {
        let series = self.series.iter().map(|series| {
            let known: Vec<u64> = series.values.iter().copied().flatten().collect();
            let last = known.last().copied().unwrap_or_default();
            let max = known.iter().copied().max().unwrap_or_default();
            format!("{}: now {}, at most {}", series.name, (self.unit)(last), (self.unit)(max))
        });
        let series: Vec<String> = series.collect();
        format!("{} in the last hour. {}.", self.title, series.join("; "))
    }

    fn paths(&self, max: u64) -> String {
        let mut below = vec![0_u64; BUCKETS];
        let mut out = String::new();
        for series in &self.series {
            let mut path = String::new();
            for (place, (value, below)) in series.values.iter().zip(&mut below).enumerate() {
                let Some(value) = value.filter(|value| *value > 0) else { continue };
                let base = if self.is_stacked { *below } else { 0 };
                *below = base.saturating_add(value);
                let x = BUCKET_WIDTH.saturating_mul(u64::try_from(place).unwrap_or_default());
                let (bottom, top) = (scale(base, max), scale(base.saturating_add(value), max));
                let height = top.saturating_sub(bottom).max(1);
                let y = HEIGHT.saturating_sub(bottom.saturating_add(height));
                // Writing to a String cannot fail.
                let _ = write!(path, "M{x} {y}h{BAR_WIDTH}v{height}h-{BAR_WIDTH}z");
            }
            let _ = write!(out, r#"<path class="{}" d="{path}"/>"#, series.class);
        }
        out
    }
}

fn scale(value: u64, max: u64) -> u64 {
    let scaled = u128::from(value).saturating_mul(HEIGHT.into()) / u128::from(max);
    u64::try_from(scaled).unwrap_or(HEIGHT).min(HEIGHT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(series: &[(&'static str, u64)], is_stacked: bool) -> String {
        let series = series.iter().map(|(name, value)| {
            let mut values = vec![None; BUCKETS - 1];
            values.push(Some(*value));
            Series { name, class: "ran", values }
        });
        let unit = |value: u64| format!("{value} requests");
        Chart { title: "Requests", series: series.collect(), is_stacked, unit }.render().0
    }

    #[test]
    fn stacked_bars_fill_the_height_together() {
        let html = chart(&[("ran", 90), ("refused", 30)], true);
        assert!(html.contains(r#"d="M714 30h5v90h-5z""#), "{html}");
        assert!(html.contains(r#"d="M714 0h5v30h-5z""#), "{html}");
        assert!(html.contains("Highest: 120 requests"), "{html}");
    }

    #[test]
    fn a_chart_says_in_words_what_it_shows() {
        let html = chart(&[("ran", 90), ("refused", 30)], false);
        let summary = "Requests in the last hour. ran: now 90 requests, at most 90 requests; \
                       refused: now 30 requests, at most 30 requests.";
        assert!(html.contains(summary), "{html}");
        assert!(!html.contains("style="), "the content security policy forbids it");
        let empty = chart(&[("ran", 0)], true);
        assert!(empty.contains("Highest: none"), "{empty}");
    }

    #[test]
    fn a_bar_of_any_value_fits() {
        for value in [1, u64::MAX] {
            let html = chart(&[("ran", value)], true);
            assert!(html.contains("M714 0h5v120h-5z"), "{html}");
        }
        assert!(chart(&[("few", 1), ("many", 100_000)], false).contains("v1h-5z"));
    }
}
