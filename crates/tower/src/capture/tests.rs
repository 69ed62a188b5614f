//! What is read from answers, made of them and handed on.

use http_body::Frame;
use http_body_util::Full;
use semel::core::{Content, Field};

use super::*;
use crate::body::Piece;
use crate::testing::{Frames, broken, frames};

async fn captured<B>(response: Response<B>, policy: &Policy) -> (Ended, Option<Handed>)
where
    B: Body<Data = Bytes> + Send,
    B::Error: Into<BoxError>,
{
    let hand = std::sync::Arc::new(Hand::default());
    let client = std::sync::Arc::downgrade(&hand);
    let kept = Kept::default();
    let route = Route { kept: &kept, policy, grpc: false, guarded: true };
    let ended = capture(response, route, &client).await;
    (ended, hand.take())
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

fn verdict(ended: &Ended) -> Verdict {
    match ended {
        Ended::Answered { verdict, .. } => *verdict,
        Ended::NeverReached | Ended::Broken => panic!("no answer: {ended:?}"),
    }
}

fn content(ended: Ended) -> Content {
    match ended {
        Ended::Answered { answer, .. } => answer.read().unwrap(),
        Ended::NeverReached | Ended::Broken => panic!("no answer: {ended:?}"),
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
    let (ended, handed) = captured(response, &Policy::default()).await;
    assert_eq!(verdict(&ended), Verdict::Completed);
    let Content::Response(stored) = content(ended) else { panic!("not a response") };
    assert_eq!((stored.status, &*stored.body), (201, &b"ok"[..]));
    let kept = [("link", "</a>"), ("link", "</b>"), ("etag", "\"1\"")];
    assert_eq!(stored.headers, kept.map(|(name, value)| Field::new(name, value)));
    let Some(Handed::Whole(parts, whole)) = handed else { panic!("not whole") };
    assert_eq!(parts.headers.len(), 5);
    assert_eq!(whole.data(), "ok");
}

#[tokio::test]
async fn the_service_has_the_last_word() {
    let said = |lines: &[&'static str], extension: Option<Verdict>| {
        let mut response = Response::new(full(""));
        for line in lines {
            let value = HeaderValue::from_static(line);
            response.headers_mut().append(IDEMPOTENCY_OUTCOME, value);
        }
        if let Some(verdict) = extension {
            response.extensions_mut().insert(verdict);
        }
        response
    };
    for (response, expected) in [
        (said(&["retry"], None), Verdict::Retry),
        (said(&["unknown"], Some(Verdict::Completed)), Verdict::Unknown),
        (said(&[], Some(Verdict::Retry)), Verdict::Retry),
        (said(&["perhaps"], None), Verdict::Unknown),
        (said(&["retry", "retry"], None), Verdict::Retry),
        (said(&["retry", "completed"], None), Verdict::Unknown),
        (said(&["completed", "perhaps"], None), Verdict::Unknown),
        (said(&[], None), Verdict::Completed),
    ] {
        let (ended, handed) = captured(response, &Policy::default()).await;
        assert_eq!(verdict(&ended), expected);
        let Some(Handed::Whole(parts, _)) = handed else { panic!("not whole") };
        assert!(parts.headers.is_empty() && parts.extensions.get::<Verdict>().is_none());
    }
}

#[tokio::test]
async fn grpc_is_judged_by_its_trailers() {
    let data = || Frame::data(Bytes::from_static(b"\0\0\0\0\0"));
    for (frames, expected) in [
        (vec![data(), trailers("0")], Verdict::Completed),
        (vec![data(), trailers("14")], Verdict::Retry),
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
    let (ended, handed) = captured(grpc(vec![Frame::trailers(said)]), &Policy::default()).await;
    assert_eq!(verdict(&ended), Verdict::Retry);
    let Some(Handed::Whole(_, whole)) = handed else { panic!("not whole") };
    let left: Vec<_> = whole.trailers().unwrap().keys().map(HeaderName::as_str).collect();
    assert_eq!(left, ["x-checksum"]);
}

#[tokio::test]
async fn a_page_in_answer_to_a_grpc_call_is_an_unknown_outcome() {
    let (policy, kept) = (Policy::default(), Kept::default());
    let hand = std::sync::Arc::new(Hand::default());
    let client = std::sync::Arc::downgrade(&hand);
    let route = Route { kept: &kept, policy: &policy, grpc: true, guarded: true };
    let ended = capture(Response::new(full("<html>")), route, &client).await;
    assert_eq!(verdict(&ended), Verdict::Unknown);
}

#[tokio::test]
async fn more_headers_than_are_kept_are_passed_on_and_not_retained() {
    let mut response = Response::new(full("ok"));
    let line = HeaderValue::try_from("x".repeat(FIELD_BYTES_MAX)).unwrap();
    response.headers_mut().insert("link", line.clone());
    let (ended, handed) = captured(response, &Policy::default()).await;
    assert_eq!(content(ended), Content::NotRetained { status: 200 });
    let Some(Handed::Whole(parts, _)) = handed else { panic!("not whole") };
    assert_eq!(parts.headers["link"], line);
}

#[tokio::test]
async fn trailers_are_recorded() {
    let (ended, _) = captured(grpc(vec![trailers("0")]), &Policy::default()).await;
    let Content::Response(stored) = content(ended) else { panic!("not a response") };
    assert_eq!(stored.trailers, [Field::new("grpc-status", "0")]);
}

#[tokio::test]
async fn a_body_that_breaks_is_a_broken_execution() {
    let (ended, handed) = captured(Response::new(broken(&["a"])), &Policy::default()).await;
    assert_eq!(ended, Ended::Broken);
    assert!(handed.is_none());
}

/// The pieces of a live answer, as text; the last one in brackets.
async fn pieces(handed: Option<Handed>) -> String {
    let Some(Handed::Live(_, mut pieces)) = handed else { panic!("not live") };
    let mut text = String::new();
    while let Some(piece) = pieces.ahead.recv().await {
        match piece {
            Piece::Data(data) => text.push_str(str::from_utf8(&data).unwrap()),
            Piece::Broken(error) => text.push_str(&format!("!{error}")),
        }
    }
    if let Ok(whole) = pieces.last.await {
        let trailers = if whole.trailers().is_some() { "+trailers" } else { "" };
        text.push_str(&format!("[{}{trailers}]", str::from_utf8(whole.data()).unwrap()));
    }
    text
}

fn small() -> Policy {
    Policy { response_bytes_max: 4, ..Policy::default() }
}

#[tokio::test]
async fn an_answer_over_the_limit_is_passed_on_with_its_last_piece_held_back() {
    let (ended, handed) = captured(Response::new(frames(&["abc", "de", "fg"])), &small()).await;
    assert_eq!(pieces(handed).await, "abcde[fg]");
    assert_eq!(content(ended), Content::NotRetained { status: 200 });
    let (_, handed) = captured(Response::new(full("abcdef")), &small()).await;
    assert_eq!(pieces(handed).await, "[abcdef]", "known to be large from the start");
}

#[tokio::test]
async fn a_stream_that_says_so_is_passed_on_whatever_its_size() {
    let mut streaming = Response::new(frames(&["a", "b"]));
    streaming.extensions_mut().insert(Streaming);
    let (_, handed) = captured(streaming, &Policy::default()).await;
    assert_eq!(pieces(handed).await, "a[b]");
    let events = Response::builder().header("content-type", "Text/Event-Stream; charset=utf-8");
    let (_, handed) = captured(events.body(frames(&[])).unwrap(), &Policy::default()).await;
    assert_eq!(pieces(handed).await, "[]");
}

#[tokio::test]
async fn an_empty_frame_and_trailers_do_not_push_out_the_last_data() {
    let frames = ["a", "b", ""].map(|text| Frame::data(Bytes::from_static(text.as_bytes())));
    let mut response = grpc(frames.into_iter().chain([trailers("8")]).collect());
    response.extensions_mut().insert(Streaming);
    let (ended, handed) = captured(response, &Policy::default()).await;
    assert_eq!(pieces(handed).await, "a[b+trailers]");
    assert_eq!(verdict(&ended), Verdict::Retry, "grpc-status 8");
}

#[tokio::test]
async fn a_stream_that_breaks_says_so() {
    let mut response = Response::new(broken(&["a", "b"]));
    response.extensions_mut().insert(Streaming);
    let (ended, handed) = captured(response, &Policy::default()).await;
    assert_eq!(ended, Ended::Broken);
    assert_eq!(pieces(handed).await, "a!cut");
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
    assert_eq!(failed(&NeverReached), Ended::NeverReached);
    assert_eq!(failed(&Outer(NeverReached)), Ended::NeverReached);
    assert_eq!(failed(&fmt::Error), Ended::Broken);
}
