//! What is read from answers, made of them and handed on.

use std::{
    collections::BTreeSet,
    error, fmt,
    future::pending,
    sync::{Arc, Mutex},
};

use http::{HeaderMap, HeaderName, HeaderValue};
use http_body::Frame;
use http_body_util::Full;
use semel::{
    BeginRequest, Caller, Event, Key, MemoryStore, Observer, Scope, Semel,
    core::{
        Content, Field, Fingerprint, OnUnknown, Problem, Reason, RecordId, Verdict,
        canonical::Pointer,
    },
};
use tokio::sync::oneshot;

use super::*;
use crate::{
    CallBroken, Callers, MemoryBudget, NeverReached, PeerMemory, RecordContent, Streaming,
    buffered_body::BodyChunk,
    handler_signals::failed,
    header::IDEMPOTENCY_OUTCOME,
    testing::{Frames, broken, frames},
};

/// What a route makes of an answer, beside what its policy says.
#[derive(Default)]
struct Setting {
    policy: Policy,
    content: RecordContent,
    grpc: bool,
    memory: Option<PeerMemory>,
    reports: Reports,
}

/// What was reported about answers.
#[derive(Clone, Debug, Default)]
struct Reports(Arc<Mutex<Vec<Report>>>);

#[derive(Debug, PartialEq, Eq)]
enum Report {
    Contradicted(Verdict, u16),
    NotRetained,
}

impl Observer for Reports {
    fn on_event(&self, event: &Event<'_>) {
        if let EventKind::OutcomeContradicted { outcome, status } = event.kind {
            self.0.lock().unwrap().push(Report::Contradicted(outcome, status));
        } else if matches!(event.kind, EventKind::NotRetained) {
            self.0.lock().unwrap().push(Report::NotRetained);
        }
    }
}

impl Reports {
    fn take(&self) -> Vec<Report> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

impl Setting {
    async fn captures<B>(&self, response: Response<B>) -> (ExecutionResult, Option<HandlerResponse>)
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let semel = Semel::builder(MemoryStore::new()).observer(self.reports.clone()).build();
        let scope = Scope::new("tests").unwrap();
        let mut config = LayerConfig::new(semel.clone(), scope.clone(), Callers::anonymous());
        config.content = self.content.clone();
        let policy = Arc::new(self.policy.clone());
        let id = RecordId::new(scope, Caller::anonymous(), Key::new("k").unwrap());
        let fingerprint = Fingerprint::from_bytes(&[1; 33]).unwrap();
        let (lease_tx, lease) = oneshot::channel();
        let operation = BeginRequest::new(id, fingerprint, Arc::clone(&policy));
        let _running = semel.begin(operation, |lease| {
            lease_tx.send(lease).unwrap();
            pending::<ExecutionOutput<()>>()
        });
        let (config, lease) = (Arc::new(config), lease.await.unwrap());
        let route = CaptureContext { config, policy, lease, grpc: self.grpc };
        let memory = self
            .memory
            .as_ref()
            .map(|memory| memory.reserve_answer(self.policy.response_bytes_max).unwrap());
        match capture(response, route, memory).await {
            ExecutionOutput::Ended(result, response) => (result, response),
            ExecutionOutput::Early(response, rest) => (rest.await, Some(response)),
        }
    }
}

async fn captured<B>(
    response: Response<B>,
    policy: &Policy,
) -> (ExecutionResult, Option<HandlerResponse>)
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    Setting { policy: policy.clone(), grpc: true, ..Setting::default() }.captures(response).await
}

fn full(text: &'static str) -> Full<Bytes> {
    Full::new(Bytes::from_static(text.as_bytes()))
}

fn grpc(frames: Vec<Frame<Bytes>>) -> Response<Frames> {
    let response = Response::builder().header("content-type", "application/grpc+proto");
    response.body(Frames::new(frames.into_iter().map(Ok))).unwrap()
}

fn trailers(status: &'static str) -> Frame<Bytes> {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static(status));
    Frame::trailers(trailers)
}

fn verdict(ended: &ExecutionResult) -> Verdict {
    match ended {
        ExecutionResult::Answered { verdict, .. } => *verdict,
        ExecutionResult::NeverReached | ExecutionResult::Broken(_) => {
            panic!("no answer: {ended:?}")
        }
    }
}

fn reason(ended: &ExecutionResult) -> &Reason {
    match ended {
        ExecutionResult::Answered { reason, .. } | ExecutionResult::Broken(reason) => reason,
        ExecutionResult::NeverReached => &Reason::NotSent,
    }
}

fn content(ended: ExecutionResult) -> Content {
    match ended {
        ExecutionResult::Answered { answer, .. } => answer.read().unwrap(),
        ExecutionResult::NeverReached | ExecutionResult::Broken(_) => {
            panic!("no answer: {ended:?}")
        }
    }
}

#[tokio::test]
async fn kept_headers_are_recorded_in_order_and_number_and_the_client_gets_all() {
    let response = Response::builder()
        .status(201)
        .header("link", "</a>")
        .header("set-cookie", "s=1")
        .header("etag", "\"1\"")
        .header("link", "</b>")
        .header("date", "now")
        .body(full("ok"))
        .unwrap();
    let (ended, response) = captured(response, &Policy::default()).await;
    assert_eq!(verdict(&ended), Verdict::Completed);
    let Content::Response(stored) = content(ended) else { panic!("not a response") };
    assert_eq!((stored.status, &*stored.body), (201, &b"ok"[..]));
    let kept = [("link", "</a>"), ("link", "</b>"), ("etag", "\"1\"")];
    assert_eq!(stored.headers, kept.map(|(name, value)| Field::new(name, value)));
    let Some(HandlerResponse::Buffered(parts, buffered)) = response else { panic!("not whole") };
    assert_eq!(parts.headers.len(), 5);
    assert_eq!(buffered.data(), "ok");
}

/// An answer that says what it makes of its record.
fn said(status: u16, lines: &[&'static str], extension: Option<Verdict>) -> Response<Full<Bytes>> {
    let mut response = Response::builder().status(status).body(full("")).unwrap();
    for line in lines {
        response.headers_mut().append(IDEMPOTENCY_OUTCOME, HeaderValue::from_static(line));
    }
    if let Some(verdict) = extension {
        response.extensions_mut().insert(verdict);
    }
    response
}

#[tokio::test]
async fn the_service_has_the_last_word() {
    for (response, expected) in [
        (said(503, &["retry"], None), Verdict::Retry),
        (said(503, &["forget"], None), Verdict::Forget),
        (said(503, &["completed"], None), Verdict::Completed),
        (said(200, &["unknown"], Some(Verdict::Completed)), Verdict::Unknown),
        (said(503, &[], Some(Verdict::Retry)), Verdict::Retry),
        (said(200, &["perhaps"], None), Verdict::Unknown),
        (said(503, &["retry", "retry"], None), Verdict::Retry),
        (said(503, &["retry", "completed"], None), Verdict::Unknown),
        (said(503, &["completed", "perhaps"], None), Verdict::Unknown),
        (said(200, &[], None), Verdict::Completed),
        (said(503, &[], None), Verdict::Unknown),
    ] {
        let (ended, response) = captured(response, &Policy::default()).await;
        assert_eq!(verdict(&ended), expected);
        let Some(HandlerResponse::Buffered(parts, _)) = response else { panic!("not whole") };
        assert!(parts.headers.is_empty() && parts.extensions.get::<Verdict>().is_none());
    }
}

#[tokio::test]
async fn a_success_that_says_that_nothing_happened_is_unknown_and_reported() {
    let setting = Setting::default();
    for (line, outcome) in [("retry", Verdict::Retry), ("forget", Verdict::Forget)] {
        for status in [200, 303] {
            let (ended, _) = setting.captures(said(status, &[line], None)).await;
            assert_eq!(verdict(&ended), Verdict::Unknown);
            assert_eq!(*reason(&ended), Reason::Declared(outcome));
            assert_eq!(setting.reports.take(), [Report::Contradicted(outcome, status)]);
        }
        setting.captures(said(400, &[line], None)).await;
    }
    setting.captures(said(200, &["unknown"], None)).await;
    assert_eq!(setting.reports.take(), []);
}

#[tokio::test]
async fn a_client_error_that_asks_for_a_retry_frees_its_key() {
    for (name, value, expected) in [
        ("retry-after", "3", Verdict::Retry),
        ("x-should-retry", "true", Verdict::Retry),
        ("x-should-retry", "false", Verdict::Completed),
        ("x-retry", "true", Verdict::Completed),
    ] {
        let response = Response::builder().status(409).header(name, value);
        let (ended, _) = captured(response.body(full("")).unwrap(), &Policy::default()).await;
        assert_eq!(verdict(&ended), expected, "{name}: {value}");
        let response = Response::builder().status(503).header(name, value);
        let (ended, _) = captured(response.body(full("")).unwrap(), &Policy::default()).await;
        assert_eq!(verdict(&ended), Verdict::Unknown, "503 proves nothing, whatever it asks for");
    }
}

#[tokio::test]
async fn an_answer_that_does_not_complete_says_why() {
    let plain = |status| Response::builder().status(status).body(full("")).unwrap();
    for (response, expected) in [
        (plain(503), Reason::Answered(503)),
        (plain(307), Reason::Answered(307)),
        (said(500, &["retry"], None), Reason::Declared(Verdict::Retry)),
    ] {
        let (ended, _) = captured(response, &Policy::default()).await;
        assert_eq!(*reason(&ended), expected);
    }
    let (ended, _) = captured(grpc(vec![trailers("14")]), &Policy::default()).await;
    assert_eq!(*reason(&ended), Reason::GrpcStatus(14));
    let (ended, _) = captured(grpc(vec![]), &Policy::default()).await;
    assert_eq!(*reason(&ended), Reason::GrpcStatusMissing);
}

#[tokio::test]
async fn grpc_is_judged_by_its_trailers() {
    let data = || Frame::data(Bytes::from_static(b"\0\0\0\0\0"));
    for (frames, expected) in [
        (vec![data(), trailers("0")], Verdict::Completed),
        (vec![data(), trailers("16")], Verdict::Retry),
        (vec![data(), trailers("14")], Verdict::Unknown),
        (vec![data(), trailers("2")], Verdict::Unknown),
        (vec![data(), trailers("what")], Verdict::Unknown),
        (vec![data()], Verdict::Unknown),
    ] {
        let (ended, _) = captured(grpc(frames), &Policy::default()).await;
        assert_eq!(verdict(&ended), expected);
    }
}

#[tokio::test]
async fn a_grpc_answer_of_trailers_only_is_judged_by_its_headers_and_keeps_them() {
    let mut response = grpc(vec![]);
    let headers = response.headers_mut();
    headers.insert("grpc-status", HeaderValue::from_static("5"));
    headers.insert("grpc-message", HeaderValue::from_static("no such charge"));
    headers.insert("server", HeaderValue::from_static("x"));
    let (ended, _) = captured(response, &Policy::default()).await;
    assert_eq!(verdict(&ended), Verdict::Completed);
    let Content::Response(stored) = content(ended) else { panic!("not a response") };
    assert_eq!(stored.headers.len(), 3);
}

#[tokio::test]
async fn an_outcome_in_trailers_is_obeyed_and_removed() {
    let mut said = HeaderMap::new();
    said.insert("idempotency-outcome", HeaderValue::from_static("retry"));
    said.insert("x-checksum", HeaderValue::from_static("abc"));
    said.insert("grpc-status", HeaderValue::from_static("13"));
    let (ended, response) = captured(grpc(vec![Frame::trailers(said)]), &Policy::default()).await;
    assert_eq!(verdict(&ended), Verdict::Retry);
    let Some(HandlerResponse::Buffered(_, buffered)) = response else { panic!("not whole") };
    let left: BTreeSet<_> = buffered.trailers().unwrap().keys().map(HeaderName::as_str).collect();
    assert_eq!(left, BTreeSet::from(["grpc-status", "x-checksum"]));
}

#[tokio::test]
async fn an_answer_is_grpc_only_if_its_request_and_its_type_are() {
    let call = Setting { grpc: true, ..Setting::default() };
    let (ended, _) = call.captures(Response::new(full("<html>"))).await;
    assert_eq!(verdict(&ended), Verdict::Completed);
    let (ended, _) = Setting::default().captures(grpc(vec![])).await;
    assert_eq!(verdict(&ended), Verdict::Completed);
    let (ended, _) = call.captures(grpc(vec![])).await;
    assert_eq!(verdict(&ended), Verdict::Unknown);
}

#[tokio::test]
async fn more_headers_than_are_kept_are_passed_on_and_not_retained() {
    let mut response = Response::new(full("ok"));
    let line = HeaderValue::try_from("x".repeat(encode::FIELD_BYTES_MAX)).unwrap();
    response.headers_mut().insert("link", line.clone());
    let (ended, response) = captured(response, &Policy::default()).await;
    assert_eq!(content(ended), Content::NotRetained { status: 200 });
    let Some(HandlerResponse::Buffered(parts, _)) = response else { panic!("not whole") };
    assert_eq!(parts.headers["link"], line);
}

#[tokio::test]
async fn trailers_are_recorded() {
    let (ended, _) = captured(grpc(vec![trailers("0")]), &Policy::default()).await;
    let Content::Response(stored) = content(ended) else { panic!("not a response") };
    assert_eq!(stored.trailers, [Field::new("grpc-status", "0")]);
}

/// The chunks of a streamed answer, as text; the last one in brackets.
async fn chunks(response: Option<HandlerResponse>) -> String {
    let Some(HandlerResponse::Chunks(_, mut rx)) = response else { panic!("not streamed") };
    let mut text = String::new();
    while let Some((chunk, _)) = rx.ahead.recv().await {
        match chunk {
            BodyChunk::Data(data) => text.push_str(str::from_utf8(&data).unwrap()),
            BodyChunk::Broken(error) => text.push_str(&format!("!{error}")),
        }
    }
    if let Ok(buffered) = rx.last.await {
        let trailers = if buffered.trailers().is_some() { "+trailers" } else { "" };
        text.push_str(&format!("[{}{trailers}]", str::from_utf8(buffered.data()).unwrap()));
    }
    text
}

fn small() -> Policy {
    Policy { response_bytes_max: 4, ..Policy::default() }
}

#[tokio::test]
async fn an_answer_over_the_limit_is_passed_on_with_its_last_piece_held_back() {
    let (ended, response) = captured(Response::new(frames(&["abc", "de", "fg"])), &small()).await;
    assert_eq!(chunks(response).await, "abcde[fg]");
    assert_eq!(content(ended), Content::NotRetained { status: 200 });
    let (_, response) = captured(Response::new(full("abcdef")), &small()).await;
    assert_eq!(chunks(response).await, "[abcdef]", "known to be large from the start");
}

#[tokio::test]
async fn a_stream_that_says_so_is_passed_on_whatever_its_size() {
    let mut streaming = Response::new(frames(&["a", "b"]));
    streaming.extensions_mut().insert(Streaming);
    let (_, response) = captured(streaming, &Policy::default()).await;
    assert_eq!(chunks(response).await, "a[b]");
    let events = Response::builder().header("content-type", "Text/Event-Stream; charset=utf-8");
    let (_, response) = captured(events.body(frames(&[])).unwrap(), &Policy::default()).await;
    assert_eq!(chunks(response).await, "[]");
}

#[tokio::test]
async fn an_empty_frame_and_trailers_do_not_push_out_the_last_data() {
    let frames = ["a", "b", ""].map(|text| Frame::data(Bytes::from_static(text.as_bytes())));
    let mut response = grpc(frames.into_iter().chain([trailers("16")]).collect());
    response.extensions_mut().insert(Streaming);
    let (ended, response) = captured(response, &Policy::default()).await;
    assert_eq!(chunks(response).await, "a[b+trailers]");
    assert_eq!(verdict(&ended), Verdict::Retry, "grpc-status 16");
}

/// How a body of two frames that fails is captured: buffered, and as a stream.
async fn broken_after_two(
    headers: &[(&str, &str)],
    status: u16,
    setting: &Setting,
) -> [(ExecutionResult, Option<HandlerResponse>); 2] {
    let response = || {
        let response = Response::builder().status(status);
        let add = |response: http::response::Builder, (name, value): &(&str, &str)| {
            response.header(*name, *value)
        };
        headers.iter().fold(response, add).body(broken(&["a", "bc"])).unwrap()
    };
    let mut stream = response();
    stream.extensions_mut().insert(Streaming);
    [setting.captures(response()).await, setting.captures(stream).await]
}

#[tokio::test]
async fn a_body_that_breaks_is_a_broken_execution() {
    let setting = Setting { grpc: true, ..Setting::default() };
    let grpc = ("content-type", "application/grpc");
    for headers in [
        &[][..],
        &[("trailer", "x-checksum"), ("content-length", "9")],
        &[grpc, ("content-length", "9")],
    ] {
        let [(buffered, nothing), (stream, begun)] = broken_after_two(headers, 201, &setting).await;
        assert_eq!(buffered, ExecutionResult::Broken(Reason::ConnectionLost(3)), "{headers:?}");
        assert!(nothing.is_none());
        assert_eq!(stream, ExecutionResult::Broken(Reason::ConnectionLost(3)), "{headers:?}");
        assert_eq!(chunks(begun).await, "a!cut");
    }
}

/// Its length was known when its head was sent, so it was made: only its delivery failed.
#[tokio::test]
async fn an_answer_with_a_length_that_breaks_is_judged_by_its_head() {
    let length = [("content-length", "9")];
    for (status, expected) in [
        (201, Verdict::Completed),
        (402, Verdict::Completed),
        (429, Verdict::Retry),
        (307, Verdict::Forget),
        (500, Verdict::Unknown),
    ] {
        let [buffered, stream] = broken_after_two(&length, status, &Setting::default()).await;
        assert_eq!(chunks(buffered.1).await, "abc!cut", "its client gets what has come");
        assert_eq!(chunks(stream.1).await, "a!cut");
        for ended in [buffered.0, stream.0] {
            assert_eq!(verdict(&ended), expected, "{status}");
            if expected == Verdict::Completed {
                assert_eq!(content(ended), Content::NotRetained { status });
            } else {
                assert_eq!(*reason(&ended), Reason::Answered(status));
            }
        }
    }
}

#[tokio::test]
async fn requests_that_join_a_truncated_answer_get_the_state_of_the_record() {
    let problem_answer = |problem| encode::problem_answer(problem).read().unwrap();
    for (status, on_unknown, expected) in [
        (201, OnUnknown::Hold, Content::NotRetained { status: 201 }),
        (429, OnUnknown::Hold, problem_answer(Problem::InProgress)),
        (500, OnUnknown::Hold, problem_answer(Problem::OutcomeUnknown)),
        (500, OnUnknown::Rerun, problem_answer(Problem::InProgress)),
    ] {
        let policy = Policy { on_unknown, ..Policy::default() };
        let setting = Setting { policy, ..Setting::default() };
        for (ended, _) in broken_after_two(&[("content-length", "9")], status, &setting).await {
            assert_eq!(content(ended), expected, "{status} {on_unknown:?}");
        }
    }
}

#[tokio::test]
async fn a_status_alone_is_recorded_where_the_route_says_so() {
    let setting = Setting { content: RecordContent::Status, ..Setting::default() };
    let (ended, response) = setting.captures(Response::new(full("card 4242"))).await;
    assert_eq!(content(ended), Content::NotRetained { status: 200 });
    let Some(HandlerResponse::Buffered(_, buffered)) = response else { panic!("not whole") };
    assert_eq!(buffered.data(), "card 4242", "its client gets all of it");
}

#[tokio::test]
async fn redacted_values_are_not_recorded() {
    let pointers = vec![Pointer::parse("/card/number").unwrap()];
    let setting = Setting { content: RecordContent::Redacted(pointers), ..Setting::default() };
    let body = r#"{"id": 7, "card": {"number": "4242"}}"#;
    let response = Response::builder()
        .header("content-type", "application/json")
        .header("content-length", body.len())
        .header("content-digest", "sha-256=:x:");
    let (ended, response) = setting.captures(response.body(full(body)).unwrap()).await;
    let Content::Response(stored) = content(ended) else { panic!("not a response") };
    assert_eq!(stored.body, r#"{"id": 7, "card": {"number": "[redacted]"}}"#);
    let headers = [("content-type", "application/json"), ("idempotent-replayed", "redacted")];
    assert_eq!(stored.headers, headers.map(|(name, value)| Field::new(name, value)));
    let Some(HandlerResponse::Buffered(parts, buffered)) = response else { panic!("not whole") };
    assert_eq!((buffered.data().as_ref(), parts.headers.len()), (body.as_bytes(), 3));
    // Nothing to replace: the answer is recorded as it is.
    for body in [r#"{"id": 7}"#, ""] {
        let (ended, _) = setting.captures(Response::new(full(body))).await;
        let Content::Response(stored) = content(ended) else { panic!("not a response") };
        assert_eq!((stored.body.as_ref(), stored.headers.len()), (body.as_bytes(), 0));
    }
    // The place of the number is unknown.
    for body in ["number=4242", r#"{"card": {"number": 1, "number": 2}}"#] {
        let (ended, _) = setting.captures(Response::new(full(body))).await;
        assert_eq!(content(ended), Content::NotRetained { status: 200 });
    }
}

#[test]
fn an_error_that_never_reached_the_service_is_found_among_its_sources() {
    #[derive(Debug)]
    struct Outer(NeverReached);
    impl fmt::Display for Outer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("connect")
        }
    }
    impl error::Error for Outer {
        fn source(&self) -> Option<&(dyn error::Error + 'static)> {
            Some(&self.0)
        }
    }
    assert_eq!(failed(&NeverReached), ExecutionResult::NeverReached);
    assert_eq!(failed(&Outer(NeverReached)), ExecutionResult::NeverReached);
    assert_eq!(failed(&fmt::Error), ExecutionResult::Broken(Reason::OperationError));
    let timed_out = Reason::TimedOut(250);
    let broken = failed(&CallBroken(timed_out.clone()));
    assert_eq!(broken, ExecutionResult::Broken(timed_out));
}

#[tokio::test]
async fn a_large_answer_is_in_memory_once() {
    let (ended, response) =
        captured(Response::new(Full::new(Bytes::from(vec![7; 1 << 20]))), &Policy::default()).await;
    let Content::Response(stored) = content(ended) else { panic!("not a response") };
    let Some(HandlerResponse::Buffered(_, buffered)) = response else { panic!("not whole") };
    assert_eq!(buffered.data().as_ptr(), stored.body.as_ptr(), "sent from its record");
    assert_eq!(buffered.data().len(), 1 << 20);
}

#[tokio::test]
async fn an_answer_counts_until_it_is_sent_and_without_memory_it_is_passed_on() {
    let budget = MemoryBudget::new(8000);
    let memory = Some(budget.peer([10, 0, 0, 1].into()));
    let setting = Setting { memory, ..Setting::default() };
    let (first, response) = setting.captures(Response::new(frames(&["a", "bc"]))).await;
    assert!(matches!(content(first), Content::Response(_)));
    assert_eq!(budget.used(), 3, "it is not sent yet");
    let large = Response::new(Full::new(Bytes::from(vec![7; 3500])));
    let (second, passed) = setting.captures(large).await;
    assert_eq!(verdict(&second), Verdict::Completed);
    assert_eq!(content(second), Content::NotRetained { status: 200 });
    assert!(matches!(passed, Some(HandlerResponse::Chunks(..))));
    assert_eq!(setting.reports.take(), [Report::NotRetained]);
    drop((response, passed));
    assert_eq!(budget.used(), 0);
}
