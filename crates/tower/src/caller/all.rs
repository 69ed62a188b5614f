//! Rules that name a caller in combination: a credential *and* the account that it acts for.

use std::borrow::Cow;

use http::request::Parts;

use super::{CallerExtractor, CallerRefusal, Callers, Identified, bounded, first};
use semel::core::Caller;

/// One of several rules that name a caller in combination.
#[derive(Clone, Debug)]
pub(super) struct CallerComponent {
    /// The first of these that finds anything counts.
    rules: Vec<CallerExtractor>,
    /// Whether a request without it can have a caller.
    optional: bool,
}

impl CallerComponent {
    pub(super) fn may_be_anonymous(&self) -> bool {
        self.rules.iter().any(CallerExtractor::may_be_anonymous)
    }

    /// The token verifiers of its rules.
    #[cfg(feature = "jwt")]
    pub(super) fn verifiers(&self) -> Vec<&super::JwtVerifier> {
        self.rules.iter().flat_map(CallerExtractor::verifiers).collect()
    }
}

impl Callers {
    /// Combines the result of these rules with that of `other` into one caller: a platform's API
    /// key and the account that it acts for. A request with only one of the two has no caller, and
    /// the next rule is tried.
    ///
    /// ```
    /// use http::HeaderName;
    /// use semel_tower::{Callers, Secret};
    ///
    /// let secret = Secret::new("9f86d081884c7d659a2feaa0c55ad015")?;
    /// let account = Callers::header(HeaderName::from_static("stripe-account"))?;
    /// let callers = Callers::authorization(&secret).and(account);
    /// # let _ = callers;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// In the store such a caller is called `all:` and the names of its parts with `+` between
    /// them, where `%` and `+` of a name are written `%25` and `%2B`. A name that would be too long
    /// is hashed, after `all-sha256:`.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        self.join(other, false)
    }

    /// As [`Callers::and`], for a part that is optional: a request without it is another caller
    /// than any that has it. In the name of the caller, `-` stands for the absent part.
    #[must_use]
    pub fn and_optional(self, other: Self) -> Self {
        self.join(other, true)
    }

    fn join(mut self, other: Self, optional: bool) -> Self {
        let mut parts = match &mut self.rules[..] {
            [CallerExtractor::All(parts)] => std::mem::take(parts),
            _ => vec![CallerComponent { rules: std::mem::take(&mut self.rules), optional: false }],
        };
        parts.push(CallerComponent { rules: other.rules, optional });
        self.rules = vec![CallerExtractor::All(parts)];
        self.named.extend(other.named);
        self
    }
}

/// The caller of a request, if every required part is found.
pub(super) fn identify(
    joined: &[CallerComponent],
    parts: &Parts,
    callers: &Callers,
) -> Result<Option<Identified>, CallerRefusal> {
    let mut found = Vec::with_capacity(joined.len());
    for part in joined {
        match first(&part.rules, parts, callers)? {
            None if !part.optional => return Ok(None),
            one => found.push(one),
        }
    }
    let proven = found.iter().flatten().any(|one| one.proven);
    let shared = found.iter().flatten().all(|one| one.shared);
    let names: Vec<Cow<'_, str>> = found.iter().map(|one| name(one.as_ref())).collect();
    let name = bounded("all:", "all-sha256:", &names.join("+"));
    let caller = Caller::new(&name).map_err(|error| error.to_string())?;
    Ok(Some(Identified { caller, proven, shared }))
}

/// The name of a part. Every other caller's name contains a colon.
fn name(found: Option<&Identified>) -> Cow<'_, str> {
    match found {
        None => "-".into(),
        Some(one) if one.caller.is_anonymous() => "anonymous".into(),
        Some(one) => one.caller.as_str().replace('%', "%25").replace('+', "%2B").into(),
    }
}

/// What a client must send, for an error about missing parts.
pub(super) fn expects(parts: &[CallerComponent]) -> Option<String> {
    let expected = parts.iter().filter(|part| !part.optional).filter_map(|part| {
        let rules: Vec<String> = part.rules.iter().filter_map(CallerExtractor::expects).collect();
        (!rules.is_empty()).then(|| rules.join(" or "))
    });
    let expected: Vec<String> = expected.collect();
    (!expected.is_empty()).then(|| expected.join(" and "))
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, Request};
    use semel::core::Problem;

    use super::*;
    use crate::Secret;

    fn secret() -> Secret {
        Secret::new("0123456789abcdef").unwrap()
    }

    fn header(name: &'static str) -> Callers {
        Callers::header(HeaderName::from_static(name)).unwrap()
    }

    fn identify(callers: &Callers, lines: &[(&str, &str)]) -> Result<Identified, String> {
        let mut request = Request::post("/");
        for (name, value) in lines {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        callers.identify(&parts).map_err(|refusal| {
            assert_eq!(refusal.problem, Problem::CallerUnidentified);
            refusal.detail.unwrap().into_owned()
        })
    }

    fn who(callers: &Callers, lines: &[(&str, &str)]) -> String {
        identify(callers, lines).unwrap().caller.as_str().to_owned()
    }

    const AUTH: (&str, &str) = ("authorization", "Bearer sk_live_1");

    #[test]
    fn every_part_must_be_found() {
        let callers = Callers::authorization(&secret()).and(header("x-account"));
        let one = who(&callers, &[AUTH, ("x-account", "a")]);
        assert!(one.starts_with("all:auth:") && one.ends_with("+header:x-account:a"), "{one}");
        assert_ne!(one, who(&callers, &[AUTH, ("x-account", "b")]));
        let other = ("authorization", "Bearer sk_live_2");
        assert_ne!(one, who(&callers, &[other, ("x-account", "a")]));
        for lines in [&[AUTH][..], &[("x-account", "a")], &[]] {
            let detail = identify(&callers, lines).unwrap_err();
            assert!(detail.contains("Bearer token and a header x-account"), "{detail}");
        }
        let twice = [AUTH, ("x-account", "a"), ("x-account", "b")];
        assert!(identify(&callers, &twice).unwrap_err().contains("more than once"));
    }

    #[test]
    fn an_optional_part_that_is_absent_is_a_value_of_its_own() {
        let callers = Callers::authorization(&secret()).and_optional(header("x-account"));
        let absent = who(&callers, &[AUTH]);
        assert!(absent.ends_with("+-"), "{absent}");
        assert_ne!(absent, who(&callers, &[AUTH, ("x-account", "-")]));
        assert!(identify(&callers, &[("x-account", "a")]).is_err(), "the other part must be found");
        assert!(identify(&callers, &[AUTH, ("x-account", "")]).is_err(), "empty is not absent");
    }

    #[test]
    fn parts_with_equal_concatenation_give_distinct_callers() {
        let callers = header("a").and_optional(header("b")).and_optional(header("c"));
        let names = [
            who(&callers, &[("a", "1"), ("b", "2"), ("c", "3")]),
            who(&callers, &[("a", "1+header:b:2"), ("c", "3")]),
            who(&callers, &[("a", "1"), ("b", "2+header:c:3")]),
            who(&callers, &[("a", "1%2Bheader:b:2"), ("c", "3")]),
            who(&callers, &[("a", "1"), ("c", "3")]),
            who(&callers, &[("a", "1"), ("b", "3")]),
            who(&callers, &[("a", "1+-+-")]),
            who(&callers, &[("a", "1")]),
        ];
        for (index, one) in names.iter().enumerate() {
            assert!(!names.iter().skip(index + 1).any(|other| other == one), "{one}");
        }
    }

    #[test]
    fn parts_are_joined_in_one_list_and_may_have_alternatives() {
        let callers = header("a").and(header("b")).and(header("c").or(header("d")));
        assert_eq!(
            who(&callers, &[("a", "1"), ("b", "2"), ("d", "4")]),
            "all:header:a:1+header:b:2+header:d:4"
        );
        let either = callers.or(Callers::anonymous());
        assert_eq!(who(&either, &[]), "");
        assert!(identify(&either, &[("a", "1")]).is_err(), "what a rule names is a credential");
    }

    #[test]
    fn a_host_may_be_a_part() {
        let callers = Callers::host().and(Callers::anonymous());
        assert_eq!(
            who(&callers, &[("host", "Shop-A.example:80")]),
            "all:host:shop-a.example+anonymous"
        );
        assert!(identify(&callers, &[("host", "10.0.0.1")]).is_err());
        assert!(identify(&callers, &[("host", "shop-a.example"), ("cookie", "a=1")]).is_err());
    }

    #[test]
    fn a_caller_is_proven_if_one_of_its_parts_is() {
        let proven =
            |callers: &Callers, lines: &[(&str, &str)]| identify(callers, lines).unwrap().proven;
        let with_secret = Callers::authorization(&secret()).and(header("x-account"));
        assert!(proven(&with_secret, &[AUTH, ("x-account", "a")]));
        let without = Callers::host().and(header("x-account"));
        assert!(!proven(&without, &[("host", "a.example"), ("x-account", "a")]));
        let maybe = header("x-account").and_optional(Callers::authorization(&secret()));
        assert!(!proven(&maybe, &[("x-account", "a")]));
        assert!(proven(&maybe, &[("x-account", "a"), AUTH]));
    }

    #[test]
    fn a_caller_is_shared_if_all_of_its_parts_are() {
        let shared =
            |callers: &Callers, lines: &[(&str, &str)]| identify(callers, lines).unwrap().shared;
        let host = ("host", "a.example");
        assert!(shared(&Callers::host(), &[host]));
        assert!(shared(&Callers::anonymous(), &[]));
        assert!(shared(&Callers::host().and(Callers::anonymous()), &[host]));
        let maybe = Callers::host().and_optional(Callers::authorization(&secret()));
        assert!(shared(&maybe, &[host]));
        assert!(!shared(&maybe, &[host, AUTH]));
        assert!(!shared(&Callers::host().and(header("x-account")), &[host, ("x-account", "a")]));
        assert!(!shared(&header("x-account"), &[("x-account", "a")]));
    }

    #[test]
    fn a_name_that_is_too_long_is_hashed() {
        let callers = header("a").and(header("b"));
        let long = "x".repeat(200);
        let one = who(&callers, &[("a", &long), ("b", &long)]);
        assert!(one.starts_with("all-sha256:") && one.len() == 11 + 64, "{one}");
        assert_ne!(one, who(&callers, &[("a", &long), ("b", &"x".repeat(201))]));
    }
}
