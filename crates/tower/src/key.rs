//! Where a route finds the key, and what it says when there is none.

mod cloud_event;
mod json;
mod missing;

use http::{HeaderMap, HeaderName};
use semel::core::{BodyKind, Key, KeyError, Problem, canonical::Pointer};

use self::cloud_event::Mode;
use crate::{Signature, header, refusal::Refusal};

/// Where a route finds the key of a request, and whether it must have one.
///
/// The sources are asked in order, and the first that is present counts. A key that is present and
/// malformed is refused with 400 `key-malformed`: it is never taken for absent, because the request
/// would run without the protection that its sender asked for.
///
/// ```
/// use http::HeaderName;
/// use semel_tower::KeyRule;
///
/// let paypal = HeaderName::from_static("paypal-request-id");
/// let rule = KeyRule::default().or(KeyRule::header(paypal)).required();
/// # let _ = rule;
/// ```
#[derive(Clone, Debug)]
pub struct KeyRule {
    sources: Vec<Source>,
    need: Need,
}

#[derive(Clone, Debug)]
enum Source {
    Header(HeaderName),
    /// One member of the body, or several together.
    Json(Vec<Pointer>),
    CloudEvent,
}

/// Whether a request must have a key, the stronger need last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Need {
    Optional,
    Warn,
    Required,
}

/// What was found without a look into the body.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// A key in a header.
    Key(Key),
    /// No key anywhere.
    Nothing,
    /// Nothing in the headers asked so far; this source stands in the body.
    AskBody(usize),
}

impl Default for KeyRule {
    /// The header `Idempotency-Key`, not required.
    fn default() -> Self {
        Self::header(header::IDEMPOTENCY_KEY)
    }
}

impl KeyRule {
    /// A key in this header. For gRPC, that is metadata.
    #[must_use]
    pub fn header(name: HeaderName) -> Self {
        Self::one(Source::Header(name))
    }

    /// A key at this place of a JSON body, such as `/id` of a webhook: a string of any text, a
    /// number, `true` or `false`. How it is stored says [`Key::from_members`].
    ///
    /// What a body says is no proof of who sent it. Where nothing else proves that either, neither
    /// the [caller](crate::Callers) nor a [signature](crate::IdempotencyLayer::signature), only a
    /// success is kept under such a key, so that a forged event that is sent first cannot block the
    /// real one with an error. [`IdempotencyLayer::keep_under_body_keys`] says otherwise.
    ///
    /// [`IdempotencyLayer::keep_under_body_keys`]: crate::IdempotencyLayer::keep_under_body_keys
    #[must_use]
    pub fn json(pointer: Pointer) -> Self {
        Self::json_members([pointer])
    }

    /// A key of several members of a JSON body together, such as the contest, the user and the
    /// entry: each a string of any text, a number, `true`, `false` or `null`. Where one ends and
    /// the next begins counts. A body that has none of them has no key; one that has some of them
    /// only is refused.
    ///
    /// ```
    /// use semel::core::canonical::Pointer;
    /// use semel_tower::KeyRule;
    ///
    /// let members = ["/contest", "/user", "/entry"].map(Pointer::parse);
    /// let rule = KeyRule::json_members(members.into_iter().collect::<Result<Vec<_>, _>>()?);
    /// # let _ = rule;
    /// # Ok::<(), semel::core::canonical::PointerError>(())
    /// ```
    #[must_use]
    pub fn json_members(pointers: impl IntoIterator<Item = Pointer>) -> Self {
        Self::one(Source::Json(pointers.into_iter().collect()))
    }

    /// The `source` and the `id` of a CloudEvent, together: producers make the pair unique, not
    /// the id alone. They are members of the body whose type is `application/cloudevents+json`,
    /// whatever the headers say, or else the headers `ce-source` and `ce-id`, percent-decoded.
    /// What is kept under one from the body says [`KeyRule::json`]. A batch of events has no one
    /// key, and is refused.
    ///
    /// The key is [derived](semel::keys::from_parts) from both, in the domain `cloudevents`:
    ///
    /// ```text
    /// $ printf '11:cloudevents,7:/orders,3:e-1,' | sha256sum
    /// 6a609b8a470b8daca4528be3ef610c306432109e6a0637f0b7009a85576c453f
    /// ```
    #[must_use]
    pub fn cloud_event() -> Self {
        Self::one(Source::CloudEvent)
    }

    fn one(source: Source) -> Self {
        Self { sources: vec![source], need: Need::Optional }
    }

    /// Also looks where `other` looks, after the places of this rule. If either of the two requires
    /// a key, or warns, so does the rule that comes of them.
    #[must_use]
    pub fn or(mut self, other: Self) -> Self {
        self.sources.extend(other.sources);
        self.need = self.need.max(other.need);
        self
    }

    /// A request without a key passes unguarded. This is the default.
    #[must_use]
    pub const fn optional(mut self) -> Self {
        self.need = Need::Optional;
        self
    }

    /// A request without a key passes unguarded, and its answer says by a `Deprecation` header
    /// (RFC 9745) that a key will be required: the step before [`KeyRule::required`].
    #[must_use]
    pub const fn warn(mut self) -> Self {
        self.need = Need::Warn;
        self
    }

    /// A request without a key is refused with 400 `key-missing`.
    #[must_use]
    pub const fn required(mut self) -> Self {
        self.need = Need::Required;
        self
    }

    pub(crate) const fn need(&self) -> Need {
        self.need
    }

    /// The headers that may hold the key.
    pub(crate) fn headers(&self) -> Vec<HeaderName> {
        let headers = |source: &Source| match source {
            Source::Header(name) => vec![name.clone()],
            Source::Json(_) => Vec::new(),
            Source::CloudEvent => vec![cloud_event::SOURCE, cloud_event::ID],
        };
        self.sources.iter().flat_map(headers).collect()
    }

    /// Whether every header that may hold the key is signed.
    pub(crate) fn is_signed_by(&self, signature: &Signature) -> bool {
        self.sources.iter().all(|source| match source {
            Source::Header(name) => signature.signs(name),
            Source::Json(_) => true,
            Source::CloudEvent => false,
        })
    }

    /// Asks the headers, up to the first source that stands in the body.
    pub(crate) fn ask_headers(&self, headers: &HeaderMap) -> Result<Found, Refusal> {
        for (index, source) in self.sources.iter().enumerate() {
            match source {
                Source::Json(_) => return Ok(Found::AskBody(index)),
                Source::Header(name) => {
                    if let Some(key) = in_header(headers, name)? {
                        return Ok(Found::Key(key));
                    }
                }
                Source::CloudEvent => match cloud_event::mode(headers)? {
                    Some(Mode::Binary(key)) => return Ok(Found::Key(key)),
                    Some(Mode::Structured) => return Ok(Found::AskBody(index)),
                    None => {}
                },
            }
        }
        Ok(Found::Nothing)
    }

    /// Asks what `ask_headers` left, now that the body is here.
    pub(crate) fn ask_all(
        &self,
        from: usize,
        headers: &HeaderMap,
        kind: &BodyKind,
        body: &[u8],
    ) -> Result<Option<InRequest>, Refusal> {
        for source in self.sources.iter().skip(from) {
            let (key, from_body) = match source {
                Source::Header(name) => (in_header(headers, name)?, false),
                Source::Json(pointers) => (json::key(kind, body, pointers)?, true),
                Source::CloudEvent => match cloud_event::mode(headers)? {
                    Some(Mode::Binary(key)) => (Some(key), false),
                    Some(Mode::Structured) => (Some(cloud_event::in_body(body)?), true),
                    None => (None, false),
                },
            };
            if let Some(key) = key {
                return Ok(Some(InRequest { key, from_body }));
            }
        }
        Ok(None)
    }
}

/// A key, and whether the body named it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct InRequest {
    pub(crate) key: Key,
    pub(crate) from_body: bool,
}

fn in_header(headers: &HeaderMap, name: &HeaderName) -> Result<Option<Key>, Refusal> {
    let lines = headers.get_all(name).iter().map(http::HeaderValue::as_bytes);
    Key::from_header(lines).map_err(malformed)
}

fn malformed(error: KeyError) -> Refusal {
    Refusal::detailed(Problem::KeyMalformed, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHER: HeaderName = HeaderName::from_static("x-request-key");

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    fn key(text: &str) -> Key {
        Key::new(text).unwrap()
    }

    fn pointer(text: &str) -> Pointer {
        Pointer::parse(text).unwrap()
    }

    #[test]
    fn a_quoted_and_a_bare_key_are_the_same() {
        let rule = KeyRule::default();
        for value in ["k-1", "\"k-1\""] {
            let found = rule.ask_headers(&headers(&[("idempotency-key", value)])).unwrap();
            assert_eq!(found, Found::Key(key("k-1")));
        }
        assert_eq!(rule.ask_headers(&headers(&[])).unwrap(), Found::Nothing);
    }

    #[test]
    fn the_first_source_that_is_present_counts() {
        let rule = KeyRule::default().or(KeyRule::header(OTHER));
        let both = headers(&[("x-request-key", "b"), ("idempotency-key", "a")]);
        assert_eq!(rule.ask_headers(&both).unwrap(), Found::Key(key("a")));
        let second = headers(&[("x-request-key", "b")]);
        assert_eq!(rule.ask_headers(&second).unwrap(), Found::Key(key("b")));
    }

    #[test]
    fn the_stronger_need_of_two_rules_counts() {
        let rule = |need| KeyRule { need, ..KeyRule::default() };
        let needs = [Need::Optional, Need::Warn, Need::Required];
        for (weak, strong) in [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2)] {
            let (weak, strong) = (needs[weak], needs[strong]);
            assert_eq!(rule(weak).or(rule(strong)).need(), strong);
            assert_eq!(rule(strong).or(rule(weak)).need(), strong);
        }
        assert_eq!(rule(Need::Required).or(rule(Need::Warn)).optional().need(), Need::Optional);
    }

    #[test]
    fn a_malformed_key_is_not_passed_over() {
        let rule = KeyRule::default().or(KeyRule::header(OTHER));
        let first_is_bad = headers(&[("idempotency-key", "a b"), ("x-request-key", "b")]);
        let refusal = rule.ask_headers(&first_is_bad).unwrap_err();
        assert_eq!(refusal.problem, Problem::KeyMalformed);
        assert!(refusal.detail.unwrap().contains("0x20"));
        let twice = headers(&[("idempotency-key", "a"), ("idempotency-key", "a")]);
        assert_eq!(rule.ask_headers(&twice).unwrap_err().problem, Problem::KeyMalformed);
    }

    #[test]
    fn a_key_in_the_body_waits_for_the_body() {
        let rule = KeyRule::json(pointer("/id"));
        assert_eq!(rule.ask_headers(&headers(&[])).unwrap(), Found::AskBody(0));
        let ask = |body: &str| rule.ask_all(0, &HeaderMap::new(), &BodyKind::Json, body.as_bytes());
        let found = Some(InRequest { key: key("evt_1"), from_body: true });
        assert_eq!(ask(r#"{"id":"evt_1"}"#).unwrap(), found);
        assert_eq!(ask("{}").unwrap(), None);
    }

    #[test]
    fn a_header_after_the_body_is_asked_after_it() {
        let rule = KeyRule::json(pointer("/id")).or(KeyRule::default());
        let headers = headers(&[("idempotency-key", "h")]);
        let ask = |body: &[u8]| rule.ask_all(0, &headers, &BodyKind::Json, body).unwrap().unwrap();
        assert_eq!(ask(b"{}"), InRequest { key: key("h"), from_body: false });
        assert!(ask(br#"{"id":"b"}"#).from_body);
    }
}
