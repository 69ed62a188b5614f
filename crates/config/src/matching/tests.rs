//! Which requests routes take, by example and against a naive matcher.

use proptest::prelude::*;

use super::*;

fn parse(text: &str) -> Match {
    Match::parse(text).unwrap()
}

/// Whether a route takes a POST to a path.
fn takes(text: &str, path: &str) -> bool {
    parse(text).takes(&Method::POST, None, &normal_path(path))
}

#[test]
fn a_star_is_one_piece_and_two_are_any_number() {
    for (wanted, path, taken) in [
        ("/", "/", true),
        ("/", "/a", false),
        ("/**", "/", true),
        ("/**", "/a/b/c", true),
        ("/v1/payments", "/v1/payments", true),
        ("/v1/payments", "/v1/payments/", true),
        ("/v1/payments/", "/v1/payments", true),
        ("/v1/payments", "/v1//payments", true),
        ("/v1/payments", "/v1/x/../payments", true),
        ("/v1/payments", "/v1/%70ayments", true),
        ("/v1/payments", "/v1/payments2", false),
        ("/v1/payments", "/V1/payments", false),
        ("/v1/*", "/v1", false),
        ("/v1/*", "/v1/", false),
        ("/v1/*", "/v1/a", true),
        ("/v1/*", "/v1/a/b", false),
        ("/v1/**", "/v1", true),
        ("/v1/**", "/v1/a/b", true),
        ("/v1/**", "/v10", false),
        ("/**/refunds", "/refunds", true),
        ("/**/refunds", "/a/b/refunds", true),
        ("/**/refunds", "/a/refunds/b", false),
        ("/**/a/**/b", "/a/x/a/y/b/b", true),
        ("/**/a/**/b", "/b/a", false),
        ("/pay*", "/pay", true),
        ("/pay*", "/payments", true),
        ("/*ments", "/payments", true),
        ("/p*m*s", "/payments", true),
        ("/p*m*s", "/payment", false),
        ("/caf\u{e9}", "/caf%c3%A9", true),
        ("/a%2fb", "/a%2Fb", true),
        ("/a%2Fb", "/a/b", false),
    ] {
        assert_eq!(takes(wanted, path), taken, "{wanted} {path}");
    }
}

#[test]
fn methods_are_listed_or_any_or_post_and_patch() {
    let taken = |text: &str, method: &Method| parse(text).takes(method, None, "/x");
    for method in [Method::POST, Method::PATCH] {
        assert!(taken("/x", &method) && taken("POST,PATCH /x", &method) && taken("* /x", &method));
    }
    assert!(!taken("/x", &Method::PUT));
    assert!(!taken("POST /x", &Method::PATCH));
    assert!(taken("* /x", &Method::DELETE));
    assert!(taken("PURGE /x", &Method::from_bytes(b"PURGE").unwrap()));
}

#[test]
fn a_host_is_compared_without_case_and_port() {
    for (wanted, host, taken) in [
        ("api.example.com/x", Some("api.example.com"), true),
        ("api.example.com/x", Some("API.Example.com:8443"), true),
        ("api.example.com/x", Some("api.example.com."), true),
        ("api.example.com/x", Some("example.com"), false),
        ("api.example.com/x", None, false),
        ("API.example.com/x", Some("api.example.com"), true),
        ("*.example.com/x", Some("a.example.com"), true),
        ("*.example.com/x", Some("a.b.Example.com:80"), true),
        ("*.example.com/x", Some("example.com"), false),
        ("*.example.com/x", Some(".example.com"), false),
        ("*.example.com/x", Some("aexample.com"), false),
        ("[::1]/x", Some("[::1]:8080"), true),
        ("[::1]/x", Some("[::2]:8080"), false),
        ("/x", None, true),
        ("a.b/x", Some("\u{e9}.b"), false),
        ("*.b/x", Some("\u{e9}"), false),
    ] {
        assert_eq!(parse(wanted).takes(&Method::POST, host, "/x"), taken, "{wanted} {host:?}");
    }
}

#[test]
fn invalid_patterns_are_refused_with_the_reason() {
    let long = format!("/{}", "a/".repeat(65));
    for (text, message) in [
        ("", "write what to match: \"POST /v1/payments/**\""),
        ("POST", "a path begins with a slash: \"POST /v1/payments\""),
        ("POST v1", "a path begins with a slash: \"POST /v1/payments\""),
        ("POST PATCH /v1", "write methods, one space, then the path: \"POST,PATCH /v1\""),
        ("POST, /v1", "methods are separated by one comma: \"POST,PATCH /v1\""),
        ("post /v1", "methods are written in capitals: `POST`"),
        ("PSOT /v1", "there is no method `PSOT`; did you mean `POST`?"),
        ("P(ST /v1", "there is no method `P(ST`; did you mean `POST`?"),
        ("(((((( /v1", "this cannot be a method"),
        ("POST a.b:80/v1", "a host is matched without its port: `a.b`"),
        ("POST a.*.b/v1", "a host can have a star only at its beginning: `*.example.com`"),
        ("POST a@b/v1", "this cannot be a host; write \"POST api.example.com/v1/**\""),
        ("POST /v1?x=1", "a route matches the path only, without a query"),
        (&long, "a path has at most 64 segments"),
    ] {
        assert_eq!(Match::parse(text).unwrap_err(), message, "{text}");
    }
}

#[test]
fn a_route_covers_what_it_takes_all_of() {
    for (earlier, later, covered) in [
        ("/**", "/v1/payments", true),
        ("/**", "a.b/v1/**", true),
        ("/**", "* /v1", false),
        ("* /**", "PUT /v1", true),
        ("POST /v1", "/v1", false),
        ("POST,PUT,PATCH /v1", "/v1", true),
        ("/v1/*", "/v1/a", true),
        ("/v1/*", "/v1/a*", true),
        ("/v1/a*", "/v1/ab*", true),
        ("/v1/a*", "/v1/*", false),
        ("/v1/*", "/v1/**", false),
        ("/**/x", "/**/y/x", true),
        ("/**/x", "/**", false),
        ("a.b/**", "/v1", false),
        ("*.b/**", "a.b/v1", true),
        ("*.b/**", "*.a.b/v1", true),
        ("*.a.b/**", "*.b/v1", false),
    ] {
        assert_eq!(parse(earlier).covers(&parse(later)), covered, "{earlier} {later}");
    }
}

#[test]
fn many_stars_take_no_longer_than_the_product_of_the_lengths() {
    let stars = parse(&format!("/{}b", "**/a/".repeat(31)));
    let path = "/a".repeat(4000);
    assert!(!stars.takes(&Method::POST, None, &path));
    let inside = parse(&format!("/{}b", "*a".repeat(500)));
    assert!(!inside.takes(&Method::POST, None, &format!("/{}", "a".repeat(8000))));
}

/// The definition, without care for the time.
fn naive(wanted: &[Segment], segments: &[&str]) -> bool {
    match (wanted.split_first(), segments.split_first()) {
        (None, None) => true,
        (Some((Segment::Any, after)), _) => {
            (0..=segments.len()).any(|taken| naive(after, &segments[taken..]))
        }
        (Some((Segment::One, after)), Some((_, rest))) => naive(after, rest),
        (Some((Segment::Text(text), after)), Some((segment, rest))) => {
            naive_text(text, segment) && naive(after, rest)
        }
        (None, Some(_)) | (Some(_), None) => false,
    }
}

fn naive_text(wanted: &str, text: &str) -> bool {
    match wanted.strip_prefix('*') {
        Some(after) => (0..=text.len()).any(|taken| naive_text(after, &text[taken..])),
        None if wanted.is_empty() => text.is_empty(),
        None => text.starts_with(&wanted[..1]) && naive_text(&wanted[1..], &text[1..]),
    }
}

fn pattern() -> impl Strategy<Value = String> {
    proptest::collection::vec("[ab*]{1,3}|\\*|\\*\\*", 0..6)
        .prop_map(|segments| format!("/{}", segments.join("/")))
}

fn path() -> impl Strategy<Value = String> {
    proptest::collection::vec("[ab]{1,3}", 0..6)
        .prop_map(|segments| format!("/{}", segments.join("/")))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_route_takes_what_the_definition_says(pattern in pattern(), path in path()) {
        let matches = parse(&pattern);
        let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
        let taken = matches.takes(&Method::POST, None, &path);
        prop_assert_eq!(taken, naive(&matches.path, &segments));
    }

    #[test]
    fn a_covered_pattern_matches_only_what_the_other_matches(
        one in pattern(),
        other in pattern(),
        path in path(),
    ) {
        let (one, other) = (parse(&one), parse(&other));
        if one.covers(&other) && other.takes(&Method::POST, None, &path) {
            prop_assert!(one.takes(&Method::POST, None, &path));
        }
    }

    #[test]
    fn a_route_reads_back_as_it_was_written(pattern in pattern(), host in "(\\*\\.)?[a-z]{1,3}|") {
        let matches = parse(&format!("POST {host}{pattern}"));
        prop_assert_eq!(parse(&matches.to_string()), matches);
    }
}
