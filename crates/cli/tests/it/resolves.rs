//! What may happen to a held record: an operator says what became of it, and the next retry knows.

use std::process::Output;

use semel::core::StateName;

use crate::{
    common::{Gateway, ORDER, Reply, Setup, Upstream, charge, semel_command},
    operators::reaches,
    reloads::reload,
};

const TOKEN: &str = "a-token-of-enough-characters";

/// A gateway with a held key `k`, and an upstream that would answer well the second time.
async fn held() -> (Upstream, Gateway) {
    let upstream = Upstream::start(|request| match request.run {
        1 => Reply::closed(),
        _ => Reply::created(request),
    })
    .await;
    let setup = Setup::new(&upstream.url())
        .environment("OPERATORS", TOKEN)
        .tables("[api]\noperator_token_env = \"OPERATORS\"");
    let gateway = setup.start().await;
    gateway.send(charge("k", ORDER)).await.assert_problem(504, "upstream-timeout");
    gateway.send(charge("k", ORDER)).await.assert_problem(423, "outcome-unknown");
    (upstream, gateway)
}

/// Runs a command on the gateway's API.
fn operate(gateway: &Gateway, arguments: &[&str]) -> Output {
    let mut command = semel_command();
    command.args(arguments).args(["--server", &format!("http://{}", gateway.api())]);
    command.env("SEMEL_OPERATOR_TOKEN", TOKEN).output().unwrap()
}

#[tokio::test]
async fn a_held_record_resolved_as_completed_is_replayed() {
    let (upstream, gateway) = held().await;
    let resolve = ["resolve", "k", "--completed", "--status", "201", "--body", "charge 7"];
    let header = ["--header", "Location: /charges/7", "--why", "the ledger has it", "--yes"];
    let done = operate(&gateway, &[&resolve[..], &header].concat());
    assert!(done.status.success(), "{done:?}");
    for _ in 0..2 {
        let answer = gateway.send(charge("k", ORDER)).await;
        assert_eq!((answer.status.as_u16(), answer.text()), (201, "charge 7"));
        assert_eq!(answer.header("location"), Some("/charges/7"));
        assert!(answer.is_replayed());
    }
    assert_eq!(upstream.request_count(), 1);
    gateway.assert_clean_shutdown().await;
}

/// Two keys broke off while the route observed, and get 423 now that it guards.
#[tokio::test]
async fn an_unknown_outcome_of_an_observed_request_can_be_resolved() {
    let upstream = Upstream::start(|request| match (request.key(), request.run) {
        ("fine", _) => Reply::created(request),
        (_, 1) => Reply::closed(),
        _ => Reply::created(request),
    })
    .await;
    let setup = Setup::new(&upstream.url())
        .environment("OPERATORS", TOKEN)
        .tables("[api]\noperator_token_env = \"OPERATORS\"");
    let gateway = setup.clone().defaults("mode = \"observe\"").start().await;
    for key in ["happened", "not"] {
        gateway.send(charge(key, ORDER)).await.assert_problem(504, "upstream-timeout");
    }
    assert_eq!(gateway.send(charge("fine", ORDER)).await.status, 201);
    reaches(&gateway, "semel_store_seconds_count{operation=\"record\"}", 3).await;
    setup.write();
    reload(&gateway).await;
    for key in ["happened", "not"] {
        gateway.send(charge(key, ORDER)).await.assert_problem(423, "outcome-unknown");
    }

    let why = ["--why", "the ledger has it", "--yes"];
    let answer = ["--completed", "--status", "201", "--body", "charge 7"];
    for (key, outcome, good) in [
        ("happened", &answer[..], true),
        ("happened", &answer[..], false),
        ("not", &["--released"], true),
        ("fine", &["--released"], false),
    ] {
        let done = operate(&gateway, &[&["resolve", key], outcome, &why].concat());
        assert_eq!(done.status.success(), good, "{key}: {done:?}");
    }
    let answer = gateway.send(charge("happened", ORDER)).await;
    assert_eq!((answer.status.as_u16(), answer.text()), (201, "charge 7"));
    assert!(answer.is_replayed());
    gateway.send(charge("happened", "{}")).await.assert_problem(422, "key-reused");
    assert_eq!(gateway.send(charge("not", ORDER)).await.status, 201);
    gateway.send(charge("fine", ORDER)).await.assert_problem(410, "response-not-retained");
    let runs = ["happened", "not", "fine"].map(|key| upstream.requests_with_key(key).len());
    assert_eq!(runs, [1, 2, 1]);
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn an_answer_that_no_client_could_read_is_refused() {
    let (upstream, gateway) = held().await;
    let resolve = ["resolve", "k", "--completed", "--why", "the ledger has it", "--yes"];
    for answer in [
        ["--status", "200", "--body", "hello", "--header", "Content-Length: 50"],
        ["--status", "200", "--body", "hello", "--header", "Content-Length: 3"],
        ["--status", "200", "--body", "hello", "--header", "Transfer-Encoding: chunked"],
        ["--status", "204", "--body", "hello", "--header", "Location: /charges/7"],
    ] {
        let done = operate(&gateway, &[&resolve[..], &answer].concat());
        assert!(!done.status.success(), "{answer:?}: {done:?}");
        gateway.send(charge("k", ORDER)).await.assert_problem(423, "outcome-unknown");
    }
    let answer = ["--status", "200", "--body", "hello", "--header", "Content-Type: text/plain"];
    assert!(operate(&gateway, &[&resolve[..], &answer].concat()).status.success());
    let replayed = gateway.send(charge("k", ORDER)).await;
    assert_eq!((replayed.text(), replayed.header("content-length")), ("hello", Some("5")));
    assert_eq!(upstream.request_count(), 1);
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_held_record_resolved_as_released_runs_again() {
    let (upstream, gateway) = held().await;
    let arguments = ["resolve", "k", "--released", "--why", "the ledger has nothing", "--yes"];
    let done = operate(&gateway, &arguments);
    assert!(done.status.success(), "{done:?}");
    assert_eq!(gateway.state("k").await, Some(StateName::Released));
    let second = gateway.send(charge("k", ORDER)).await;
    assert_eq!((second.status.as_u16(), second.is_replayed()), (201, false));
    gateway.send(charge("k", ORDER)).await.assert_replay_of(&second);
    let runs = upstream.requests_with_key("k");
    assert_eq!((runs.len(), runs[1].attempt()), (2, 2));
    assert!(runs[0].fence() < runs[1].fence());
    let again = operate(&gateway, &arguments);
    assert!(!again.status.success(), "it is completed now: {again:?}");
    gateway.send(charge("k", ORDER)).await.assert_replay_of(&second);
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_deleted_record_is_a_new_key_within_a_second() {
    let (upstream, gateway) = held().await;
    gateway.send(charge("kept", ORDER)).await;
    let first = gateway.send(charge("cached", ORDER)).await;
    assert_eq!(first.slug(), "upstream-timeout");
    for key in ["k", "cached"] {
        let done = operate(&gateway, &["delete", key, "--why", "a test", "--yes"]);
        assert!(done.status.success(), "{done:?}");
        assert_eq!(gateway.state(key).await, None);
        // Another request may have the key now.
        let answer = gateway.send(charge(key, r#"{"amount":1}"#)).await;
        assert_eq!((answer.status.as_u16(), answer.is_replayed()), (201, false));
        assert_eq!(upstream.requests_with_key(key)[1].attempt(), 1);
    }
    gateway.assert_clean_shutdown().await;
}
