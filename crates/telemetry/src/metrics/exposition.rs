//! The two text formats: `OpenMetrics`, and the older one of Prometheus.

/// The text format of a scrape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exposition {
    /// The text format of Prometheus, version 0.0.4.
    Prometheus,
    /// `OpenMetrics` 1.0.
    OpenMetrics,
}

impl Exposition {
    /// `OpenMetrics` for a client whose `Accept` names it, otherwise the format that every client
    /// reads.
    pub fn accepted(accept: &str) -> Self {
        let is_named = accept.split(',').any(|range| {
            let mut parts = range.split(';').map(str::trim);
            let kind = parts.next().unwrap_or_default();
            let is_refused = parts.any(|part| {
                let quality = part.strip_prefix("q=").and_then(|quality| quality.parse().ok());
                quality.is_some_and(|quality: f32| quality <= 0.0)
            });
            kind.eq_ignore_ascii_case("application/openmetrics-text") && !is_refused
        });
        if is_named { Self::OpenMetrics } else { Self::Prometheus }
    }

    /// Its media type.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// Turns `OpenMetrics`, the only format that the encoder knows, into this one.
    pub(super) fn of_open_metrics(self, text: String) -> String {
        match self {
            Self::OpenMetrics => text,
            Self::Prometheus => to_prometheus(&text),
        }
    }
}

/// In the older format a family has the name of its series: counters end with `_total`, and
/// information is a gauge that ends with `_info`.
fn to_prometheus(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut help = "";
    for line in text.lines() {
        if let Some(line) = line.strip_prefix("# HELP ") {
            help = line.split_once(' ').map_or("", |(_, help)| help);
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(split_type) {
            let (suffix, kind) = match kind {
                "counter" => ("_total", "counter"),
                "info" => ("_info", "gauge"),
                "unknown" => ("", "untyped"),
                kind => ("", kind),
            };
            for part in ["# HELP ", name, suffix, " ", help, "\n"] {
                out.push_str(part);
            }
            for part in ["# TYPE ", name, suffix, " ", kind, "\n"] {
                out.push_str(part);
            }
        } else if !line.starts_with('#') {
            out.push_str(line);
            out.push('\n');
        }
    }
    out
}

fn split_type(line: &str) -> Option<(&str, &str)> {
    line.split_once(' ')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_gets_the_format_that_it_accepts() {
        let prometheus = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5,*/*;q=0.1";
        assert_eq!(Exposition::accepted(prometheus), Exposition::OpenMetrics);
        for accept in ["", "*/*", "text/plain", "application/openmetrics-text;q=0, */*"] {
            assert_eq!(Exposition::accepted(accept), Exposition::Prometheus, "{accept}");
        }
    }

    #[test]
    fn the_older_format_names_families_after_their_series() {
        let open = "# HELP a_build Version.\n# TYPE a_build info\na_build_info{v=\"1\"} 1\n\
                    # HELP a_hits Hits.\n# TYPE a_hits counter\na_hits_total 2\n\
                    # HELP a_seconds Time.\n# TYPE a_seconds histogram\n# UNIT a_seconds seconds\n\
                    a_seconds_sum 0.5\n# EOF\n";
        let expected = "# HELP a_build_info Version.\n# TYPE a_build_info gauge\n\
                        a_build_info{v=\"1\"} 1\n\
                        # HELP a_hits_total Hits.\n# TYPE a_hits_total counter\na_hits_total 2\n\
                        # HELP a_seconds Time.\n# TYPE a_seconds histogram\na_seconds_sum 0.5\n";
        assert_eq!(Exposition::Prometheus.of_open_metrics(open.to_owned()), expected);
        assert_eq!(Exposition::OpenMetrics.of_open_metrics(open.to_owned()), open);
    }
}
