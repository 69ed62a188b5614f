//! `semel migrate --outbox` and `semel outbox`: a relay process, and what operators see and do.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test reports by panicking")]

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    path::Path,
    process::Command,
    time::Duration,
};

use axum::{Router, body::Bytes, http::StatusCode, routing::post};
use rusqlite::Connection;
use semel_outbox::{OutgoingMessage, sqlite};
use semel_testkit::{
    program::{CommandOutput, Program},
    servers,
};
use tempfile::TempDir;
use tokio::{net::TcpListener, time::sleep};

fn semel(folder: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    command.args(words).current_dir(folder);
    command
}

fn run(folder: &Path, words: &[&str]) -> CommandOutput {
    CommandOutput::of(&mut semel(folder, words))
}

/// A receiver that does not want the payload `bad`.
async fn receiver() -> SocketAddr {
    async fn receive(body: Bytes) -> StatusCode {
        if &*body == b"bad" { StatusCode::GONE } else { StatusCode::NO_CONTENT }
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = Router::new().route("/orders", post(receive));
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    address
}

fn metrics(address: SocketAddr) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_delivers_and_an_operator_drops_what_is_parked() {
    let folder = TempDir::new().unwrap();
    let path = folder.path();
    run(path, &["migrate", "--store", "sqlite:shop.db", "--outbox"]).assert_exit(0);
    let shop = Connection::open(path.join("shop.db")).unwrap();
    let message = |payload: &str| {
        let message = OutgoingMessage::new("orders", payload).unwrap();
        message.key("customer").unwrap()
    };
    let bad = message("bad");
    sqlite::send(&shop, &bad).unwrap();
    sqlite::send(&shop, &message("good")).unwrap();

    let to = format!("http://{}/{{topic}}", receiver().await);
    let database = ["--database", "sqlite:shop.db"];
    let words = ["outbox", "relay", "--to", &to, "--metrics", "127.0.0.1:0"];
    let relay = Program::start(&mut semel(path, &[&words[..], &database].concat()));
    relay.wait_for_log("delivering to http://127.0.0.1:");
    let metrics_address = relay.wait_for_address("metrics on");
    let list = || run(path, &[&["outbox", "list", "--json"], &database[..]].concat());
    let parked = loop {
        let listed = list().json();
        if listed[0]["parked"] == 1 {
            break listed;
        }
        sleep(Duration::from_millis(50)).await;
    };
    assert_eq!((&parked[0]["waiting"], &parked[0]["aside"]), (&2.into(), &2.into()));
    assert_eq!(parked[1]["id"], bad.id().to_string());
    assert!(parked[1]["reason"].as_str().unwrap().starts_with("410 Gone"));
    let text = run(path, &[&["outbox", "list"], &database[..]].concat());
    assert!(text.stdout.contains("waiting for an earlier one of its key"), "{}", text.stdout);
    let scraped = metrics(metrics_address);
    for line in ["semel_outbox_parked 1\n", "semel_outbox_lag 2\n", "semel_outbox_buckets 1\n"] {
        assert!(scraped.contains(line), "{scraped}");
    }

    let id = bad.id().to_string();
    let drop_it = || run(path, &[&["outbox", "drop", &id, "--yes"], &database[..]].concat());
    drop_it().assert_exit(0);
    drop_it().assert_exit(3);
    while list().json()[0]["waiting"] != 0 {
        sleep(Duration::from_millis(50)).await;
    }
    relay.signal("TERM");
    assert!(relay.wait_for_exit().success());
    assert!(relay.log().contains("stopped: 1 messages were delivered"), "{}", relay.log());
}

#[test]
fn the_outbox_of_postgresql_is_installed_and_listed() {
    let folder = TempDir::new().unwrap();
    let url = servers::postgres().fresh_schema_url();
    for _ in 0..2 {
        run(folder.path(), &["migrate", "--store", &url, "--outbox"]).assert_exit(0);
    }
    let printed = run(folder.path(), &["migrate", "--store", &url, "--outbox", "--print"]);
    assert!(printed.stdout.contains("semel_send"));
    let listed = run(folder.path(), &["outbox", "list", "--database", &url]);
    listed.assert_exit(0);
    assert!(listed.stdout.starts_with("waiting 0, of these aside 0, parked 0"));
    let absent = run(folder.path(), &["outbox", "list", "--database", "sqlite:absent.db"]);
    absent.assert_exit(1);
    assert!(absent.stderr.contains("absent.db cannot be opened"), "{}", absent.stderr);
    let memory = run(folder.path(), &["outbox", "list", "--database", "memory:"]);
    assert!(memory.stderr.contains("would lose its messages"), "{}", memory.stderr);
}
