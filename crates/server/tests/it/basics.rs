//! What a team sees on its first day: a repeat is harmless, and everything else just passes.

use crate::common::{Gateway, ORDER, Upstream, charge, get};

#[tokio::test]
async fn a_repeat_gets_the_first_answer_byte_for_byte() {
    let upstream = Upstream::plain().await;
    let gateway = Gateway::before(&upstream.url()).await;
    let first = gateway.send(charge("k", ORDER)).await;
    assert_eq!((first.status.as_u16(), first.is_replayed()), (201, false));
    assert_eq!(first.text(), "{\"key\": \"k\", \"charge\": 1}\n");
    assert_eq!(first.header("location"), Some("/charges/1"));
    for _ in 0..3 {
        gateway.send(charge("k", ORDER)).await.replays(&first);
    }
    assert_eq!(upstream.total(), 1);
    gateway.through().await;
}

#[tokio::test]
async fn what_is_not_guarded_passes_every_time() {
    let upstream = Upstream::plain().await;
    let gateway = Gateway::before(&upstream.url()).await;
    for run in 1..=3 {
        let answer = gateway.send(get("/charges/1")).await;
        assert_eq!(answer.header("location"), Some(format!("/charges/{run}").as_str()));
        assert!(!answer.is_replayed());
    }
    assert_eq!(upstream.total(), 3);
    gateway.through().await;
}
