//! The secret that callers' names are made with: one for all gateways on a store.

use semel_testkit::servers;

use crate::common::{ORDER, Records, Setup, Upstream, charge, fresh_postgres};

fn setup(upstream: &Upstream, url: &str, secret: &str) -> Setup {
    let records = Records::Postgres(url.to_owned());
    Setup::on_store(records, &upstream.url()).environment("SEMEL_SECRET", secret)
}

#[tokio::test]
async fn a_gateway_with_another_secret_is_refused_until_an_operator_says_so() {
    let upstream = Upstream::plain().await;
    let url = fresh_postgres();
    let first = setup(&upstream, &url, "the secret of all of them").start().await;
    let neighbour = setup(&upstream, &url, "the secret of all of them").start().await;
    let mut paid = charge("k", ORDER);
    paid.headers_mut().insert("authorization", "Bearer sk_live_1".parse().unwrap());
    let answer = first.send(paid.clone()).await;
    neighbour.send(paid).await.assert_replay_of(&answer);
    assert_eq!(upstream.request_count(), 1);

    let other = setup(&upstream, &url, "another secret than theirs");
    let refused = other.spawn();
    assert_eq!(refused.wait_for_exit().await.code(), Some(1));
    refused.wait_for_log("no caller would be recognised").await;
    let log = refused.log_lines();
    let line = log.iter().find(|line| line.contains("UPDATE ")).unwrap();
    let (_, sql) = line.split_once("if that is what you want: ").unwrap();
    servers::postgres().sql("postgres", sql);
    other.start().await.assert_clean_shutdown().await;
    first.assert_clean_shutdown().await;
    neighbour.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_former_secret_that_is_left_out_too_early_is_refused() {
    let upstream = Upstream::plain().await;
    let url = fresh_postgres();
    let secrets = |now: &str, before: Option<&str>| {
        let before = before.map(|name| format!("secret_before_env = \"{name}\"\n"));
        setup(&upstream, &url, "unused")
            .environment("ONE", "the first secret, long")
            .environment("TWO", "the second secret, long")
            .environment("THREE", "the third secret, long")
            .head(&format!("secret_env = \"{now}\"\n{}", before.unwrap_or_default()))
    };
    let paid = || {
        let mut paid = charge("k", ORDER);
        paid.headers_mut().insert("authorization", "Bearer sk_live_1".parse().unwrap());
        paid
    };
    let gateway = secrets("ONE", None).start().await;
    let answer = gateway.send(paid()).await;
    gateway.assert_clean_shutdown().await;
    let gateway = secrets("TWO", Some("ONE")).start().await;
    gateway.send(paid()).await.assert_replay_of(&answer);
    gateway.assert_clean_shutdown().await;
    for refused in [secrets("TWO", None), secrets("THREE", Some("TWO"))] {
        let refused = refused.spawn();
        refused.wait_for_log("the former secret is no longer configured").await;
        assert_eq!(refused.wait_for_exit().await.code(), Some(64));
    }
    // The refused starts have changed nothing: the record is still found under the first secret.
    let gateway = secrets("TWO", Some("ONE")).start().await;
    gateway.send(paid()).await.assert_replay_of(&answer);
    assert_eq!(upstream.request_count(), 1);
    gateway.assert_clean_shutdown().await;
    let accepted = secrets("THREE", Some("TWO")).argument("--accept-identity-change");
    accepted.start().await.assert_clean_shutdown().await;
}

#[tokio::test]
async fn callers_are_not_identified_by_a_credential_without_a_secret() {
    let upstream = Upstream::plain().await;
    let url = fresh_postgres();
    let typed = |caller: &str| {
        let records = Records::Postgres(url.clone());
        Setup::without_config_file_on(records, &upstream.url())
            .argument(&format!("--caller={caller}"))
    };
    let refused = typed("authorization").spawn();
    assert_eq!(refused.wait_for_exit().await.code(), Some(64));
    refused.wait_for_log("openssl rand -hex 32").await;
    let gateway = typed("header=X-Merchant-Id").start().await;
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_server_without_a_secret_does_not_begin_to_hash() {
    let upstream = Upstream::plain().await;
    let records = Records::Postgres(fresh_postgres());
    let plain = "[[route]]\nmatch = \"POST /charges\"\nscope = \"charges\"\ncaller = \"anonymous\"";
    let gateway = Setup::on_store(records, &upstream.url()).head("").tables(plain).start().await;
    let hashing = plain.replace("anonymous", "authorization");
    let file = gateway.setup.file();
    let text = std::fs::read_to_string(&file).unwrap();
    let text = format!("secret_env = \"SEMEL_SECRET\"\n{}", text.replace(plain, &hashing));
    std::fs::write(&file, text).unwrap();
    gateway.signal("HUP");
    gateway.wait_for_log("this server was started without one: restart it").await;
    let answer = gateway.send(charge("k", ORDER)).await;
    assert_eq!(answer.status.as_u16(), 201, "the previous configuration stays in use");
    gateway.assert_clean_shutdown().await;
}
