//! Where a route finds the key, and how it treats a request without one.

mod cloud_event;
mod json;
mod missing;

use http::{HeaderMap, HeaderName};
use semel::core::{
    BodyKind, Dialect, Key, KeyError, Problem, canonical::Pointer, dialect::KeyPlace,
    key::KEY_BYTES_MAX,
};

use self::cloud_event::EventMode;
use crate::{header, refusal::RequestRefusal};

/// A place where the key of a request may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyLocation {
    /// A header; gRPC metadata too.
    Header(HeaderName),
    /// One member of a JSON body, or several combined.
    Json(Vec<Pointer>),
    /// The source and the id of a CloudEvent.
    CloudEvent,
}

impl KeyLocation {
    /// Where the clients of a provider send the key.
    #[must_use]
    pub fn of_dialect(dialect: &Dialect) -> Self {
        match dialect.key() {
            KeyPlace::Header(name) => Self::Header(HeaderName::from_static(name)),
            KeyPlace::Json(pointer) => Self::Json(Pointer::parse(pointer).into_iter().collect()),
            _ => Self::Header(header::IDEMPOTENCY_KEY),
        }
    }

    /// Whether a key from there may be in the body.
    #[must_use]
    pub const fn may_be_in_body(&self) -> bool {
        match self {
            Self::Json(_) | Self::CloudEvent => true,
            Self::Header(_) => false,
        }
    }

    /// The headers that may hold the key.
    #[must_use]
    pub fn headers(&self) -> Vec<HeaderName> {
        match self {
            Self::Header(name) => vec![name.clone()],
            Self::Json(_) => Vec::new(),
            Self::CloudEvent => vec![cloud_event::SOURCE, cloud_event::ID],
        }
    }

    /// Whether a request with these headers may have a key there.
    #[must_use]
    pub fn may_be_in(&self, headers: &HeaderMap) -> bool {
        match self {
            Self::Header(name) => headers.contains_key(name),
            Self::Json(_) => true,
            Self::CloudEvent => cloud_event::may_be_in(headers),
        }
    }
}

/// Where a route finds the key of a request, and whether it must have one.
///
/// The sources are read in order, and the first that is present counts. A key that is present and
/// malformed is refused with 400 `key-malformed`. It is not treated as absent, because the request
/// would run without the protection that its client asked for.
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
    sources: Vec<KeyLocation>,
    requirement: KeyRequirement,
    /// A lower limit than usual for the key of a header or of one member of the body.
    bytes_max: Option<usize>,
}

/// Whether a request must have a key, the strictest last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum KeyRequirement {
    Optional,
    Warn,
    Required,
}

/// The result of looking for a key in the headers.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum KeyLookup {
    /// A key in a header.
    Key(Key),
    /// No key anywhere.
    Nothing,
    /// Nothing in the headers so far; the source with this index reads the body.
    InBody(usize),
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
        Self::one(KeyLocation::Header(name))
    }

    /// A key at this place of a JSON body, such as `/id` of a webhook: a string, a number, `true`
    /// or `false`. [`Key::from_members`] describes how it is stored.
    ///
    /// A body does not prove its sender. If nothing else proves it either, neither the
    /// [caller](crate::Callers) nor a [signature](crate::IdempotencyLayer::signature), only a
    /// success is kept under such a key, so that a forged event that arrives first cannot block the
    /// real one with an error. [`IdempotencyLayer::keep_under_body_keys`] changes this.
    ///
    /// [`IdempotencyLayer::keep_under_body_keys`]: crate::IdempotencyLayer::keep_under_body_keys
    #[must_use]
    pub fn json(pointer: Pointer) -> Self {
        Self::json_members([pointer])
    }

    /// A key of several members of a JSON body combined, such as the contest, the user and the
    /// entry: each a string, a number, `true`, `false` or `null`. The boundaries between members
    /// count. A body without any of them has no key; one with only some of them is refused.
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
        Self::one(KeyLocation::Json(pointers.into_iter().collect()))
    }

    /// The `source` and the `id` of a CloudEvent combined: producers make the pair unique, not the
    /// id alone. They are members of a body of type `application/cloudevents+json`, whatever the
    /// headers contain, or else the headers `ce-source` and `ce-id`, percent-decoded.
    /// [`KeyRule::json`] describes what is kept under a key from the body. A batch of events has no
    /// single key, and is refused.
    ///
    /// The key is [derived](semel::keys::from_parts) from both, in the domain `cloudevents`:
    ///
    /// ```text
    /// $ printf '11:cloudevents,7:/orders,3:e-1,' | sha256sum
    /// 6a609b8a470b8daca4528be3ef610c306432109e6a0637f0b7009a85576c453f
    /// ```
    #[must_use]
    pub fn cloud_event() -> Self {
        Self::one(KeyLocation::CloudEvent)
    }

    /// Where the clients of a provider send the key. [`IdempotencyLayer::dialect`] uses it.
    ///
    /// [`IdempotencyLayer::dialect`]: crate::IdempotencyLayer::dialect
    #[must_use]
    pub fn of_dialect(dialect: &Dialect) -> Self {
        Self::one(KeyLocation::of_dialect(dialect))
    }

    /// A key at the first of these places that has one.
    #[must_use]
    pub fn any(locations: impl IntoIterator<Item = KeyLocation>) -> Self {
        let sources = locations.into_iter().collect();
        Self { sources, requirement: KeyRequirement::Optional, bytes_max: None }
    }

    fn one(location: KeyLocation) -> Self {
        Self::any([location])
    }

    /// Adds the sources of `other` after those of this rule. The result is as strict as the
    /// stricter of the two.
    #[must_use]
    pub fn or(mut self, other: Self) -> Self {
        self.sources.extend(other.sources);
        self.requirement = self.requirement.max(other.requirement);
        self
    }

    /// A request without a key passes unguarded. This is the default.
    #[must_use]
    pub const fn optional(mut self) -> Self {
        self.requirement = KeyRequirement::Optional;
        self
    }

    /// A request without a key passes unguarded, and its answer carries a `Deprecation` header (RFC
    /// 9745), which announces that a key will be required: the step before [`KeyRule::required`].
    #[must_use]
    pub const fn warn(mut self) -> Self {
        self.requirement = KeyRequirement::Warn;
        self
    }

    /// A request without a key is refused with 400 `key-missing`.
    #[must_use]
    pub const fn required(mut self) -> Self {
        self.requirement = KeyRequirement::Required;
        self
    }

    pub(crate) const fn with_requirement_of(mut self, other: &Self) -> Self {
        self.requirement = other.requirement;
        self
    }

    pub(crate) const fn set_bytes_max(&mut self, bytes_max: Option<usize>) {
        self.bytes_max = bytes_max;
    }

    pub(crate) const fn requirement(&self) -> KeyRequirement {
        self.requirement
    }

    /// The places where it looks for a key, in order.
    pub(crate) fn locations(&self) -> &[KeyLocation] {
        &self.sources
    }

    /// The headers that may hold the key.
    pub(crate) fn headers(&self) -> Vec<HeaderName> {
        self.sources.iter().flat_map(KeyLocation::headers).collect()
    }

    /// The places in a JSON body that may hold the key.
    pub(crate) fn pointers(&self) -> Vec<Pointer> {
        let pointers = self.sources.iter().filter_map(|source| match source {
            KeyLocation::Json(pointers) => Some(pointers.iter().cloned()),
            KeyLocation::Header(_) | KeyLocation::CloudEvent => None,
        });
        pointers.flatten().collect()
    }

    /// Whether every header that may hold the key is signed.
    pub(crate) fn is_signed(&self, signs: impl Fn(&HeaderName) -> bool) -> bool {
        self.sources.iter().all(|source| match source {
            KeyLocation::Header(name) => signs(name),
            KeyLocation::Json(_) => true,
            KeyLocation::CloudEvent => false,
        })
    }

    /// Reads the headers, up to the first source in the body.
    pub(crate) fn find_in_headers(&self, headers: &HeaderMap) -> Result<KeyLookup, RequestRefusal> {
        for (index, source) in self.sources.iter().enumerate() {
            match source {
                KeyLocation::Json(_) => return Ok(KeyLookup::InBody(index)),
                KeyLocation::Header(name) => {
                    if let Some(key) = self.in_header(headers, name)? {
                        return Ok(KeyLookup::Key(key));
                    }
                }
                KeyLocation::CloudEvent => match cloud_event::mode(headers)? {
                    Some(EventMode::Binary(key)) => return Ok(KeyLookup::Key(key)),
                    Some(EventMode::Structured) => return Ok(KeyLookup::InBody(index)),
                    None => {}
                },
            }
        }
        Ok(KeyLookup::Nothing)
    }

    /// Reads the remaining sources, once the body was read.
    pub(crate) fn find_in_request(
        &self,
        from: usize,
        headers: &HeaderMap,
        kind: &BodyKind,
        body: &[u8],
    ) -> Result<Option<RequestKey>, RequestRefusal> {
        for source in self.sources.iter().skip(from) {
            let (key, from_body) = match source {
                KeyLocation::Header(name) => (self.in_header(headers, name)?, false),
                KeyLocation::Json(pointers) => {
                    (json::key(kind, body, pointers, self.bytes_max)?, true)
                }
                KeyLocation::CloudEvent => match cloud_event::mode(headers)? {
                    Some(EventMode::Binary(key)) => (Some(key), false),
                    Some(EventMode::Structured) => (Some(cloud_event::in_body(body)?), true),
                    None => (None, false),
                },
            };
            if let Some(key) = key {
                return Ok(Some(RequestKey { key, from_body }));
            }
        }
        Ok(None)
    }

    fn in_header(
        &self,
        headers: &HeaderMap,
        name: &HeaderName,
    ) -> Result<Option<Key>, RequestRefusal> {
        let max = self.bytes_max.unwrap_or(KEY_BYTES_MAX);
        let lines = headers.get_all(name).iter().map(http::HeaderValue::as_bytes);
        match Key::from_header(lines) {
            Ok(Some(key)) if key.as_str().len() > max => Err(too_long(key.as_str().len(), max)),
            Ok(key) => Ok(key),
            Err(KeyError::TooLong { length }) => Err(too_long(length, max)),
            Err(error) => Err(malformed(error.to_string())),
        }
    }
}

/// A key, and whether it came from the body.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RequestKey {
    pub(crate) key: Key,
    pub(crate) from_body: bool,
}

fn too_long(length: usize, max: usize) -> RequestRefusal {
    malformed(format!("the key has {length} characters; shorten it to {max} or fewer"))
}

fn malformed(detail: String) -> RequestRefusal {
    RequestRefusal::detailed(Problem::KeyMalformed, detail)
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
            let found = rule.find_in_headers(&headers(&[("idempotency-key", value)])).unwrap();
            assert_eq!(found, KeyLookup::Key(key("k-1")));
        }
        assert_eq!(rule.find_in_headers(&headers(&[])).unwrap(), KeyLookup::Nothing);
    }

    #[test]
    fn the_first_source_that_is_present_counts() {
        let rule = KeyRule::default().or(KeyRule::header(OTHER));
        let both = headers(&[("x-request-key", "b"), ("idempotency-key", "a")]);
        assert_eq!(rule.find_in_headers(&both).unwrap(), KeyLookup::Key(key("a")));
        let second = headers(&[("x-request-key", "b")]);
        assert_eq!(rule.find_in_headers(&second).unwrap(), KeyLookup::Key(key("b")));
    }

    #[test]
    fn the_stronger_need_of_two_rules_counts() {
        let rule = |requirement| KeyRule { requirement, ..KeyRule::default() };
        let needs = [KeyRequirement::Optional, KeyRequirement::Warn, KeyRequirement::Required];
        for (weak, strong) in [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2)] {
            let (weak, strong) = (needs[weak], needs[strong]);
            assert_eq!(rule(weak).or(rule(strong)).requirement(), strong);
            assert_eq!(rule(strong).or(rule(weak)).requirement(), strong);
        }
        assert_eq!(
            rule(KeyRequirement::Required).or(rule(KeyRequirement::Warn)).optional().requirement(),
            KeyRequirement::Optional
        );
    }

    #[test]
    fn a_malformed_key_is_not_passed_over() {
        let rule = KeyRule::default().or(KeyRule::header(OTHER));
        let first_is_bad = headers(&[("idempotency-key", "a b"), ("x-request-key", "b")]);
        let refusal = rule.find_in_headers(&first_is_bad).unwrap_err();
        assert_eq!(refusal.problem, Problem::KeyMalformed);
        assert!(refusal.detail.unwrap().contains("0x20"));
        let twice = headers(&[("idempotency-key", "a"), ("idempotency-key", "a")]);
        assert_eq!(rule.find_in_headers(&twice).unwrap_err().problem, Problem::KeyMalformed);
    }

    #[test]
    fn a_dialect_may_allow_shorter_keys_only() {
        let mut rule = KeyRule::of_dialect(&Dialect::ADYEN);
        rule.set_bytes_max(Dialect::ADYEN.key_bytes_max());
        let find = |length: usize| {
            let value = "k".repeat(length);
            let mut headers = HeaderMap::new();
            headers.append("idempotency-key", value.parse().unwrap());
            rule.find_in_headers(&headers)
        };
        assert_eq!(find(64).unwrap(), KeyLookup::Key(key(&"k".repeat(64))));
        for length in [65, 255, 256, 300] {
            let refusal = find(length).unwrap_err();
            assert_eq!(refusal.problem, Problem::KeyMalformed);
            let detail = format!("the key has {length} characters; shorten it to 64 or fewer");
            assert_eq!(refusal.detail.unwrap(), detail);
        }
        let mut rule = KeyRule::of_dialect(&Dialect::SQUARE);
        rule.set_bytes_max(Dialect::SQUARE.key_bytes_max());
        let find = |member: &str| {
            let body = format!(r#"{{"idempotency_key":"{member}"}}"#);
            rule.find_in_request(0, &HeaderMap::new(), &BodyKind::Json, body.as_bytes())
        };
        assert!(find(&"k".repeat(45)).unwrap().is_some());
        // 23 characters of two bytes.
        for member in ["k".repeat(46), "ü".repeat(23), "k".repeat(300)] {
            let refusal = find(&member).unwrap_err();
            assert_eq!(refusal.problem, Problem::KeyMalformed);
            assert!(refusal.detail.unwrap().ends_with("shorten it to 45 bytes or fewer"));
        }
    }

    #[test]
    fn a_key_in_the_body_waits_for_the_body() {
        let rule = KeyRule::json(pointer("/id"));
        assert_eq!(rule.find_in_headers(&headers(&[])).unwrap(), KeyLookup::InBody(0));
        let find = |body: &str| {
            rule.find_in_request(0, &HeaderMap::new(), &BodyKind::Json, body.as_bytes())
        };
        let found = Some(RequestKey { key: key("evt_1"), from_body: true });
        assert_eq!(find(r#"{"id":"evt_1"}"#).unwrap(), found);
        assert_eq!(find("{}").unwrap(), None);
    }

    #[test]
    fn a_header_after_the_body_is_asked_after_it() {
        let rule = KeyRule::json(pointer("/id")).or(KeyRule::default());
        let headers = headers(&[("idempotency-key", "h")]);
        let find = |body: &[u8]| {
            rule.find_in_request(0, &headers, &BodyKind::Json, body).unwrap().unwrap()
        };
        assert_eq!(find(b"{}"), RequestKey { key: key("h"), from_body: false });
        assert!(find(br#"{"id":"b"}"#).from_body);
    }
}
