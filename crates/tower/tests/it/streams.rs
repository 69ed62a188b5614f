//! Answers that are large or streams: streamed through, and recorded before their last byte.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::{body::Body, response::IntoResponse};
use bytes::Bytes;
use http::Response;
use http_body::Frame;
use http_body_util::BodyExt;
use semel::core::{Policy, Problem};
use semel_testkit::flaky_store::{StoreCall, StoreCondition};
use semel_tower::{READ_ON_DEFAULT, Streaming};

use crate::harness::{
    Frames, Gate, Harness, ORDER, TestResponse, begin, charge, data, send, stream, wait_until,
};

/// A guarded route that answers once with a stream, and where its frames come from.
fn streaming(harness: &Harness) -> (Frames, axum::Router) {
    let (frames, body) = stream();
    let body = Arc::new(Mutex::new(Some(body)));
    let app = harness.app(move |_| {
        let body = body.lock().unwrap().take().expect("it runs once");
        async move { (axum::Extension(Streaming), body) }
    });
    (frames, app)
}

/// The data of the next frame.
async fn next(body: &mut Body) -> Bytes {
    body.frame().await.expect("a frame").expect("sound").into_data().expect("data")
}

#[tokio::test]
async fn a_stream_passes_as_it_comes_and_its_last_piece_after_it_is_recorded() {
    let harness = Harness::new();
    let (frames, app) = streaming(&harness);
    let mut body = begin(&app, charge("k", ORDER)).await.into_body();
    frames.send(data("a")).await.unwrap();
    frames.send(data("b")).await.unwrap();
    assert_eq!(next(&mut body).await, "a", "while the handler goes on");
    harness.store.set(StoreCall::Finish, StoreCondition::Hanging);
    drop(frames);
    wait_until(|| harness.store.count(StoreCall::Finish) == 1).await;
    let early = tokio::time::timeout(Duration::from_millis(50), body.frame()).await;
    assert!(early.is_err(), "the last chunk waits for its record");
    harness.store.set(StoreCall::Finish, StoreCondition::Available);
    assert_eq!(next(&mut body).await, "b");
    assert!(body.frame().await.is_none());
    let again = send(&app, charge("k", ORDER)).await;
    again.assert_problem(410, "response-not-retained");
    assert!(again.is_replayed());
    assert_eq!(harness.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_cannot_be_recorded_does_not_end_well() {
    let harness = Harness::new();
    let (frames, app) = streaming(&harness);
    let mut body = begin(&app, charge("k", ORDER)).await.into_body();
    for text in ["a", "b"] {
        frames.send(data(text)).await.unwrap();
    }
    harness.store.set(StoreCall::Finish, StoreCondition::Unavailable);
    drop(frames);
    assert_eq!(next(&mut body).await, "a");
    assert!(body.frame().await.unwrap().is_err(), "b is never sent");
    assert!(body.frame().await.is_none());
}

#[tokio::test]
async fn a_stream_of_no_frame_or_of_one_is_recorded_too() {
    for texts in [&[][..], &["only"]] {
        let harness = Harness::new();
        let (frames, app) = streaming(&harness);
        for text in texts {
            frames.send(data(text)).await.unwrap();
        }
        drop(frames);
        let answer = send(&app, charge("k", ORDER)).await;
        assert_eq!(answer.text(), texts.concat());
        send(&app, charge("k", ORDER)).await.assert_problem(410, "response-not-retained");
        assert_eq!(harness.runs(), 1);
    }
}

#[tokio::test]
async fn a_stream_that_breaks_is_held() {
    let harness = Harness::new();
    let (frames, app) = streaming(&harness);
    let mut body = begin(&app, charge("k", ORDER)).await.into_body();
    for text in ["a", "b"] {
        frames.send(data(text)).await.unwrap();
    }
    frames.send(Err("cut".into())).await.unwrap();
    assert_eq!(next(&mut body).await, "a");
    let error = body.frame().await.unwrap().unwrap_err();
    assert!(error.to_string().contains("cut"), "{error}");
    wait_until(|| harness.semel.in_flight() == 0).await;
    send(&app, charge("k", ORDER)).await.assert_problem(423, "outcome-unknown");
    assert_eq!(harness.runs(), 1);
}

#[tokio::test]
async fn a_stream_whose_client_hung_up_goes_on_to_its_end() {
    let harness = Harness::new();
    let (frames, app) = streaming(&harness);
    let mut body = begin(&app, charge("k", ORDER)).await.into_body();
    for text in ["a", "b"] {
        frames.send(data(text)).await.unwrap();
    }
    assert_eq!(next(&mut body).await, "a");
    drop(body);
    for _ in 0..100 {
        frames.send(data("more than the channel holds")).await.unwrap();
    }
    drop(frames);
    wait_until(|| harness.semel.in_flight() == 0).await;
    send(&app, charge("k", ORDER)).await.assert_problem(410, "response-not-retained");
    assert_eq!(harness.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_endless_stream_without_a_reader_ends_as_unknown() {
    let harness = Harness::new();
    let (frames, app) = streaming(&harness);
    drop(begin(&app, charge("k", ORDER)).await);
    let hung_up = tokio::time::Instant::now();
    while frames.send(data("tick")).await.is_ok() {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert!(hung_up.elapsed() >= READ_ON_DEFAULT);
    assert!(hung_up.elapsed() < READ_ON_DEFAULT + Duration::from_secs(3));
    wait_until(|| harness.semel.in_flight() == 0).await;
    send(&app, charge("k", ORDER)).await.assert_problem(423, "outcome-unknown");
}

/// A guarded route that answers once with a stream of which the length is known, and where its
/// frames come from.
fn of_known_length(harness: &Harness, status: u16) -> (Frames, axum::Router) {
    let (frames, body) = stream();
    let body = Arc::new(Mutex::new(Some(body)));
    let app = harness.app(move |_| {
        let body = body.lock().unwrap().take().expect("it runs once");
        let status = http::StatusCode::from_u16(status).unwrap();
        async move { (status, axum::Extension(Streaming), [("content-length", "1000000")], body) }
    });
    (frames, app)
}

/// The service declared the length after it had made its answer, so a client that disconnects does
/// not make the outcome unknown.
#[tokio::test(start_paused = true)]
async fn an_answer_of_known_length_whose_client_left_is_judged_by_its_head() {
    let harness = Harness::new();
    let (frames, app) = of_known_length(&harness, 201);
    drop(begin(&app, charge("k", ORDER)).await);
    while frames.send(data("tick")).await.is_ok() {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    wait_until(|| harness.semel.in_flight() == 0).await;
    let again = send(&app, charge("k", ORDER)).await;
    again.assert_problem(410, "response-not-retained");
    assert!(again.is_replayed());
    assert_eq!(harness.runs(), 1);
}

#[tokio::test]
async fn an_answer_of_known_length_that_breaks_is_judged_by_its_head() {
    for (status, again, slug) in [
        (201, 410, "response-not-retained"),
        (402, 410, "response-not-retained"),
        (500, Problem::OutcomeUnknown.status(), "outcome-unknown"),
    ] {
        let harness = Harness::new();
        let (frames, app) = of_known_length(&harness, status);
        let mut body = begin(&app, charge("k", ORDER)).await.into_body();
        for frame in [data("a"), data("b"), Err("cut".into())] {
            frames.send(frame).await.unwrap();
        }
        assert_eq!(next(&mut body).await, "a");
        assert!(body.frame().await.unwrap().is_err(), "its client gets no whole answer");
        wait_until(|| harness.semel.in_flight() == 0).await;
        send(&app, charge("k", ORDER)).await.assert_problem(again, slug);
        assert_eq!(harness.runs(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_route_says_how_long_an_answer_is_read_on() {
    const READ_ON: Duration = Duration::from_secs(5);
    let harness = Harness::new();
    let (frames, body) = stream();
    let body = Arc::new(Mutex::new(Some(body)));
    let app = harness.app_with(harness.layer().read_on(READ_ON), move |_| {
        let body = body.lock().unwrap().take().expect("it runs once");
        async move { (axum::Extension(Streaming), body) }
    });
    drop(begin(&app, charge("k", ORDER)).await);
    let left = tokio::time::Instant::now();
    while frames.send(data("tick")).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    assert!(left.elapsed() >= READ_ON);
    assert!(left.elapsed() < READ_ON + Duration::from_secs(3));
}

/// A body that always has one more frame, and gives up long after it should have been stopped.
struct Ready {
    frame: &'static str,
    left: u32,
}

impl http_body::Body for Ready {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.left -= 1;
        let frame = Frame::data(Bytes::from_static(self.frame.as_bytes()));
        Poll::Ready((self.left > 0).then_some(Ok(frame)))
    }
}

/// A guarded route whose answer is always ready.
fn always_ready(harness: &Harness, frame: &'static str, left: u32) -> axum::Router {
    harness
        .app(move |_| async move { (axum::Extension(Streaming), Body::new(Ready { frame, left })) })
}

#[tokio::test(start_paused = true)]
async fn an_always_ready_stream_without_a_reader_ends_too() {
    let harness = Harness::new();
    let app = always_ready(&harness, "tick", 1_000_000);
    drop(begin(&app, charge("k", ORDER)).await);
    tokio::task::yield_now().await;
    tokio::time::advance(READ_ON_DEFAULT).await;
    wait_until(|| harness.semel.in_flight() == 0).await;
    send(&app, charge("k", ORDER)).await.assert_problem(423, "outcome-unknown");
}

#[tokio::test]
async fn a_stream_that_is_always_ready_lets_others_run() {
    for (frame, hang_up) in [("tick", true), ("", true), ("", false)] {
        let harness = Harness::new();
        let app = always_ready(&harness, frame, 200_000);
        let turns = Arc::new(AtomicU32::new(0));
        let other = tokio::spawn({
            let turns = Arc::clone(&turns);
            async move {
                loop {
                    turns.fetch_add(1, Ordering::SeqCst);
                    tokio::task::yield_now().await;
                }
            }
        });
        let response = begin(&app, charge("k", ORDER)).await;
        let _reads = (!hang_up).then_some(response);
        wait_until(|| harness.semel.in_flight() == 0).await;
        let turns = turns.load(Ordering::SeqCst);
        assert!(turns > 1000, "others ran {turns} times during 200,000 frames");
        other.abort();
    }
}

#[tokio::test]
async fn a_large_answer_arrives_whole_and_is_not_retained() {
    let harness = Harness::new().policy(Policy { response_bytes_max: 1000, ..Policy::default() });
    let large = "x".repeat(1001);
    let app = harness.app({
        let large = large.clone();
        move |_| {
            let large = large.clone();
            async move { large }
        }
    });
    let answer = send(&app, charge("k", ORDER)).await;
    assert_eq!(answer.text(), large);
    assert_eq!(answer.header("content-length"), Some("1001"));
    let again = send(&app, charge("k", ORDER)).await;
    again.assert_problem(410, "response-not-retained");
    assert_eq!(harness.runs(), 1);
}

#[tokio::test]
async fn an_answer_that_grows_past_the_limit_arrives_whole_and_is_not_retained() {
    let harness = Harness::new().policy(Policy { response_bytes_max: 5, ..Policy::default() });
    let app = harness.app(|_| async {
        let (frames, body) = stream();
        for text in ["abc", "def", "ghi", "jkl", "mno", "pqr", "stu"] {
            frames.send(data(text)).await.unwrap();
        }
        body
    });
    assert_eq!(send(&app, charge("k", ORDER)).await.text(), "abcdefghijklmnopqrstu");
    send(&app, charge("k", ORDER)).await.assert_problem(410, "response-not-retained");
    assert_eq!(harness.runs(), 1);
}

#[tokio::test]
async fn server_sent_events_are_a_stream() {
    let harness = Harness::new();
    let app = harness.app(|_| async { ([("content-type", "text/event-stream")], "data: 1\n\n") });
    assert_eq!(send(&app, charge("k", ORDER)).await.text(), "data: 1\n\n");
    send(&app, charge("k", ORDER)).await.assert_problem(410, "response-not-retained");
}

#[tokio::test]
async fn a_request_that_joins_a_stream_gets_response_not_retained() {
    let harness = Harness::new();
    let (frames, app) = streaming(&harness);
    let first = begin(&app, charge("k", ORDER)).await;
    let second = tokio::spawn({
        let app = app.clone();
        async move { send(&app, charge("k", ORDER)).await }
    });
    wait_until(|| harness.semel.waiting() == 1).await;
    frames.send(data("a")).await.unwrap();
    drop(frames);
    assert_eq!(TestResponse::read(first).await.text(), "a");
    let second = second.await.unwrap();
    second.assert_problem(410, "response-not-retained");
    assert!(!second.is_replayed());
}

#[tokio::test]
async fn a_stream_that_was_refused_may_run_again() {
    let harness = Harness::new();
    let app = harness.app(|run| async move {
        let mut response: Response<Body> = run.to_string().into_response();
        response.extensions_mut().insert(Streaming);
        *response.status_mut() = http::StatusCode::TOO_MANY_REQUESTS;
        response
    });
    for run in ["1", "2"] {
        assert_eq!(send(&app, charge("k", ORDER)).await.text(), run);
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reads_slowly_does_not_keep_the_end_from_being_recorded() {
    let harness = Harness::new();
    let (frames, app) = streaming(&harness);
    let mut body = begin(&app, charge("k", ORDER)).await.into_body();
    for text in ["a", "b", "c", "d", "e"] {
        frames.send(data(text)).await.unwrap();
    }
    drop(frames);
    wait_until(|| harness.store.count(StoreCall::Finish) == 1).await;
    for text in ["a", "b", "c", "d", "e"] {
        assert_eq!(next(&mut body).await, text);
    }
    assert!(body.frame().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_client_that_stops_reading_is_disconnected_and_never_sees_a_gap() {
    let harness = Harness::new();
    let (frames, app) = streaming(&harness);
    let mut body = begin(&app, charge("k", ORDER)).await.into_body();
    for number in 0..20 {
        frames.send(data(if number % 2 == 0 { "even" } else { "odd" })).await.unwrap();
    }
    drop(frames);
    tokio::time::sleep(READ_ON_DEFAULT).await;
    wait_until(|| harness.store.count(StoreCall::Finish) == 1).await;
    let mut read = 0;
    let broken = loop {
        match body.frame().await {
            Some(Ok(_)) => read += 1,
            other => break other,
        }
    };
    assert!(matches!(broken, Some(Err(_))), "after {read} chunks");
    assert!(read < 20);
    send(&app, charge("k", ORDER)).await.assert_problem(410, "response-not-retained");
    assert_eq!(harness.runs(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_come_whole_however_fast_they_end() {
    let harness = Harness::new();
    let app = harness.app(|run| async move {
        let (frames, body) = stream();
        for text in ["a", "b", "c"].iter().take(usize::try_from(run).unwrap() % 4) {
            frames.send(data(text)).await.unwrap();
        }
        (axum::Extension(Streaming), [("x-run", run.to_string())], body)
    });
    let ask = |index: usize| {
        let app = app.clone();
        tokio::spawn(async move { send(&app, charge(&index.to_string(), ORDER)).await })
    };
    for asked in (0..400).map(ask).collect::<Vec<_>>() {
        let answer = asked.await.unwrap();
        let run: usize = answer.header("x-run").unwrap().parse().unwrap();
        assert_eq!(answer.text(), &"abc"[..run % 4]);
    }
    assert_eq!(harness.runs(), 400);
}

#[tokio::test(start_paused = true)]
async fn a_stream_whose_client_left_before_its_head_ends_too() {
    let harness = Harness::new();
    let gate = Gate::new();
    let (frames, body) = stream();
    let body = Arc::new(Mutex::new(Some(body)));
    let app = harness.app({
        let gate = gate.clone();
        move |_| {
            let (gate, body) = (gate.clone(), body.lock().unwrap().take().expect("it runs once"));
            async move {
                gate.wait_open().await;
                (axum::Extension(Streaming), body)
            }
        }
    });
    let client = tokio::spawn({
        let app = app.clone();
        async move { begin(&app, charge("k", ORDER)).await }
    });
    wait_until(|| harness.runs() == 1).await;
    client.abort();
    let _ = client.await;
    gate.open();
    tokio::time::sleep(READ_ON_DEFAULT + Duration::from_secs(1)).await;
    wait_until(|| harness.semel.in_flight() == 0).await;
    drop(frames);
    send(&app, charge("k", ORDER)).await.assert_problem(423, "outcome-unknown");
}
