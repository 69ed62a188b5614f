//! The cases that hold on every database.

use semel_outbox::{Delivery, OperatorScope, OutgoingMessage};

use crate::{
    backend::{Backend, message},
    test_sink::{TestSink, failed},
};

pub(crate) async fn a_message_is_delivered_if_and_only_if_its_transaction_committed(
    backend: impl Backend,
) {
    let sink = TestSink::default();
    backend.transaction(&[message("a", "rolled back")], false).await;
    backend.send(&[message("a", "1"), message("a", "2")]).await;
    let relay = backend.relay(sink.clone());
    sink.wait_for(&["1", "2"]).await;
    backend.transaction(&[message("a", "rolled back")], false).await;
    backend.send(&[message("a", "3"), OutgoingMessage::new("orders", "4").unwrap()]).await;
    sink.wait(|sink| sink.payloads().len() == 4).await;
    assert_eq!(sink.payloads()[..2], ["1", "2"]);
    relay.stop().await;
    let backlog = backend.backlog().await;
    assert_eq!((backlog.waiting, backlog.aside), (0, 0));
    // What is delivered is not delivered again.
    let relay = backend.relay(sink.clone());
    backend.send(&[message("b", "5")]).await;
    sink.wait(|sink| sink.payloads().len() == 5).await;
    relay.stop().await;
    assert_eq!(sink.attempts(), 5);
}

pub(crate) async fn a_failing_key_moves_aside_in_its_order_and_the_others_go_on(
    backend: impl Backend,
) {
    let sink = TestSink::default();
    sink.fail("bad", failed());
    let relay = backend.relay(sink.clone());
    backend
        .send(&[message("bad", "bad 1"), message("good", "good 1"), message("bad", "bad 2")])
        .await;
    sink.wait_for(&["good 1"]).await;
    // A later message of the key follows the others, although the receiver would take it.
    sink.wait(|sink| sink.attempts() >= 2).await;
    sink.succeed("bad");
    backend.send(&[message("good", "good 2"), message("bad", "bad 3")]).await;
    sink.wait(|sink| sink.payloads().len() == 5).await;
    let payloads = sink.payloads();
    let bad: Vec<_> = payloads.iter().filter(|payload| payload.starts_with("bad")).collect();
    assert_eq!(bad, ["bad 1", "bad 2", "bad 3"]);
    backend.send(&[message("bad", "bad 4")]).await;
    sink.wait(|sink| sink.payloads().len() == 6).await;
    relay.stop().await;
    assert_eq!(backend.list().await, []);
}

pub(crate) async fn a_parked_message_waits_for_an_operator(backend: impl Backend) {
    let sink = TestSink::default();
    sink.fail("bad", failed());
    let relay = backend.relay(sink.clone());
    backend.send(&[message("bad", "1"), message("bad", "2"), message("good", "3")]).await;
    sink.wait(|sink| sink.attempts() == 3).await;
    // Its second attempt was its last one.
    relay.stop().await;
    let listed = backend.list().await;
    assert_eq!(listed.len(), 2);
    assert!(listed[0].parked && listed[0].attempts == 2, "{listed:?}");
    assert_eq!(listed[0].reason.as_deref(), Some("as the test wants it"));
    assert!(!listed[1].parked && listed[1].reason.is_none(), "{listed:?}");
    let backlog = backend.backlog().await;
    assert_eq!((backlog.waiting, backlog.aside, backlog.parked), (2, 2, 1));
    sink.succeed("bad");
    assert_eq!(backend.retry(OperatorScope::Parked).await, 1);
    let relay = backend.relay(sink.clone());
    sink.wait_for(&["3", "1", "2"]).await;
    relay.stop().await;
    assert_eq!(backend.list().await, []);
}

pub(crate) async fn a_refused_message_is_dropped_and_the_next_of_its_key_follows(
    backend: impl Backend,
) {
    let sink = TestSink::default();
    sink.fail("bad", Delivery::Refused { reason: "gone".to_owned() });
    let relay = backend.relay(sink.clone());
    let first = message("bad", "1");
    backend.send(&[first.clone(), message("bad", "2"), message("good", "3")]).await;
    sink.wait_for(&["3"]).await;
    sink.succeed("bad");
    while backend.list().await.len() < 2 {
        tokio::task::yield_now().await;
    }
    // The relay runs; it finds what the operator did.
    assert_eq!(backend.drop_messages(OperatorScope::Id(first.id())).await, 1);
    sink.wait_for(&["3", "2"]).await;
    relay.stop().await;
}

pub(crate) async fn an_outage_of_the_receiver_moves_nothing_aside(backend: impl Backend) {
    let sink = TestSink::default();
    sink.fail("", Delivery::Unavailable { reason: "refused".to_owned(), after: None });
    let relay = backend.relay(sink.clone());
    backend.send(&[message("a", "1"), message("b", "2"), message("a", "3")]).await;
    sink.wait(|sink| sink.attempts() >= 6).await;
    assert_eq!(backend.list().await, []);
    sink.succeed("");
    sink.wait(|sink| sink.payloads().len() == 3).await;
    relay.stop().await;
    assert_eq!(backend.backlog().await.waiting, 0);
}

pub(crate) async fn a_stopped_relay_gives_its_leases_back(backend: impl Backend) {
    let (first, second) = (TestSink::default(), TestSink::default());
    let relay = backend.relay(first.clone());
    backend.send(&[message("a", "1")]).await;
    first.wait_for(&["1"]).await;
    relay.stop().await;
    backend.send(&[message("a", "2")]).await;
    let relay = backend.relay(second.clone());
    second.wait_for(&["2"]).await;
    relay.stop().await;
}

pub(crate) async fn a_lapsed_lease_is_taken_over_and_its_owner_saves_nothing(
    backend: impl Backend,
) {
    use semel_outbox::RelayStore as _;
    let (first, second) = (TestSink::default(), TestSink::default());
    let relay = backend.relay(first.clone());
    backend.send(&[message("a", "1")]).await;
    first.wait_for(&["1"]).await;
    relay.abort().await;
    // A relay that stopped for longer than its lease.
    let mut zombie = backend.store();
    while zombie.balance().await.unwrap() == 0 {
        tokio::time::sleep(crate::backend::LEASE / 4).await;
    }
    backend.send(&[message("a", "2")]).await;
    while zombie.fetch().await.unwrap().iter().all(|message| message.payload != b"2") {
        zombie.advance();
    }
    let relay = backend.relay(second.clone());
    second.wait(|sink| sink.payloads().ends_with(&["2".to_owned()])).await;
    zombie.advance();
    zombie.save(Vec::new()).await.unwrap();
    assert_eq!(zombie.fetch().await.unwrap(), [], "it owns nothing any more");
    backend.send(&[message("a", "3")]).await;
    second.wait(|sink| sink.payloads().ends_with(&["3".to_owned()])).await;
    relay.stop().await;
}
