//! The start of a gateway: what it says, and what it refuses to start with.

use std::{fs, net::TcpListener};

use crate::common::{Gateway, ORDER, Setup, Upstream, charge, on_sqlite};

#[tokio::test]
async fn one_argument_is_enough() {
    let upstream = Upstream::plain().await;
    let setup = Setup::without_config_file(&upstream.url()).argument("--caller=anonymous");
    let gateway = setup.start().await;
    let first = gateway.send(charge("k", ORDER)).await;
    gateway.send(charge("k", ORDER)).await.assert_replay_of(&first);
    assert_eq!(upstream.request_count(), 1);
    if on_sqlite() {
        assert!(setup.database().is_file(), "records are beside the program by default");
    }
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn the_banner_lists_the_addresses_and_the_routes() {
    let upstream = Upstream::plain().await;
    let setup = Setup::new(&upstream.url());
    let table = "[[route]]\nmatch = \"POST /v1/payments/**\"\nscope = \"payments\"";
    let gateway = setup.tables(table).start().await;
    gateway.wait_for_log("api on http://127.0.0.1:").await;
    gateway.wait_for_log("(all else)").await;
    let log = gateway.log_lines();
    let line = |words: &[&str]| log.iter().any(|line| words.iter().all(|word| line.contains(word)));
    assert!(line(&["listening on http://127.0.0.1:", &upstream.url()]), "{log:#?}");
    assert!(line(&["POST", "/v1/payments/**", "payments", "hold", &upstream.url()]), "{log:#?}");
    gateway.assert_clean_shutdown().await;
}

/// Starts a gateway that cannot, and looks at its last words.
async fn refuses(setup: &Setup, words: &[&str]) -> Option<i32> {
    let gateway: Gateway = setup.spawn();
    let status = gateway.wait_for_exit().await;
    for word in words {
        gateway.wait_for_log(word).await;
    }
    assert!(!status.success(), "{status}");
    status.code()
}

#[tokio::test]
async fn a_bad_configuration_is_refused_with_every_mistake_and_its_place() {
    let setup = Setup::new("http://127.0.0.1:1").defaults("retenion = \"1h\"\nlease = \"30\"");
    let words = ["semel.toml:7:", "did you mean `retention`", "semel.toml:8:", "30s"];
    assert_eq!(refuses(&setup, &words).await, Some(64));
    assert!(!setup.database().exists(), "nothing was begun");
}

#[tokio::test]
async fn a_log_in_json_has_the_reasons_for_a_refusal_as_lines() {
    let bad = Setup::new("http://127.0.0.1:1").defaults("retenion = \"1h\"");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let blocked = Setup::new("http://127.0.0.1:1").argument("--listen").argument(&address);
    for (setup, code, word) in
        [(bad, 64, "did you mean `retention`"), (blocked, 1, "cannot listen on")]
    {
        let gateway: Gateway = setup.argument("--log=json").spawn();
        assert_eq!(gateway.wait_for_exit().await.code(), Some(code));
        gateway.wait_for_log(word).await;
        for line in gateway.log_lines() {
            let line: serde_json::Value = serde_json::from_str(&line).expect(&line);
            assert!(line["message"].is_string(), "{line}");
        }
    }
}

#[tokio::test]
async fn an_address_that_is_taken_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let setup = Setup::new("http://127.0.0.1:1").argument("--listen").argument(&address);
    assert_eq!(refuses(&setup, &["cannot listen on", &address]).await, Some(1));
}

#[tokio::test]
async fn an_invalid_store_is_reported_by_its_name() {
    if !on_sqlite() {
        return;
    }
    let setup = Setup::new("http://127.0.0.1:1");
    fs::write(setup.database(), "a letter, not a database, and long enough to tell".repeat(100))
        .unwrap();
    assert_eq!(refuses(&setup, &["semel.db"]).await, Some(1));
    let setup = Setup::new("http://127.0.0.1:1");
    fs::create_dir(setup.database()).unwrap();
    assert_eq!(refuses(&setup, &["semel.db"]).await, Some(1));
}
