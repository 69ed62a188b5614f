//! What routes were, remembered by the store: a configuration that would lose records is refused.

use std::fs;

use http::HeaderValue;

use crate::{
    common::{ClientRequest, Gateway, ORDER, Setup, Upstream, charge},
    operators::reaches,
    reloads::{reload, semel_reload},
};

const ROUTE: &str = "[[route]]\nmatch = \"POST,PATCH /**\"\nscope = \"payments\"\n";
const WAS: &str = "was = { scope = \"default\" }\n";

/// Sends a reload that must be refused with this in its reason.
async fn refused(gateway: &Gateway, reason: &str) {
    let refusals = |gateway: &Gateway| {
        let log = gateway.log_lines();
        log.iter().filter(|line| line.contains("keeping the previous configuration")).count()
    };
    let before = refusals(gateway);
    gateway.signal("HUP");
    crate::common::wait_until(|| refusals(gateway) > before).await;
    gateway.wait_for_log(reason).await;
}

fn credentialed(key: &str) -> ClientRequest {
    let mut request = charge(key, ORDER);
    request.headers_mut().insert("authorization", HeaderValue::from_static("Bearer opaque"));
    request
}

#[tokio::test]
async fn the_first_route_finds_what_ran_under_the_implicit_one() {
    let upstream = Upstream::plain().await;
    let open = Setup::new(&upstream.url());
    let gateway = open.start().await;
    let first = gateway.send(charge("k", ORDER)).await;
    assert_eq!(first.status, 201);

    open.clone().tables(ROUTE).write();
    refused(&gateway, "the scope was \"default\" and is \"payments\"").await;
    gateway.wait_for_log("was = { scope = \"default\" }").await;
    gateway.send(charge("k", ORDER)).await.assert_replay_of(&first);

    let was = open.clone().tables(format!("{ROUTE}{WAS}"));
    was.write();
    reload(&gateway).await;
    gateway.send(charge("k", ORDER)).await.assert_replay_of(&first);
    gateway.send(charge("k", "{}")).await.assert_problem(422, "key-reused");
    assert_eq!(upstream.request_count(), 1);
    let second = gateway.send(charge("k2", ORDER)).await;
    assert_eq!((second.is_replayed(), upstream.request_count()), (false, 2));
    gateway.assert_clean_shutdown().await;

    // The store remembers it beyond the process.
    let gateway = was.start().await;
    gateway.send(charge("k", ORDER)).await.assert_replay_of(&first);
    gateway.send(charge("k2", ORDER)).await.assert_replay_of(&second);
    assert_eq!(upstream.request_count(), 2);
    gateway.assert_clean_shutdown().await;
    let back = open.spawn();
    back.wait_for_log("the scope was \"payments\" and is \"default\"").await;
    assert_eq!(back.wait_for_exit().await.code(), Some(64));
}

#[tokio::test]
async fn another_caller_rule_is_refused_until_an_operator_accepts_it() {
    const TOKEN: &str = "a-token-of-enough-characters";
    let upstream = Upstream::plain().await;
    let base = Setup::new(&upstream.url()).environment("OPERATORS", TOKEN);
    let scoped = |lines: &str| {
        let api = "[api]\noperator_token_env = \"OPERATORS\"\naudit = \"audit.jsonl\"\n";
        base.clone().tables(format!("{api}{ROUTE}{lines}"))
    };
    let gateway = scoped("").start().await;
    let first = gateway.send(charge("k", ORDER)).await;

    let changed = scoped("caller = [\"anonymous\"]\n");
    changed.write();
    refused(&gateway, "`caller` was [\"authorization\", \"anonymous\"] and is [\"anonymous\"]")
        .await;
    let done = semel_reload(&gateway, Some(TOKEN), &[]);
    assert!(!done.status.success(), "{done:?}");
    gateway.send(charge("k", ORDER)).await.assert_replay_of(&first);
    let done = semel_reload(&gateway, Some(TOKEN), &["--accept-identity-change", "--who=zoe"]);
    assert!(done.status.success(), "{done:?}");
    gateway.assert_clean_shutdown().await;

    scoped("").spawn().wait_for_log("semel serve --accept-identity-change").await;
    let gateway = scoped("").argument("--accept-identity-change").start().await;
    gateway.assert_clean_shutdown().await;
    let audit = base.file().with_file_name("audit.jsonl");
    let audit = fs::read_to_string(audit).unwrap();
    let accepted = audit.lines().filter(|line| line.contains("\"act\":\"accept-identity-change\""));
    let accepted: Vec<&str> = accepted.filter(|line| line.contains("`caller` was")).collect();
    assert_eq!(accepted.len(), 2, "{audit}");
    assert!(accepted.first().unwrap().contains("zoe"), "{audit}");
}

#[tokio::test]
async fn an_observed_request_is_not_executed_again_when_the_route_guards() {
    let upstream = Upstream::plain().await;
    let open = Setup::new(&upstream.url());
    let gateway = open.clone().defaults("mode = \"observe\"").start().await;
    assert_eq!(gateway.send(charge("k", ORDER)).await.status, 201);
    reaches(&gateway, "semel_store_seconds_count{operation=\"record\"}", 1).await;

    open.write();
    reload(&gateway).await;
    gateway.send(charge("k", ORDER)).await.assert_problem(410, "response-not-retained");
    gateway.send(charge("k", "{}")).await.assert_problem(422, "key-reused");
    assert_eq!(upstream.request_count(), 1);
    gateway.assert_clean_shutdown().await;
}

/// The same setup with this secret, and the former one.
pub(crate) fn with_secrets(base: &Setup, now: &str, before: Option<&str>) -> Setup {
    let head = base.text();
    let head = head.split("[gateway]").next().unwrap().replace("secret_env = \"SEMEL_SECRET\"", "");
    let before = before.map(|name| format!("secret_before_env = \"{name}\"\n"));
    base.clone()
        .environment("ONE", "the first secret, long")
        .environment("TWO", "the second secret, long")
        .environment("THREE", "the third secret, long")
        .head(&format!("{head}\nsecret_env = \"{now}\"\n{}", before.unwrap_or_default()))
}

#[tokio::test]
async fn two_rotations_within_the_retention_are_refused() {
    let upstream = Upstream::plain().await;
    let base = Setup::new(&upstream.url());
    with_secrets(&base, "ONE", None).start().await.assert_clean_shutdown().await;
    with_secrets(&base, "TWO", Some("ONE")).start().await.assert_clean_shutdown().await;
    let third = with_secrets(&base, "THREE", Some("TWO"));
    let refused = third.spawn();
    refused.wait_for_log("the former secret is no longer configured").await;
    assert_eq!(refused.wait_for_exit().await.code(), Some(64));
    // The refused start has changed nothing.
    with_secrets(&base, "TWO", Some("ONE")).start().await.assert_clean_shutdown().await;
    third.argument("--accept-identity-change").start().await.assert_clean_shutdown().await;
}

/// As gateways are prepared for a secret to come.
#[tokio::test]
async fn a_secret_that_was_never_in_use_may_be_left_out_again() {
    let upstream = Upstream::plain().await;
    let base = Setup::new(&upstream.url());
    with_secrets(&base, "ONE", None).start().await.assert_clean_shutdown().await;
    with_secrets(&base, "ONE", Some("TWO")).start().await.assert_clean_shutdown().await;
    with_secrets(&base, "ONE", None).start().await.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_caller_is_found_under_the_former_secret() {
    let upstream = Upstream::plain().await;
    let base = Setup::new(&upstream.url());
    let keyed = |now: &str, before: Option<&str>| with_secrets(&base, now, before);
    let gateway = keyed("ONE", None).start().await;
    let first = gateway.send(credentialed("k")).await;
    gateway.assert_clean_shutdown().await;
    let other = keyed("TWO", None).spawn();
    other.wait_for_log("secret_before_env").await;
    assert!(!other.wait_for_exit().await.success());
    let gateway = keyed("TWO", Some("ONE")).start().await;
    gateway.send(credentialed("k")).await.assert_replay_of(&first);
    assert_eq!(upstream.request_count(), 1);
    let second = gateway.send(credentialed("k2")).await;
    gateway.assert_clean_shutdown().await;
    // Within the retention the first one is still needed, unless an operator accepts the loss.
    let refused = keyed("TWO", None).spawn();
    refused.wait_for_log("the former secret is no longer configured").await;
    refused.wait_for_log("semel serve --accept-identity-change").await;
    assert_eq!(refused.wait_for_exit().await.code(), Some(64));
    let gateway = keyed("TWO", None).argument("--accept-identity-change").start().await;
    // It was written under the second.
    gateway.send(credentialed("k2")).await.assert_replay_of(&second);
    gateway.assert_clean_shutdown().await;
    // It is accepted once.
    let gateway = keyed("TWO", None).start().await;
    gateway.send(credentialed("k2")).await.assert_replay_of(&second);
    assert_eq!(upstream.request_count(), 2);
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_shorter_retention_loses_no_record_under_the_former_secret() {
    let upstream = Upstream::plain().await;
    let base = Setup::new(&upstream.url());
    let short = base.clone().defaults("retention = \"1s\"\nlease = \"1s\"");
    let gateway = with_secrets(&base, "ONE", None).start().await;
    let first = gateway.send(credentialed("k")).await;
    gateway.assert_clean_shutdown().await;
    let gateway = with_secrets(&short, "TWO", Some("ONE")).start().await;
    // The shorter retention passes; the record has the longer one.
    tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
    gateway.send(credentialed("k")).await.assert_replay_of(&first);
    assert_eq!(upstream.request_count(), 1);
    gateway.assert_clean_shutdown().await;
    let refused = with_secrets(&short, "TWO", None).spawn();
    refused.wait_for_log("the former secret is no longer configured").await;
    assert_eq!(refused.wait_for_exit().await.code(), Some(64));
}

#[tokio::test]
async fn the_date_of_a_deprecation_stays_the_same() {
    let upstream = Upstream::plain().await;
    let setup = Setup::new(&upstream.url()).defaults("key = { required = \"warn\" }");
    let keyless = || {
        let mut request = charge("k", ORDER);
        request.headers_mut().remove("idempotency-key");
        request
    };
    let date = async |gateway: &Gateway| {
        let answer = gateway.send(keyless()).await;
        answer.header("deprecation").unwrap().to_owned()
    };
    let gateway = setup.start().await;
    let first = date(&gateway).await;
    // The header counts in seconds.
    tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
    reload(&gateway).await;
    assert_eq!(date(&gateway).await, first, "after a reload");
    gateway.assert_clean_shutdown().await;
    let gateway = setup.start().await;
    assert_eq!(date(&gateway).await, first, "after a restart");
    gateway.assert_clean_shutdown().await;
}

/// An address that is taken ends a start, which has served nothing and changes nothing.
#[tokio::test]
async fn a_start_that_fails_remembers_no_route() {
    let upstream = Upstream::plain().await;
    let open = Setup::new(&upstream.url());
    open.start().await.assert_clean_shutdown().await;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap().to_string();
    let was = open.clone().tables(format!("{ROUTE}{WAS}"));
    let failed = was.argument("--listen").argument(&taken).spawn();
    failed.wait_for_log("cannot listen on").await;
    assert!(!failed.wait_for_exit().await.success());
    open.start().await.assert_clean_shutdown().await;
}
