//! The rules of a caller, one by one and in lists.

use http::{HeaderName, Request, request::Parts};
use semel::core::{Caller, Problem};

use super::*;

const MERCHANT: HeaderName = HeaderName::from_static("x-merchant-id");
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

fn secret() -> Secret {
    Secret::new("0123456789abcdef").unwrap()
}

fn request(lines: &[(&'static str, &'static str)]) -> Parts {
    let mut builder = Request::builder();
    for (name, value) in lines {
        builder = builder.header(*name, *value);
    }
    builder.body(()).unwrap().into_parts().0
}

fn who(callers: &Callers, lines: &[(&'static str, &'static str)]) -> Caller {
    callers.identify(&request(lines)).unwrap()
}

fn refused(callers: &Callers, lines: &[(&'static str, &'static str)]) -> String {
    let refusal = callers.identify(&request(lines)).unwrap_err();
    assert_eq!(refusal.problem, Problem::CallerUnidentified);
    refusal.detail.unwrap().into_owned()
}

#[test]
fn a_credential_is_a_hash_and_never_in_clear() {
    let callers = Callers::authorization(&secret());
    let one = who(&callers, &[("authorization", "Bearer sk_live_1")]);
    assert_eq!(one, who(&callers, &[("authorization", "bearer  sk_live_1")]));
    assert_ne!(one, who(&callers, &[("authorization", "Bearer sk_live_2")]));
    assert_ne!(one, who(&callers, &[("authorization", "Basic sk_live_1")]));
    assert!(one.as_str().starts_with("auth:") && one.as_str().len() == 37);
    let other = Callers::authorization(&Secret::new("0123456789abcdeF").unwrap());
    assert_ne!(one, who(&other, &[("authorization", "Bearer sk_live_1")]));
}

#[test]
fn a_credential_that_changes_is_refused_though_another_rule_would_do() {
    let callers = Callers::authorization(&secret()).or(Callers::header(MERCHANT));
    let jwt = ("authorization", "Bearer eyJhbGciOiJIUzI1NiJ9.e30.c2ln");
    assert!(refused(&callers, &[jwt, ("x-merchant-id", "7")]).contains("JSON Web Token"));
    let other_way_round = Callers::header(MERCHANT).or(Callers::authorization(&secret()));
    assert_eq!(
        who(&other_way_round, &[jwt, ("x-merchant-id", "7")]).as_str(),
        "header:x-merchant-id:7"
    );
}

#[test]
fn two_lines_are_refused() {
    let callers = Callers::authorization(&secret()).or(Callers::header(MERCHANT));
    let twice = [("authorization", "Basic a"), ("authorization", "Basic a")];
    assert!(refused(&callers, &twice).contains("more than once"));
    let twice = [("x-merchant-id", "7"), ("x-merchant-id", "8")];
    assert!(refused(&callers, &twice).contains("more than once"));
}

#[test]
fn equal_values_from_different_rules_are_different_callers() {
    let rules = [
        Callers::header(MERCHANT),
        Callers::credential_header(MERCHANT, &secret()),
        Callers::header(API_KEY),
        Callers::from_fn(|_| Caller::new("header:x-merchant-id:7").ok()),
    ];
    let lines = [("x-merchant-id", "7"), ("x-api-key", "7")];
    let found: Vec<_> = rules.iter().map(|rule| who(rule, &lines)).collect();
    for (index, one) in found.iter().enumerate() {
        assert!(found.iter().skip(index + 1).all(|other| other != one), "{one}");
    }
}

#[test]
fn a_plain_header_names_its_caller_or_refuses() {
    let callers = Callers::header(MERCHANT);
    assert_eq!(who(&callers, &[("x-merchant-id", " 7 ")]).as_str(), "header:x-merchant-id:7");
    assert!(refused(&callers, &[("x-merchant-id", "")]).contains("empty"));
    assert!(refused(&callers, &[]).contains("a header x-merchant-id"));
    let long: &'static str = Box::leak("7".repeat(300).into_boxed_str());
    assert!(refused(&callers, &[("x-merchant-id", long)]).contains("255"));
    let mut strange = request(&[]);
    strange.headers.insert(MERCHANT, HeaderValue::from_bytes(b"\xFF").unwrap());
    assert!(callers.identify(&strange).is_err());
    let mut control = request(&[]);
    control.headers.insert(MERCHANT, HeaderValue::from_bytes(b"a\tb").unwrap());
    assert!(callers.identify(&control).is_err());
}

#[test]
fn a_cookie_is_found_among_others() {
    let callers = Callers::cookie("sid", &secret());
    let one = who(&callers, &[("cookie", "a=1; sid=x; asid=3")]);
    assert_eq!(one, who(&callers, &[("cookie", "sid=x")]));
    assert_eq!(one, who(&callers, &[("cookie", "a=1"), ("cookie", "sid=x")]));
    assert_ne!(one, who(&callers, &[("cookie", "sid=y")]));
    assert!(refused(&callers, &[("cookie", "sid=x; sid=y")]).contains("two values"));
    assert!(refused(&callers, &[("cookie", "sid=; other=1")]).contains("a cookie sid"));
}

#[test]
fn anonymous_is_who_carries_no_credential_of_any_kind() {
    let callers = Callers::anonymous().or(Callers::header(MERCHANT));
    assert!(who(&callers, &[("accept", "*/*")]).is_anonymous());
    assert_eq!(who(&callers, &[("x-merchant-id", "7")]).as_str(), "header:x-merchant-id:7");
    for name in ["cookie", "x-api-key", "authorization", "x-forwarded-client-cert"] {
        assert!(refused(&callers, &[(name, "x")]).contains(name));
    }
}

#[test]
fn a_function_finds_whom_it_likes() {
    let callers = Callers::from_fn(|parts| {
        let tenant = parts.headers.get("x-tenant")?.to_str().ok()?;
        Caller::new(tenant).ok()
    });
    assert_eq!(who(&callers, &[("x-tenant", "t")]).as_str(), "fn:t");
    assert_eq!(refused(&callers, &[]), Problem::CallerUnidentified.detail());
}

#[test]
fn nothing_secret_is_printed() {
    let callers = Callers::authorization(&secret()).or(Callers::cookie("sid", &secret()));
    let printed = format!("{callers:?}");
    assert!(printed.contains("Cookie(sid)") && !printed.contains("0123"), "{printed}");
}
