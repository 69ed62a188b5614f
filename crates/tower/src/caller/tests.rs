//! The rules of a caller, one by one and in lists.

use http::{HeaderName, HeaderValue, Request, request::Parts};
use semel::core::{Caller, Problem};

use super::*;

const MERCHANT: HeaderName = HeaderName::from_static("x-merchant-id");
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

fn secret() -> Secret {
    Secret::new("0123456789abcdef").unwrap()
}

fn plain() -> Callers {
    Callers::header(MERCHANT).unwrap()
}

/// The caller whom the header `x-tenant` names.
fn tenant() -> Callers {
    Callers::from_fn(|parts| {
        let tenant = parts.headers.get("x-tenant");
        tenant.map(|tenant| Caller::new(&String::from_utf8_lossy(tenant.as_bytes()))).transpose()
    })
}

fn request(lines: &[(&'static str, &'static str)]) -> Parts {
    let mut builder = Request::builder();
    for (name, value) in lines {
        builder = builder.header(*name, *value);
    }
    builder.body(()).unwrap().into_parts().0
}

fn who(callers: &Callers, lines: &[(&'static str, &'static str)]) -> Caller {
    callers.identify(&request(lines)).unwrap().caller
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
    let callers = Callers::authorization(&secret()).or(plain());
    let jwt = ("authorization", "Bearer eyJhbGciOiJIUzI1NiJ9.e30.c2ln");
    assert!(refused(&callers, &[jwt, ("x-merchant-id", "7")]).contains("JSON Web Token"));
    let other_way_round = plain().or(Callers::authorization(&secret()));
    assert_eq!(
        who(&other_way_round, &[jwt, ("x-merchant-id", "7")]).as_str(),
        "header:x-merchant-id:7"
    );
}

#[test]
fn two_lines_are_refused() {
    let callers = Callers::authorization(&secret()).or(plain());
    let twice = [("authorization", "Basic a"), ("authorization", "Basic a")];
    assert!(refused(&callers, &twice).contains("more than once"));
    let twice = [("x-merchant-id", "7"), ("x-merchant-id", "8")];
    assert!(refused(&callers, &twice).contains("more than once"));
}

#[test]
fn equal_values_from_different_rules_are_different_callers() {
    let rules = [
        plain(),
        Callers::credential_header(MERCHANT, &secret()),
        Callers::credential_header(API_KEY, &secret()),
        Callers::from_fn(|_| Caller::new("header:x-merchant-id:7").map(Some)),
    ];
    let lines = [("x-merchant-id", "7"), ("x-api-key", "7")];
    let found: Vec<_> = rules.iter().map(|rule| who(rule, &lines)).collect();
    for (index, one) in found.iter().enumerate() {
        assert!(found.iter().skip(index + 1).all(|other| other != one), "{one}");
    }
}

#[test]
fn a_plain_header_names_its_caller_or_refuses() {
    let callers = plain();
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
    let callers = Callers::anonymous().or(plain());
    assert!(who(&callers, &[("accept", "*/*")]).is_anonymous());
    assert_eq!(who(&callers, &[("x-merchant-id", "7")]).as_str(), "header:x-merchant-id:7");
    for name in ["cookie", "x-api-key", "authorization", "x-forwarded-client-cert"] {
        assert!(refused(&callers, &[(name, "x")]).contains(name));
    }
}

#[test]
fn an_unidentified_caller_learns_why_and_which_setting_the_route_needs() {
    let callers = Callers::anonymous().or(plain());
    for (name, rule) in [
        ("authorization", "\"authorization\""),
        ("cookie", "{ cookie = \"NAME\" }"),
        ("x-trackertoken", "{ credential = \"x-trackertoken\" }"),
        ("x-consumer-id", "{ header = \"x-consumer-id\" }"),
    ] {
        let detail = refused(&callers, &[(name, "x")]);
        assert!(detail.contains(&format!("carries a header {name}, ")), "{detail}");
        assert!(detail.contains(&format!("caller = [{rule}, \"anonymous\"]")), "{detail}");
    }
    let long = format!("/?a=1;{}token=x", "x".repeat(5000));
    for (uri, shown) in [("/?a=1;PHPSESSID=x", "PHPSESSID"), (&*long, "xxxx")] {
        let request = Request::post(uri).body(()).unwrap().into_parts().0;
        let detail = callers.identify(&request).unwrap_err().detail.unwrap();
        assert!(detail.contains(&format!("the query of the request has {shown}")), "{detail}");
        assert!(detail.len() < 300, "{detail}");
    }
}

#[test]
fn headers_read_for_the_key_or_fingerprint_are_no_credential() {
    let mut callers = Callers::anonymous();
    assert!(refused(&callers, &[("x-order-key", "7")]).contains("x-order-key"));
    callers.set_read(vec![HeaderName::from_static("x-order-key")]);
    assert!(who(&callers, &[("x-order-key", "7")]).is_anonymous());
    // A rule that names the header counts more.
    let mut callers = Callers::anonymous().or(Callers::credential_header(API_KEY, &secret()));
    callers.set_read(vec![API_KEY]);
    assert!(!who(&callers, &[("x-api-key", "7")]).is_anonymous());
}

#[test]
fn a_host_names_its_caller_unless_it_is_an_address() {
    let callers = Callers::host();
    let one = who(&callers, &[("host", "Shop-A.example:8443")]);
    assert_eq!(one.as_str(), "host:shop-a.example");
    assert_ne!(one, who(&callers, &[("host", "shop-b.example")]));
    for lines in [&[("host", "10.0.0.7:8080")][..], &[]] {
        assert!(refused(&callers, lines).contains("a Host that is a name"));
    }
    let long: &'static str = Box::leak("h".repeat(251).into_boxed_str());
    let name = who(&callers, &[("host", long)]);
    assert!(name.as_str().starts_with("host-sha256:"), "{name}");
}

#[test]
fn only_a_secret_of_the_caller_proves_its_identity() {
    let proven = |callers: Callers| {
        let lines = [("host", "a.example"), ("x-merchant-id", "7"), ("x-api-key", "k")];
        callers.identify(&request(&lines)).unwrap().proven
    };
    assert!(proven(Callers::credential_header(API_KEY, &secret())));
    assert!(proven(Callers::from_fn(|_| Caller::new("t").map(Some))));
    assert!(!proven(plain()));
    assert!(!proven(Callers::host()));
    assert!(!Callers::anonymous().identify(&request(&[])).unwrap().proven);
    let auth = Callers::authorization(&secret());
    assert!(auth.identify(&request(&[("authorization", "Basic a")])).unwrap().proven);
    let cookie = Callers::cookie("sid", &secret());
    assert!(cookie.identify(&request(&[("cookie", "sid=x")])).unwrap().proven);
}

#[test]
fn a_function_finds_whom_it_likes() {
    assert_eq!(who(&tenant(), &[("x-tenant", "t")]).as_str(), "fn:t");
    assert_eq!(refused(&tenant(), &[]), Problem::CallerUnidentified.detail());
}

#[test]
fn a_caller_that_a_function_rejects_is_not_anonymous() {
    let callers = tenant().or(Callers::anonymous());
    assert!(who(&callers, &[]).is_anonymous());
    assert!(refused(&callers, &[("x-tenant", "")]).contains("a caller's name is empty"));
    let long: &'static str = Box::leak("t".repeat(256).into_boxed_str());
    assert!(refused(&callers, &[("x-tenant", long)]).contains("256 bytes"));
}

#[test]
fn a_long_name_from_a_function_is_hashed() {
    let name = |length| {
        let callers = Callers::from_fn(move |_| Caller::new(&"c".repeat(length)).map(Some));
        who(&callers, &[]).as_str().to_owned()
    };
    assert_eq!(name(252), format!("fn:{}", "c".repeat(252)));
    for length in [253, 255] {
        assert!(name(length).starts_with("fn-sha256:") && name(length).len() == 10 + 64);
    }
    assert_ne!(name(253), name(255));
}

#[test]
fn a_plain_header_is_never_a_secret() {
    for name in ["authorization", "proxy-authorization", "cookie", "x-api-key", "x-auth-token"] {
        let error = Callers::header(HeaderName::from_static(name)).unwrap_err();
        assert!(error.to_string().contains(name) && error.to_string().contains("credential"));
    }
    for name in ["x-merchant-id", "x-forwarded-user", "x-ms-client-principal-id"] {
        assert!(Callers::header(HeaderName::from_static(name)).is_ok(), "{name}");
    }
}

#[test]
fn debug_output_contains_no_secret() {
    let callers = Callers::authorization(&secret()).or(Callers::cookie("sid", &secret()));
    let printed = format!("{callers:?}");
    assert!(printed.contains("Cookie(sid)") && !printed.contains("0123"), "{printed}");
}

#[test]
fn a_header_is_believed_from_its_networks_and_never_treated_as_absent() {
    let networks = ["10.0.0.0/8", "::1"].map(|text| text.parse().unwrap());
    let callers = Callers::header_from(MERCHANT, networks).unwrap().or(Callers::anonymous());
    let from = |address: Option<&str>, lines: &[(&'static str, &'static str)]| {
        let mut parts = request(lines);
        if let Some(address) = address {
            let address = Some(address.parse().unwrap());
            parts.extensions.insert(ClientContext { address, ..ClientContext::default() });
        }
        callers.identify(&parts)
    };
    let line = [("x-merchant-id", "7")];
    for address in ["10.1.2.3", "::1", "::ffff:10.0.0.1"] {
        let found = from(Some(address), &line).unwrap();
        assert!(found.proven && found.caller.as_str() == "header:x-merchant-id:7", "{address}");
    }
    for address in [Some("11.0.0.1"), Some("::2"), None] {
        let refusal = from(address, &line).unwrap_err();
        assert_eq!(refusal.problem, Problem::CallerUnidentified);
        assert_eq!(refusal.caller_failure, Some(CallerFailure::Network));
        assert!(from(address, &[]).unwrap().caller.is_anonymous(), "there is no header");
    }
    let named = callers.name_unverified(&request(&line)).unwrap();
    assert_eq!(named.as_str(), "header:x-merchant-id:7");
}

#[test]
fn the_hint_for_a_token_names_the_rule_that_verifies_it() {
    let callers = Callers::authorization(&secret());
    let jwt = refused(&callers, &[("authorization", "Bearer eyJhbGciOiJIUzI1NiJ9.e30.c2ln")]);
    assert!(jwt.contains("caller = [{ jwt = { jwks = \"https://ISSUER"), "{jwt}");
    let paseto = refused(&callers, &[("authorization", "Bearer v4.public.eyJzdWIiOiIxIn0")]);
    assert!(!paseto.contains("jwks"), "{paseto}");
}
