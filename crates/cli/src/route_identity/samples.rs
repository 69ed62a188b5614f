//! Sample requests that represent all that a pattern matches.

use http::Method;

use semel_config::{Match, Segment};

/// The sample of any segment of a path, or of a host name.
const ANYTHING: &str = "semel-sample";

/// Numbers of segments that replace `**`, one sample each.
const ANY_COUNTS: [usize; 3] = [1, 0, 2];

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    pub(super) method: Method,
    pub(super) host: Option<String>,
    pub(super) path: String,
}

/// Requests that a pattern matches: for each of its methods, and for `**` of several lengths.
pub(super) fn samples(matches: &Match) -> Vec<Sample> {
    let host = matches.host.as_ref().map(|host| host.replace('*', ANYTHING));
    let mut samples: Vec<Sample> = Vec::new();
    for count in ANY_COUNTS {
        let path = path(&matches.path, count);
        for method in matches.guarded_methods() {
            let sample = Sample { method, host: host.clone(), path: path.clone() };
            if !samples.contains(&sample) {
                samples.push(sample);
            }
        }
    }
    samples
}

fn path(segments: &[Segment], any: usize) -> String {
    let mut path = String::new();
    let mut push = |text: &str| {
        path.push('/');
        path.push_str(text);
    };
    for segment in segments {
        match segment {
            Segment::Text(text) => push(&text.replace('*', ANYTHING)),
            Segment::One => push(ANYTHING),
            Segment::Any => (0..any).for_each(|_| push(ANYTHING)),
        }
    }
    if path.is_empty() { "/".to_owned() } else { path }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_its_samples() {
        for text in [
            "POST /",
            "POST,PATCH /**",
            "* /v1/*/refunds/**/x",
            "PUT *.example.com/files/report-*.pdf",
            "POST api.example.com/a",
        ] {
            let matches = Match::parse(text).unwrap();
            let samples = samples(&matches);
            assert!(!samples.is_empty());
            for Sample { method, host, path } in &samples {
                assert!(matches.takes(method, host.as_deref(), path), "{text} {path}");
            }
        }
        let paths = |text: &str| {
            let matches = Match::parse(text).unwrap();
            samples(&matches).into_iter().map(|sample| sample.path).collect::<Vec<_>>()
        };
        let long = "/a/semel-sample/semel-sample";
        assert_eq!(paths("POST /a/**"), ["/a/semel-sample", "/a", long]);
    }
}
