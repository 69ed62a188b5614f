//! gRPC: a tonic service behind the gateway, called by a tonic client.

mod bank;

use std::time::Duration;

use http::Request as HttpRequest;
use semel::core::StateName;
use tokio::sync::mpsc;
use tonic::{Code, Request};

use self::bank::{Bank, Charge, Client};
use crate::{
    client,
    common::{Gateway, Setup, text},
    soon,
};

const KEY: &str = "x-idempotency-key";

/// A bank, a gateway in front of it that looks for the key in metadata, and a client of both.
async fn start_bank() -> (Bank, Gateway, Client) {
    let (bank, address) = Bank::start().await;
    let gateway = Setup::at_http2(address).defaults(format_args!("key = \"{KEY}\"")).start().await;
    let client = Client::connect(gateway.address()).await;
    (bank, gateway, client)
}

fn charge(account: &str, cents: u32) -> Request<Charge> {
    Request::new(Charge { account: account.to_owned(), cents })
}

fn keyed(key: &'static str, account: &str, cents: u32) -> Request<Charge> {
    let mut request = charge(account, cents);
    request.metadata_mut().insert(KEY, key.parse().unwrap());
    request
}

#[tokio::test]
async fn a_call_with_a_key_runs_once() {
    let (bank, _gateway, mut client) = start_bank().await;
    let first = soon(client.charge(keyed("k", "ada", 100))).await.unwrap();
    assert_eq!(first.get_ref().number, 1);
    assert!(!first.metadata().contains_key("idempotent-replayed"));
    for _ in 0..3 {
        let again = soon(client.charge(keyed("k", "ada", 100))).await.unwrap();
        assert_eq!(again.get_ref(), first.get_ref());
        assert_eq!(again.metadata().get("idempotent-replayed").unwrap(), "true");
    }
    let other = soon(client.charge(keyed("k", "ada", 101))).await.unwrap_err();
    assert_eq!(other.code(), Code::FailedPrecondition);
    assert_eq!(other.metadata().get("idempotency-problem").unwrap(), "key-reused");
    assert_eq!(bank.runs(), 1);
}

#[tokio::test]
async fn a_service_gets_the_key_as_the_client_sent_it() {
    let (bank, _gateway, mut client) = start_bank().await;
    for key in ["bare", "\"quoted\""] {
        soon(client.charge(keyed(key, "ada", 100))).await.unwrap();
    }
    assert_eq!(bank.keys(), ["bare", "\"quoted\""]);
}

#[tokio::test]
async fn a_call_without_the_required_key_gets_the_name_of_the_metadata_to_send() {
    let (bank, address) = Bank::start().await;
    let key = format!("key = {{ header = \"{KEY}\", required = true }}");
    let gateway = Setup::at_http2(address).defaults(key).start().await;
    let mut client = Client::connect(gateway.address()).await;
    let status = soon(client.charge(charge("ada", 100))).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("send the metadata x-idempotency-key"), "{status:?}");
    assert_eq!(bank.runs(), 0);
}

#[tokio::test]
async fn a_repeat_is_the_same_bytes_and_trailers() {
    let (bank, gateway, _) = start_bank().await;
    let mut client = client::Client::http2(gateway.address()).await;
    // A message: not compressed, its length, and field 1 of `Charge`.
    let message = b"\0\0\0\0\x05\x0a\x03ada";
    let request = || {
        HttpRequest::post("/bank.Bank/Charge")
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header(KEY, "k")
            .body(text(&message[..]))
            .unwrap()
    };
    let (first, again) = (client.ask(request()).await, client.ask(request()).await);
    assert!(again.is_replayed());
    assert_eq!((first.status, &first.body[..]), (again.status, b"\0\0\0\0\x02\x08\x01".as_slice()));
    assert_eq!(first.body, again.body);
    assert_eq!(first.header("content-type"), again.header("content-type"));
    let trailers = first.trailers.expect("there are trailers");
    assert_eq!(trailers["grpc-status"], "0");
    assert_eq!(again.trailers, Some(trailers));
    assert_eq!(bank.runs(), 1);
}

#[tokio::test]
async fn a_failure_that_is_final_is_replayed_with_its_details() {
    let (bank, _gateway, mut client) = start_bank().await;
    let first = soon(client.charge(keyed("k", "unknown", 1))).await.unwrap_err();
    let again = soon(client.charge(keyed("k", "unknown", 1))).await.unwrap_err();
    assert_eq!(first.code(), Code::FailedPrecondition);
    assert_eq!(first.message(), "there is no account «unknown»");
    assert_eq!(first.details(), [8, 9, 0, 255]);
    assert_eq!((again.code(), again.message()), (first.code(), first.message()));
    assert_eq!(again.details(), first.details());
    assert_eq!(again.metadata().get("idempotent-replayed").unwrap(), "true");
    assert_eq!(bank.runs(), 1);
}

#[tokio::test]
async fn a_failure_decides_by_its_status_whether_the_call_may_run_again() {
    let (bank, _gateway, mut client) = start_bank().await;
    for runs in 1..=2 {
        let locked = soon(client.charge(keyed("a", "locked", 1))).await.unwrap_err();
        assert_eq!((locked.code(), bank.runs()), (Code::PermissionDenied, runs));
    }
    // A proxy sends UNAVAILABLE for a stream that broke after it was sent, too.
    for (account, code, runs) in [("broken", Code::Unknown, 3), ("busy", Code::Unavailable, 4)] {
        let first = soon(client.charge(keyed(account, account, 1))).await.unwrap_err();
        assert_eq!(first.code(), code);
        let held = soon(client.charge(keyed(account, account, 1))).await.unwrap_err();
        assert_eq!(held.metadata().get("idempotency-problem").unwrap(), "outcome-unknown");
        assert_eq!(bank.runs(), runs);
    }
}

#[tokio::test]
async fn a_call_without_a_key_passes() {
    let (bank, _gateway, mut client) = start_bank().await;
    for number in 1..=3 {
        let receipt = soon(client.charge(charge("ada", 100))).await.unwrap();
        assert_eq!(receipt.get_ref().number, number);
    }
    let failed = soon(client.charge(charge("unknown", 100))).await.unwrap_err();
    assert_eq!((failed.code(), failed.details()), (Code::FailedPrecondition, &[8, 9, 0, 255][..]));
    assert_eq!(bank.runs(), 4);
}

#[tokio::test]
async fn a_bank_that_is_away_was_not_reached() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let gateway = Setup::at_http2(address).defaults(format_args!("key = \"{KEY}\"")).start().await;
    let mut client = Client::connect(gateway.address()).await;
    for request in [keyed("k", "ada", 1), keyed("k", "ada", 1), charge("ada", 1)] {
        let status = soon(client.charge(request)).await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{status:?}");
        let slug = status.metadata().get("idempotency-problem").unwrap();
        assert_eq!(slug, "upstream-unreachable");
    }
}

#[tokio::test]
async fn a_stream_of_answers_passes_message_by_message() {
    let (_bank, _gateway, mut client) = start_bank().await;
    let mut receipts = soon(client.watch(charge("ada", 3))).await.unwrap().into_inner();
    for number in 1..=3 {
        assert_eq!(soon(receipts.message()).await.unwrap().unwrap().number, number);
    }
    let end = soon(receipts.message()).await.unwrap_err();
    assert_eq!((end.code(), end.message()), (Code::Aborted, "that is all"));
}

#[tokio::test]
async fn a_conversation_passes_and_may_be_quiet_for_a_while() {
    let (bank, address) = Bank::start().await;
    let url = format!("http://{address}");
    let gateway = Setup::upstream(format_args!(
        "{{ url = \"{url}\", protocol = \"http2\", timeout = \"2s\", pool_idle = \"100ms\" }}"
    ))
    .tables("[limits]\nheader_timeout = \"2s\"\nbody_timeout = \"2s\"")
    .start()
    .await;
    let mut client = Client::connect(gateway.address()).await;
    let (sender, charges) = mpsc::channel(1);
    let mut receipts = soon(client.talk(charges)).await.unwrap().into_inner();
    for number in 1..=3 {
        sender.send(charge("ada", 1).into_inner()).await.unwrap();
        assert_eq!(soon(receipts.message()).await.unwrap().unwrap().number, number);
        tokio::time::sleep(Duration::from_millis(2500)).await;
    }
    drop(sender);
    assert!(soon(receipts.message()).await.unwrap().is_none());
    assert_eq!(bank.runs(), 3);
}

#[tokio::test]
async fn a_charge_runs_on_beyond_the_deadline_of_its_client() {
    for settings in ["", "deadline = {}"] {
        runs_on_beyond_the_deadline(settings).await;
    }
}

/// The service would cancel the charge after a second if it saw the deadline of the client.
async fn runs_on_beyond_the_deadline(settings: &str) {
    let (bank, address) = Bank::start().await;
    let settings = format!("key = \"{KEY}\"\n{settings}");
    let gateway = Setup::at_http2(address).on_disk().defaults(settings).start().await;
    let mut client = Client::connect(gateway.address()).await;
    let mut first = keyed("k", "slow", 100);
    first.set_timeout(Duration::from_secs(1));
    let status = soon(client.charge(first)).await.unwrap_err();
    // The client may end the call by itself at the same time.
    assert!(matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled), "{status:?}");
    let retry = soon(client.charge(keyed("k", "slow", 100))).await.unwrap();
    assert_eq!((retry.get_ref().number, bank.runs()), (1, 1));
    let again = soon(client.charge(keyed("k", "slow", 100))).await.unwrap();
    assert_eq!(again.metadata().get("idempotent-replayed").unwrap(), "true");
    assert_eq!(bank.runs(), 1);
    assert_eq!(bank.timeouts(), ["60000m"]);
    let states: Vec<StateName> =
        gateway.records().await.iter().map(|record| record.state).collect();
    assert_eq!(states, [StateName::Completed]);
}

#[tokio::test]
async fn a_call_without_a_key_passes_with_its_deadline() {
    let (bank, address) = Bank::start().await;
    let routes = format!(
        "[[route]]\nmatch = \"POST /bank.Bank/Charge\"\nscope = \"charges\"\nkey = \"{KEY}\""
    );
    let unrouted = "[[route]]\nmatch = \"POST /other.Bank/Charge\"\nscope = \"other\"";
    for tables in [&*routes, unrouted] {
        let gateway = Setup::at_http2(address).tables(tables).start().await;
        let mut client = Client::connect(gateway.address()).await;
        let mut request = charge("ada", 1);
        request.set_timeout(Duration::from_secs(7));
        soon(client.charge(request)).await.unwrap();
    }
    assert_eq!(bank.timeouts(), ["7000000u", "7000000u"]);
}
