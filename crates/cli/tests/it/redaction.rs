//! What of an answer is stored: all of it, the status alone, or all but some members.

use std::fs;

use crate::common::{Gateway, ORDER, Reply, Setup, Upstream, charge, on_sqlite};

/// What must not be stored.
const NUMBER: &str = "4242424242424242";

/// A gateway whose route stores so much of its answers, which have a card number in them.
async fn storing(record: &str) -> (Upstream, Gateway) {
    let upstream = Upstream::start(|_| {
        let body = format!(r#"{{"id": 7, "card": {{"number": "{NUMBER}", "brand": "visa"}}}}"#);
        Reply::new(201, body).header("content-type", "application/json").header("etag", "\"7\"")
    })
    .await;
    let setup = Setup::new(&upstream.url()).defaults(format!("record = {record}"));
    let gateway = setup.start().await;
    (upstream, gateway)
}

/// Whether the number is anywhere in the files of the store.
fn is_stored(gateway: &Gateway) -> bool {
    let folder = gateway.setup.file().parent().unwrap().to_owned();
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let files = files.filter(|path| path.is_file());
    files
        .map(|path| fs::read(path).unwrap())
        .any(|bytes| bytes.windows(NUMBER.len()).any(|window| window == NUMBER.as_bytes()))
}

#[tokio::test]
async fn an_answer_is_stored_as_it_is() {
    let (upstream, gateway) = storing("\"full\"").await;
    let first = gateway.send(charge("k", ORDER)).await;
    gateway.send(charge("k", ORDER)).await.assert_replay_of(&first);
    assert!(!on_sqlite() || is_stored(&gateway), "or the tests below prove nothing");
    assert_eq!(upstream.request_count(), 1);
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_status_is_stored_alone() {
    let (upstream, gateway) = storing("\"status\"").await;
    let first = gateway.send(charge("k", ORDER)).await;
    assert!(first.text().contains(NUMBER), "the first client gets all of it");
    for _ in 0..2 {
        gateway.send(charge("k", ORDER)).await.assert_problem(410, "response-not-retained");
    }
    assert!(!on_sqlite() || !is_stored(&gateway));
    assert_eq!(upstream.request_count(), 1);
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_redacted_value_is_not_stored() {
    let (upstream, gateway) = storing("{ redact = [\"/card/number\", \"/card/cvc\"] }").await;
    let first = gateway.send(charge("k", ORDER)).await;
    assert!(first.text().contains(NUMBER), "the first client gets all of it");
    assert_eq!(first.header("idempotent-replayed"), None);
    let elsewhere = gateway.setup.start().await;
    for gateway in [&gateway, &elsewhere] {
        let again = gateway.send(charge("k", ORDER)).await;
        let expected = r#"{"id": 7, "card": {"number": "[redacted]", "brand": "visa"}}"#;
        assert_eq!((again.status, again.text()), (first.status, expected));
        assert_eq!(again.header("idempotent-replayed"), Some("redacted"));
        assert_eq!(again.header("content-length"), Some(&*expected.len().to_string()));
        assert_eq!(again.header("etag"), Some("\"7\""));
    }
    assert!(!on_sqlite() || !is_stored(&gateway));
    assert_eq!(upstream.request_count(), 1);
    elsewhere.assert_clean_shutdown().await;
    gateway.assert_clean_shutdown().await;
}
