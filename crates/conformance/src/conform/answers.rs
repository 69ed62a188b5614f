//! Answers come back byte for byte.

use semel_core::{Answer, Content, Fenced, Field, Occupied, StoredResponse};

use super::harness::{RETENTION, StoreHarness, claim, rival};

const MEBIBYTE: usize = 1 << 20;

/// Completes with this answer, and expects it back from every side.
async fn replays(harness: &StoreHarness, answer: Answer) {
    let claim = claim("answer");
    let fence = harness.granted(&claim).await.fence;
    assert_eq!(harness.complete(&claim.id, fence, &answer).await, Fenced::Applied);
    let replay = Occupied::Completed { answer: answer.clone(), expires_in: RETENTION };
    assert!(harness.occupied(&rival(&claim)).await == replay, "the claim gets other bytes");
    let state = harness.seen(&claim.id).await.state;
    let seen = semel_core::StateView::Completed { answer, expires_in: RETENTION };
    assert!(state == seen, "the record shows other bytes");
}

async fn replays_response(harness: &StoreHarness, response: StoredResponse) {
    let answer = Answer::response(&response);
    assert!(answer.read() == Ok(Content::Response(response)));
    replays(harness, answer).await;
}

/// Bytes that do not compress and hold every value.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_u32;
    let next = move |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    (0..length).map(next).collect()
}

pub(crate) async fn an_empty_body_is_replayed(harness: &StoreHarness) {
    replays_response(harness, StoredResponse { status: 204, ..StoredResponse::default() }).await;
}

pub(crate) async fn a_mebibyte_is_replayed(harness: &StoreHarness) {
    let body = noise(MEBIBYTE).into();
    replays_response(harness, StoredResponse { status: 200, body, ..StoredResponse::default() })
        .await;
}

pub(crate) async fn every_byte_value_is_replayed(harness: &StoreHarness) {
    let bytes: Vec<u8> = (0..=u8::MAX).collect();
    let headers = vec![Field::new("x-bytes", bytes.clone())];
    let response = StoredResponse { status: 200, headers, body: bytes.into(), trailers: vec![] };
    replays_response(harness, response).await;
}

pub(crate) async fn repeated_headers_are_replayed_in_order(harness: &StoreHarness) {
    let headers = vec![
        Field::new("link", "</2>"),
        Field::new("vary", "accept"),
        Field::new("link", "</1>"),
        Field::new("link", "</1>"),
        Field::new("x-empty", ""),
    ];
    replays_response(harness, StoredResponse { status: 200, headers, ..StoredResponse::default() })
        .await;
}

pub(crate) async fn trailers_are_replayed(harness: &StoreHarness) {
    let trailers = vec![Field::new("grpc-status", "5"), Field::new("grpc-message", "not found")];
    let headers = vec![Field::new("content-type", "application/grpc")];
    let body = vec![0, 0, 0, 0, 0].into();
    replays_response(harness, StoredResponse { status: 200, headers, body, trailers }).await;
}

pub(crate) async fn an_answer_not_retained_is_replayed(harness: &StoreHarness) {
    replays(harness, Answer::not_retained(200)).await;
}

pub(crate) async fn an_answer_is_read_through_another_handle(harness: &StoreHarness) {
    let claim = claim("other");
    let fence = harness.granted(&claim).await.fence;
    let body = noise(5000).into();
    let response = StoredResponse { status: 200, body, ..StoredResponse::default() };
    let answer = Answer::response(&response);
    let (one, two) = (harness.another().await, harness.another().await);
    assert_eq!(one.complete(&claim.id, fence, &answer).await, Fenced::Applied);
    let replay = Occupied::Completed { answer, expires_in: RETENTION };
    assert!(two.occupied(&rival(&claim)).await == replay, "the claim gets other bytes");
}

pub(crate) async fn a_repeated_completion_with_a_large_answer_is_applied(harness: &StoreHarness) {
    let claim = claim("repeated");
    let fence = harness.granted(&claim).await.fence;
    let mut body = noise(MEBIBYTE);
    let answer = |body: &[u8]| {
        let body = body.to_vec().into();
        Answer::response(&StoredResponse { status: 200, body, ..StoredResponse::default() })
    };
    let first = answer(&body);
    assert_eq!(harness.complete(&claim.id, fence, &first).await, Fenced::Applied);
    assert_eq!(harness.complete(&claim.id, fence, &first).await, Fenced::Applied);
    // The last byte counts as much as the first.
    body[MEBIBYTE - 1] ^= 1;
    assert_eq!(harness.complete(&claim.id, fence, &answer(&body)).await, Fenced::Lost);
}
