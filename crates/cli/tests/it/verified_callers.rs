//! Callers that are verified: tokens, key sets that rotate or are away, headers from networks.

use std::{fs, io::Write as _, process::Stdio};

use http::HeaderValue;
use semel_testkit::issuer::{
    AUDIENCE, Algorithm, ISSUER, JwksAnswer, JwksServer, SigningKey, claims, claims_with, key_set,
    seconds_from_now, token_of,
};
use serde_json::json;

use crate::{
    client_certificates::Authority,
    common::{ClientRequest, Gateway, ORDER, Setup, Upstream, charge, local, semel_command},
};

fn jwt_rule(jwks: &str) -> String {
    format!(
        "caller = [{{ jwt = {{ jwks = \"{jwks}\", issuer = \"{ISSUER}\", audience = \"{AUDIENCE}\" \
         }} }}]"
    )
}

/// A gateway whose key set is a file.
fn with_file(upstream: &Upstream, keys: &[&SigningKey]) -> Setup {
    let setup = Setup::new(&upstream.url()).defaults(jwt_rule("jwks.json"));
    fs::write(setup.file().with_file_name("jwks.json"), key_set(keys)).unwrap();
    setup
}

fn with_token(key: &str, token: &str) -> ClientRequest {
    let mut request = charge(key, ORDER);
    let line = HeaderValue::try_from(format!("Bearer {token}")).unwrap();
    request.headers_mut().insert("authorization", line);
    request
}

async fn metric(gateway: &Gateway, line: &str) -> u64 {
    let text = crate::common::send(gateway.api(), local("/metrics")).await;
    let found = text.text().lines().find_map(|metric| metric.strip_prefix(line));
    found.unwrap_or_else(|| panic!("no {line}")).trim().parse().unwrap()
}

#[tokio::test]
async fn a_renewed_token_is_the_same_caller_and_another_subject_is_not() {
    let upstream = Upstream::plain().await;
    let key = SigningKey::generate("k", Algorithm::RS256);
    let gateway = with_file(&upstream, &[&key]).start().await;
    let first = gateway.send(with_token("a", &key.sign(&claims("zoe")))).await;
    assert_eq!(first.status.as_u16(), 201);
    let renewed = key.sign(&claims_with("zoe", &json!({ "jti": "another", "iat": 1 })));
    gateway.send(with_token("a", &renewed)).await.assert_replay_of(&first);
    assert_eq!(upstream.request_count(), 1);
    let other = gateway.send(with_token("a", &key.sign(&claims("max")))).await;
    assert!(!other.is_replayed());
    assert_eq!(upstream.request_count(), 2);
    let mut callers: Vec<String> =
        gateway.records().await.iter().map(|record| record.id.caller.to_string()).collect();
    callers.sort();
    assert_eq!(callers, ["jwt:https://issuer.example:max", "jwt:https://issuer.example:zoe"]);
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn forged_expired_and_foreign_tokens_reach_nothing() {
    let upstream = Upstream::plain().await;
    let key = SigningKey::generate("k", Algorithm::RS256);
    let gateway = with_file(&upstream, &[&key]).start().await;
    let changed = |changes| key.sign(&claims_with("zoe", &changes));
    let unsigned = token_of(&json!({ "alg": "none", "kid": "k" }), &claims("zoe"), b"");
    let jwk = key.jwk();
    let public = SigningKey::secret("k", jwk["n"].as_str().unwrap().as_bytes());
    let public_pem = SigningKey::secret("k", key.public_pem().as_bytes());
    let other_client = SigningKey::generate("k", Algorithm::RS256);
    for (token, status, slug) in [
        (unsigned, 401, "caller-unverified"),
        (public.sign(&claims("zoe")), 401, "caller-unverified"),
        (public_pem.sign(&claims("zoe")), 401, "caller-unverified"),
        (other_client.sign(&claims("zoe")), 401, "caller-unverified"),
        (other_client.named("x").sign(&claims("zoe")), 401, "caller-unverified"),
        (changed(json!({ "exp": seconds_from_now(-70) })), 401, "caller-unverified"),
        (changed(json!({ "nbf": seconds_from_now(3600) })), 401, "caller-unverified"),
        (changed(json!({ "iss": "https://other.example" })), 403, "caller-unidentified"),
        (changed(json!({ "aud": "refunds" })), 403, "caller-unidentified"),
        ("opaque".to_owned(), 401, "caller-unverified"),
    ] {
        let answer = gateway.send(with_token("a", &token)).await;
        answer.assert_problem(status, slug);
        let challenge = answer.header("www-authenticate");
        assert_eq!(challenge.is_some(), status == 401, "{answer:?}");
        assert!(challenge.is_none_or(|text| text.starts_with("Bearer ")), "{answer:?}");
    }
    let none = gateway.send(charge("a", ORDER)).await;
    none.assert_problem(401, "caller-unverified");
    assert_eq!(none.header("www-authenticate"), Some("Bearer realm=\"semel\""));
    assert_eq!(upstream.request_count(), 0);
    assert!(gateway.records().await.is_empty());
    for (reason, count) in [
        ("token-malformed", 1),
        ("algorithm", 2),
        ("signature", 1),
        ("key-unknown", 1),
        ("expired", 1),
        ("not-yet-valid", 1),
        ("issuer", 1),
        ("audience", 1),
        ("token-missing", 2),
    ] {
        let line = format!("semel_caller_failures_total{{reason=\"{reason}\"}}");
        assert_eq!(metric(&gateway, &line).await, count, "{reason}");
    }
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_route_that_observes_counts_bad_tokens_and_refuses_none() {
    let upstream = Upstream::plain().await;
    let key = SigningKey::generate("k", Algorithm::ES256);
    let gateway = with_file(&upstream, &[&key]).defaults("mode = \"observe\"").start().await;
    let expired = key.sign(&claims_with("zoe", &json!({ "exp": 1 })));
    assert_eq!(gateway.send(with_token("a", &expired)).await.status.as_u16(), 201);
    assert_eq!(upstream.request_count(), 1);
    let line = "semel_caller_failures_total{reason=\"expired\"}";
    assert_eq!(metric(&gateway, line).await, 1);
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_key_is_rotated_while_the_gateway_serves() {
    let upstream = Upstream::plain().await;
    let [old, new] = ["old", "new"].map(|kid| SigningKey::generate(kid, Algorithm::ES256));
    let server = JwksServer::start(JwksAnswer::Text(key_set(&[&old]))).await;
    let gateway = Setup::new(&upstream.url()).defaults(jwt_rule(&server.url())).start().await;
    let first = gateway.send(with_token("a", &old.sign(&claims("zoe")))).await;
    assert_eq!(first.status.as_u16(), 201);
    server.set(JwksAnswer::Text(key_set(&[&new])));
    let renewed = new.sign(&claims("zoe"));
    let replayed = loop {
        let answer = gateway.send(with_token("a", &renewed)).await;
        if answer.status.as_u16() != 503 {
            break answer;
        }
        answer.assert_problem(503, "caller-unavailable");
    };
    replayed.assert_replay_of(&first);
    let left = loop {
        let answer = gateway.send(with_token("b", &old.sign(&claims("zoe")))).await;
        if answer.status.as_u16() != 503 {
            break answer;
        }
        answer.assert_problem(503, "caller-unavailable");
    };
    left.assert_problem(401, "caller-unverified");
    assert_eq!(upstream.request_count(), 1);
    // The issuer goes away: what is known still verifies.
    server.set(JwksAnswer::Error);
    gateway.send(with_token("a", &renewed)).await.assert_replay_of(&first);
    assert_eq!(server.requests(), 3, "one at the start, one for each unknown key");
    let line = format!("semel_jwks_age_seconds{{source=\"{}\"}}", server.url());
    assert!(metric(&gateway, &line).await < 3600);
    gateway.assert_clean_shutdown().await;
}

/// The gateway trusts the CAs of the system, here those in `SSL_CERT_FILE`.
#[tokio::test]
async fn a_key_set_is_fetched_over_https_from_an_issuer_that_a_ca_certifies() {
    let upstream = Upstream::plain().await;
    let key = SigningKey::generate("k", Algorithm::ES256);
    let server = JwksServer::start(JwksAnswer::Text(key_set(&[&key]))).await;
    let (authority, other) = (Authority::new(), Authority::new());
    let url = authority.serve_tls_before(server.address()).await;
    for (trusted, status) in [(&authority, 201), (&other, 503)] {
        let setup = Setup::new(&upstream.url()).defaults(jwt_rule(&format!("{url}/jwks.json")));
        let ca = setup.file().with_file_name("ca.pem");
        fs::write(&ca, trusted.pem()).unwrap();
        let setup = setup.environment("SSL_CERT_FILE", ca.to_str().unwrap());
        let gateway = setup.start().await;
        let answer = gateway.send(with_token("a", &key.sign(&claims("zoe")))).await;
        assert_eq!(answer.status.as_u16(), status, "{answer:?}");
        gateway.assert_clean_shutdown().await;
    }
    assert_eq!((upstream.request_count(), server.requests()), (1, 1));
}

#[tokio::test]
async fn without_keys_nothing_is_verified_and_nothing_is_refused_for_good() {
    let key = SigningKey::generate("k", Algorithm::ES256);
    let token = key.sign(&claims("zoe"));
    for answer in [JwksAnswer::Error, JwksAnswer::Silence, JwksAnswer::Endless] {
        let upstream = Upstream::plain().await;
        let server = JwksServer::start(answer.clone()).await;
        let gateway = Setup::new(&upstream.url()).defaults(jwt_rule(&server.url())).start().await;
        let refused = gateway.send(with_token("a", &token)).await;
        refused.assert_problem(503, "caller-unavailable");
        assert_eq!(upstream.request_count(), 0, "{answer:?}");
        server.set(JwksAnswer::Text(key_set(&[&key])));
        loop {
            let answer = gateway.send(with_token("a", &token)).await;
            if answer.status.as_u16() == 201 {
                break;
            }
            answer.assert_problem(503, "caller-unavailable");
        }
        assert_eq!(upstream.request_count(), 1);
        let line = format!("semel_jwks_refresh_failures_total{{source=\"{}\"}}", server.url());
        assert!(metric(&gateway, &line).await >= 1, "{answer:?}");
        gateway.assert_clean_shutdown().await;
    }
}

#[tokio::test]
async fn a_header_is_believed_from_its_networks_alone() {
    let upstream = Upstream::plain().await;
    let rule = |network: &str| {
        format!(
            "caller = [{{ header = \"X-Merchant-Id\", from = [\"{network}\"] }}, \"anonymous\"]"
        )
    };
    let spoofed = || {
        let mut request = charge("a", ORDER);
        request.headers_mut().insert("x-merchant-id", HeaderValue::from_static("7"));
        request.headers_mut().insert("x-forwarded-for", HeaderValue::from_static("10.0.0.1"));
        request.headers_mut().insert("forwarded", HeaderValue::from_static("for=10.0.0.1"));
        request
    };
    let gateway = Setup::new(&upstream.url()).defaults(rule("10.0.0.0/8")).start().await;
    gateway.send(spoofed()).await.assert_problem(403, "caller-unidentified");
    assert_eq!(upstream.request_count(), 0);
    assert_eq!(metric(&gateway, "semel_caller_failures_total{reason=\"network\"}").await, 1);
    assert_eq!(gateway.send(charge("b", ORDER)).await.status.as_u16(), 201, "without the header");
    gateway.assert_clean_shutdown().await;
    let gateway = Setup::new(&upstream.url()).defaults(rule("127.0.0.0/8")).start().await;
    assert_eq!(gateway.send(spoofed()).await.status.as_u16(), 201);
    let records = gateway.records().await;
    assert_eq!(records[0].id.caller.as_str(), "header:x-merchant-id:7");
    gateway.assert_clean_shutdown().await;
}

/// Runs `semel caller` in the folder of a gateway.
pub(crate) fn name_of(setup: &Setup, arguments: &[&str], value: &str) -> (String, String) {
    let mut child = semel_command()
        .current_dir(setup.file().parent().unwrap())
        .args(["caller", "--config", "semel.toml"])
        .args(arguments)
        .env("SEMEL_SECRET", "a secret that all share")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(value.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let (said, noted) = (text(output.stdout), text(output.stderr));
    assert!(output.status.success(), "{noted}");
    let shows = |text: &str| !value.is_empty() && text.contains(value.trim());
    assert!(!shows(&said) && !shows(&noted), "it shows a secret");
    (said.trim_end().to_owned(), noted)
}

#[tokio::test]
async fn an_operator_finds_the_name_of_a_caller() {
    let upstream = Upstream::plain().await;
    let key = SigningKey::generate("k", Algorithm::ES256);
    let mut setup = with_file(&upstream, &[&key]);
    setup = setup.defaults("").tables(
        "[[route]]\nmatch = \"POST /charges\"\nscope = \"charges\"\n\
         [[route]]\nmatch = \"POST /orders\"\nscope = \"orders\"\n\
         caller = [\"authorization\", { cookie = \"sid\" }]",
    );
    let gateway = setup.start().await;
    let token = key.sign(&claims("zoe"));
    assert_eq!(gateway.send(with_token("a", &token)).await.status.as_u16(), 201);
    let stored = gateway.records().await[0].id.caller.to_string();
    let (name, noted) = name_of(&setup, &["--scope", "charges", "--jwt"], &format!("{token}\n"));
    assert_eq!(name, stored);
    assert!(noted.contains("nothing was verified"), "{noted}");
    let expired = key.sign(&claims_with("zoe", &json!({ "exp": 1 })));
    assert_eq!(name_of(&setup, &["--route", "POST /charges", "--jwt"], &expired).0, stored);
    let mut order = charge("b", ORDER);
    *order.uri_mut() = "/orders".parse().unwrap();
    order.headers_mut().insert("authorization", HeaderValue::from_static("Bearer sk_live_7"));
    assert_eq!(gateway.send(order).await.status.as_u16(), 201);
    let (name, noted) =
        name_of(&setup, &["--scope", "orders", "--authorization"], "Bearer sk_live_7\n");
    let known = gateway.records().await.iter().any(|record| record.id.caller.as_str() == name);
    assert!(known && name.starts_with("auth:") && noted.is_empty(), "{name} {noted}");
    let (cookie, _) = name_of(&setup, &["--scope", "orders", "--cookie", "sid"], "session-7");
    assert!(cookie.starts_with("cookie:sid:"), "{cookie}");
    gateway.assert_clean_shutdown().await;
}
