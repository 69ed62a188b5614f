//! Bodies and answers count against a budget of bytes, shared among peers.

use std::sync::{Arc, Mutex};

use axum::{Router, body::Body};
use http::Request;
use http_body::Frame;
use http_body_util::BodyExt;
use semel::{Event, EventKind, MemoryStore, Observer, Semel, Sender};
use semel_tower::{ClientContext, MemoryBudget, PeerMemory};

use crate::harness::{Gate, Harness, ORDER, TestResponse, begin, charge, send, stream, wait_until};

/// The share of one peer in the half for answers.
const SHARE: usize = 100_000;

fn budget() -> MemoryBudget {
    MemoryBudget::new(4 * SHARE)
}

fn of_peer(budget: &MemoryBudget, number: u8) -> PeerMemory {
    budget.peer([10, 0, 0, number].into())
}

fn from(peer: &PeerMemory, mut request: Request<Body>) -> Request<Body> {
    let mut client = ClientContext::default();
    client.memory = Some(peer.clone());
    request.extensions_mut().insert(client);
    request
}

/// Answers with so many bytes, the number of its run.
fn answering(harness: &Harness, length: usize) -> Router {
    harness.app(move |run| async move { vec![u8::try_from(run).unwrap(); length] })
}

#[tokio::test]
async fn answers_count_until_they_are_taken_and_only_their_peer_is_refused() {
    let (harness, budget) = (Harness::new(), budget());
    let app = answering(&harness, SHARE / 4);
    let (hog, innocent) = (of_peer(&budget, 1), of_peer(&budget, 2));
    let mut untaken = Vec::new();
    for number in 0..4 {
        let first = begin(&app, from(&hog, charge(&format!("k{number}"), ORDER))).await;
        assert_eq!(first.status(), 200);
        untaken.push(first);
    }
    assert_eq!(budget.used(), SHARE);
    let refused = send(&app, from(&hog, charge("k4", ORDER))).await;
    refused.assert_problem(503, "too-many-in-flight");
    assert!(refused.header("retry-after").is_some());
    assert_eq!(harness.runs(), 4, "what is refused has not run");
    let other = send(&app, from(&innocent, charge("k5", ORDER))).await;
    assert_eq!((other.status.as_u16(), harness.runs()), (200, 5));
    drop((untaken, other));
    assert_eq!(budget.used(), 0);
    let again = send(&app, from(&hog, charge("k4", ORDER))).await;
    assert_eq!((again.status.as_u16(), harness.runs()), (200, 6));
}

#[tokio::test]
async fn replays_count_and_are_refused_rather_than_lost() {
    let (harness, budget) = (Harness::new(), budget());
    let app = answering(&harness, SHARE / 4);
    let peer = of_peer(&budget, 1);
    let first = send(&app, charge("k", ORDER)).await;
    let untaken = [
        begin(&app, from(&peer, charge("k", ORDER))).await,
        begin(&app, from(&peer, charge("k", ORDER))).await,
    ];
    assert_eq!(budget.used(), SHARE / 2);
    send(&app, from(&peer, charge("k", ORDER))).await.assert_problem(503, "too-many-in-flight");
    for replay in untaken {
        let replay = TestResponse::read(replay).await;
        assert!(replay.is_replayed());
        assert_eq!(replay.body, first.body);
    }
    assert_eq!((budget.used(), harness.runs()), (0, 1));
}

#[tokio::test]
async fn look_ups_count_with_the_escapes_of_their_documents() {
    let (harness, budget) = (Harness::new(), budget());
    let lookup = harness.layer().lookup("/idempotency/{key}".parse().unwrap());
    // In a document each byte is six: two of them are more than a peer gets for replays.
    let app = harness.app_with(lookup, |_| async { vec![1; SHARE / 24] });
    let peer = of_peer(&budget, 1);
    let of_merchant = |mut request: Request<Body>| {
        request.headers_mut().insert("x-merchant", "7".parse().unwrap());
        from(&peer, request)
    };
    let look_up = || of_merchant(Request::get("/idempotency/k").body(Body::empty()).unwrap());
    send(&app, of_merchant(charge("k", ORDER))).await;
    assert_eq!(budget.used(), 0);
    let untaken = begin(&app, look_up()).await;
    assert_eq!(untaken.status(), 200);
    assert!(budget.used() > SHARE / 4, "{} bytes", budget.used());
    send(&app, look_up()).await.assert_problem(503, "too-many-in-flight");
    let length = budget.used();
    assert_eq!(TestResponse::read(untaken).await.body.len(), length);
    let again = send(&app, look_up()).await;
    assert_eq!((again.status.as_u16(), again.body.len(), budget.used()), (200, length, 0));
}

/// Counts answers that could not be retained.
#[derive(Clone, Debug, Default)]
struct Events(Arc<Mutex<Vec<String>>>);

impl Observer for Events {
    fn on_event(&self, event: &Event<'_>) {
        if let EventKind::NotRetained = event.kind {
            self.0.lock().unwrap().push(event.id.unwrap().key.as_str().to_owned());
        }
    }
}

/// A service whose answers, of so many bytes, come when the gate opens.
fn gated(harness: &Harness, gate: &Gate, length: usize) -> Router {
    let gate = gate.clone();
    harness.app(move |run| {
        let gate = gate.clone();
        async move {
            gate.wait_open().await;
            vec![u8::try_from(run).unwrap(); length]
        }
    })
}

#[tokio::test]
async fn a_client_loses_no_answer_by_its_own_concurrency() {
    let (events, budget) = (Events::default(), budget());
    let mut harness = Harness::new();
    harness.semel = Semel::builder(MemoryStore::new()).observer(events.clone()).build();
    let gate = Gate::new();
    let app = gated(&harness, &gate, SHARE / 2 + 1);
    let peer = of_peer(&budget, 1);
    // All are admitted before any has an answer. Two fit at once.
    let keys = ["a", "b", "c", "d", "e"];
    let running = keys.map(|key| {
        let (app, request) = (app.clone(), from(&peer, charge(key, ORDER)));
        tokio::spawn(async move { send(&app, request).await })
    });
    wait_until(|| harness.runs() == 5).await;
    gate.open();
    for (key, first) in keys.into_iter().zip(running) {
        let first = first.await.unwrap();
        assert_eq!((first.status.as_u16(), first.body.len()), (200, SHARE / 2 + 1));
        // More than a peer gets for replays.
        let again = send(&app, charge(key, ORDER)).await;
        assert!(again.is_replayed());
        assert_eq!((again.status.as_u16(), again.body), (200, first.body));
    }
    assert_eq!(*events.0.lock().unwrap(), [""; 0]);
    assert_eq!((harness.runs(), budget.used()), (5, 0));
}

#[tokio::test(start_paused = true)]
async fn an_answer_without_memory_reaches_its_client_and_its_operation_runs_once() {
    let (events, budget) = (Events::default(), budget());
    let mut harness = Harness::new();
    harness.semel = Semel::builder(MemoryStore::new()).observer(events.clone()).build();
    let gate = Gate::new();
    let app = gated(&harness, &gate, SHARE);
    let peer = of_peer(&budget, 1);
    let running = ["a", "b"].map(|key| {
        let (app, request) = (app.clone(), from(&peer, charge(key, ORDER)));
        tokio::spawn(async move { begin(&app, request).await })
    });
    wait_until(|| harness.runs() == 2).await;
    gate.open();
    // The first is not taken, so the second waits in vain.
    let mut answers = Vec::new();
    for answer in running {
        answers.push(answer.await.unwrap());
    }
    for answer in answers {
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes().len(), SHARE);
    }
    let unretained = events.0.lock().unwrap().clone();
    assert_eq!(unretained.len(), 1, "{unretained:?}");
    for key in ["a", "b"] {
        let again = send(&app, charge(key, ORDER)).await;
        assert!(again.is_replayed());
        let expected = if unretained[0] == key { 410 } else { 200 };
        assert_eq!(again.status, expected);
    }
    assert_eq!((harness.runs(), budget.used()), (2, 0));
}

#[tokio::test]
async fn a_body_counts_while_it_is_read() {
    let (harness, budget) = (Harness::new(), budget());
    let app = harness.app(async |_| "done");
    let peer = of_peer(&budget, 1);
    let large = |key: &str, body: Body| {
        let request = Request::post("/charges").header("idempotency-key", key).body(body);
        from(&peer, request.unwrap())
    };
    let whole = || Body::from(vec![b'x'; SHARE / 2 + 1]);
    let (frames, slow) = stream();
    let reading = tokio::spawn({
        let (app, request) = (app.clone(), large("a", slow));
        async move { send(&app, request).await }
    });
    frames.send(Ok(Frame::data(vec![b'x'; SHARE / 2].into()))).await.unwrap();
    wait_until(|| budget.used() == SHARE / 2).await;
    send(&app, large("b", whole())).await.assert_problem(503, "too-many-in-flight");
    drop(frames);
    assert_eq!(reading.await.unwrap().text(), "done");
    assert_eq!(send(&app, large("b", whole())).await.text(), "done");
    assert_eq!((harness.runs(), budget.used()), (2, 0));
}

#[tokio::test]
async fn a_body_that_stalls_makes_room_for_others_from_its_address() {
    let (harness, budget) = (Harness::new(), budget());
    let app = harness.app(async |_| "done");
    let request = |connection: u64, key: &str, body: Body| {
        let request = Request::post("/charges").header("idempotency-key", key).body(body);
        let mut request = from(&of_peer(&budget, 1), request.unwrap());
        let client = request.extensions_mut().get_mut::<ClientContext>().unwrap();
        client.sender = Sender::new([10, 0, 0, 1].into(), connection);
        request
    };
    let mut stalled = Vec::new();
    for number in 0..4 {
        let (frames, body) = stream();
        let (app, request) = (app.clone(), request(1, &format!("stalled-{number}"), body));
        let answer = tokio::spawn(async move { send(&app, request).await });
        frames.send(Ok(Frame::data(vec![b'x'; SHARE / 4].into()))).await.unwrap();
        wait_until(|| budget.used() == SHARE / 4 * (number + 1)).await;
        stalled.push((frames, answer));
    }
    let innocent = send(&app, request(2, "innocent", ORDER.into())).await;
    assert_eq!((innocent.text(), harness.runs()), ("done", 1));
    let (_, evicted) = stalled.remove(0);
    evicted.await.unwrap().assert_problem(503, "too-many-in-flight");
    drop(innocent);
    assert_eq!(budget.used(), SHARE / 4 * 3, "no more had to go than was needed");
    for (frames, answer) in stalled {
        drop(frames);
        assert_eq!(answer.await.unwrap().text(), "done");
    }
    assert_eq!((harness.runs(), budget.used()), (4, 0));
}

#[tokio::test]
async fn replays_that_are_not_taken_leave_room_for_first_answers_to_their_address() {
    let (harness, budget) = (Harness::new(), budget());
    let app = answering(&harness, 3 * SHARE / 10);
    let peer = of_peer(&budget, 1);
    send(&app, charge("k", ORDER)).await;
    let mut untaken = Vec::new();
    for _ in 0..4 {
        untaken.push(begin(&app, from(&peer, charge("k", ORDER))).await);
    }
    let first = send(&app, from(&peer, charge("innocent", ORDER))).await;
    assert_eq!((first.status.as_u16(), harness.runs()), (200, 2));
    let said = first.body.to_vec();
    drop((untaken, first));
    let again = send(&app, from(&peer, charge("innocent", ORDER))).await;
    assert!(again.is_replayed());
    assert_eq!((again.status.as_u16(), again.body.to_vec()), (200, said), "it was retained");
    assert_eq!(harness.runs(), 2);
}

#[tokio::test]
async fn a_request_runs_only_if_its_answer_can_be_retained() {
    let (harness, budget) = (Harness::new(), budget());
    let app = answering(&harness, 3 * SHARE / 10);
    let peer = of_peer(&budget, 1);
    let mut untaken = Vec::new();
    for number in 0..4 {
        untaken.push(begin(&app, from(&peer, charge(&format!("k{number}"), ORDER))).await);
    }
    let ran = untaken.iter().filter(|answer| answer.status() == 200).count();
    let first = send(&app, from(&peer, charge("innocent", ORDER))).await;
    first.assert_problem(503, "too-many-in-flight");
    assert_eq!((ran, harness.runs()), (3, 3), "what is refused has not run");
    drop(untaken);
    for key in ["k0", "k1", "k2", "innocent"] {
        let answer = send(&app, from(&peer, charge(key, ORDER))).await;
        assert_eq!((answer.status.as_u16(), answer.body.len()), (200, 3 * SHARE / 10), "{key}");
    }
    assert_eq!((harness.runs(), budget.used()), (4, 0));
}
