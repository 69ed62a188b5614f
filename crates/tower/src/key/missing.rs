//! The error for a request without a key where one is required.

use http::HeaderName;
use semel::core::Problem;

use super::{KeyLocation, KeyRule, json};
use crate::refusal::RequestRefusal;

impl KeyRule {
    /// The refusal of a request without a key. It names the sources of this rule.
    pub(crate) fn missing(&self, grpc: bool) -> RequestRefusal {
        let places: Vec<String> = self.sources.iter().map(|source| source.describe(grpc)).collect();
        let detail = format!(
            "This operation needs a key that names it: {}. Send a new key with each new operation, \
             and the same key with every retry of it. Nothing was done.",
            places.join(", or ")
        );
        RequestRefusal::detailed(Problem::KeyMissing, detail)
    }
}

impl KeyLocation {
    fn describe(&self, grpc: bool) -> String {
        match self {
            Self::Header(name) if grpc => format!("send the metadata {name}"),
            Self::Header(name) => format!("send the header {}", capitalised(name)),
            Self::Json(pointers) => format!("send it as JSON with {}", json::named(pointers)),
            Self::CloudEvent => "send a CloudEvent, with its source and its id".to_owned(),
        }
    }
}

/// A header name in its usual spelling: `Idempotency-Key`.
fn capitalised(name: &HeaderName) -> String {
    let words = name.as_str().split('-').map(|word| {
        let mut characters = word.chars();
        let first = characters.next().map(|first| first.to_ascii_uppercase());
        first.into_iter().chain(characters).collect::<String>()
    });
    words.collect::<Vec<_>>().join("-")
}

#[cfg(test)]
mod tests {
    use semel::core::canonical::Pointer;

    use super::*;

    fn detail(rule: &KeyRule, grpc: bool) -> String {
        let refusal = rule.missing(grpc);
        assert_eq!(refusal.problem, Problem::KeyMissing);
        refusal.detail.unwrap().into_owned()
    }

    #[test]
    fn a_missing_key_error_names_the_sources_of_the_route() {
        let members = ["/contest", "/user", "/entry"].map(|text| Pointer::parse(text).unwrap());
        let [contest, ..] = members.clone();
        for (rule, expected) in [
            (KeyRule::default(), "send the header Idempotency-Key."),
            (
                KeyRule::header(HeaderName::from_static("x-idempotency-key")),
                "send the header X-Idempotency-Key.",
            ),
            (KeyRule::json(contest), "send it as JSON with the member /contest of the body."),
            (
                KeyRule::default().or(KeyRule::json_members(members)),
                "send the header Idempotency-Key, or send it as JSON with the members /contest, \
                 /user and /entry of the body.",
            ),
            (KeyRule::cloud_event(), "send a CloudEvent, with its source and its id."),
        ] {
            let detail = detail(&rule, false);
            assert!(detail.contains(expected), "{detail}");
            assert_eq!(detail.contains("Idempotency-Key"), expected.contains("Idempotency-Key"));
        }
    }

    #[test]
    fn in_grpc_a_header_is_metadata() {
        let rule = KeyRule::header(HeaderName::from_static("x-request-key"));
        assert!(detail(&rule, true).contains("send the metadata x-request-key."));
    }
}
