//! What `docs/postgres.md` says to type is typed here.

use std::{fs, path::Path};

use semel_testkit::servers::Postgres;

use crate::{
    common::{ORDER, Records, Setup, Upstream, charge},
    harness::{on, semel},
};

/// The text of the fenced block of the page that follows this mark.
fn snippet(name: &str) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/postgres.md");
    let page = fs::read_to_string(page).unwrap();
    let (_, after) = page.split_once(&format!("<!-- tested: {name} -->\n```")).expect(name);
    let (_, block) = after.split_once('\n').unwrap();
    block.split_once("\n```").unwrap().0.to_owned()
}

/// The page's address of a store, on this server.
fn here(url: &str, server: &Postgres) -> String {
    url.replace("@db/app", &format!("@127.0.0.1:{}/app", server.port()))
}

#[tokio::test]
async fn the_grants_are_enough_for_a_gateway_and_its_operators() {
    let server = Postgres::start(&[]);
    server.sql("postgres", "CREATE DATABASE app");
    server.sql("app", &snippet("roles"));
    let command = snippet("migrate");
    let words: Vec<String> =
        command.split_whitespace().map(|word| here(word.trim_matches('\''), &server)).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    assert_eq!(words[0], "semel");
    semel(&words[1..], &[]).assert_exit(0);
    server.sql("app", &snippet("grants"));

    let serve = snippet("serve");
    let url = serve.split('\'').find(|word| word.starts_with("postgres://")).unwrap();
    let url = here(url, &server);
    assert!(
        on(&url, &["doctor", "--json"])
            .assert_exit(0)
            .json()
            .iter()
            .all(|it| it["level"] == "fine")
    );
    let upstream = Upstream::plain().await;
    let setup = Setup::on_store(Records::Postgres(url.clone()), &upstream.url());
    let gateway = setup.start().await;
    let first = gateway.send(charge("k", ORDER)).await;
    gateway.send(charge("k", ORDER)).await.assert_replay_of(&first);
    on(&url, &["delete", "k", "--why", "a test", "--yes"]).assert_exit(0);
    on(&url, &["sweep", "--yes"]).assert_exit(0);
    gateway.assert_clean_shutdown().await;
    let owned = "SELECT count(*) FROM pg_class WHERE relowner = 'semel'::regrole";
    assert_eq!(server.sql("app", owned), "0", "the gateway's role owns nothing");
}

#[tokio::test]
async fn a_restored_store_reuses_no_fence_and_trusts_no_cache() {
    let server = Postgres::start(&[]);
    server.sql("postgres", "CREATE DATABASE app");
    server.sql("app", "CREATE SCHEMA semel");
    let url = format!("{}?schema=semel", server.url("app"));
    let upstream = Upstream::plain().await;
    let setup = Setup::on_store(Records::Postgres(url), &upstream.url());
    let gateway = setup.start().await;
    gateway.send(charge("k", ORDER)).await;
    gateway.assert_clean_shutdown().await;
    let meta = "SELECT store, epoch FROM semel.semel_meta";
    let before = server.sql("app", meta);
    server.sql("app", &snippet("restored"));
    assert_ne!(server.sql("app", meta), before);
    let gateway = setup.start().await;
    gateway.send(charge("l", ORDER)).await;
    let (old, new) =
        (upstream.requests_with_key("k")[0].fence(), upstream.requests_with_key("l")[0].fence());
    assert!(new > old, "{old} {new}");
    gateway.assert_clean_shutdown().await;
}

#[test]
fn every_measure_of_the_page_can_be_asked() {
    let server = Postgres::start(&[]);
    server.sql("postgres", "CREATE DATABASE app");
    server.sql("app", "CREATE SCHEMA semel");
    on(&format!("{}?schema=semel", server.url("app")), &["migrate"]).assert_exit(0);
    for name in ["lag", "oldest", "pooled role"] {
        let sql = snippet(name);
        server.sql("app", "DO $$ BEGIN CREATE ROLE semel; EXCEPTION WHEN OTHERS THEN END $$");
        server.sql("app", &sql);
    }
}
