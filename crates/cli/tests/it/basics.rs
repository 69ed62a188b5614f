//! What a team sees on its first day: a repeat is harmless, and everything else just passes.

use crate::common::{Gateway, ORDER, ReceivedRequest, Reply, Setup, Upstream, charge, get};

#[tokio::test]
async fn a_repeat_gets_the_first_answer_byte_for_byte() {
    let upstream = Upstream::plain().await;
    let gateway = Gateway::in_front_of(&upstream.url()).await;
    let first = gateway.send(charge("k", ORDER)).await;
    assert_eq!((first.status.as_u16(), first.is_replayed()), (201, false));
    assert_eq!(first.text(), "{\"key\": \"k\", \"charge\": 1}\n");
    assert_eq!(first.header("location"), Some("/charges/1"));
    for _ in 0..3 {
        gateway.send(charge("k", ORDER)).await.assert_replay_of(&first);
    }
    assert_eq!(upstream.request_count(), 1);
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn an_unguarded_request_is_forwarded_every_time() {
    let upstream = Upstream::plain().await;
    let gateway = Gateway::in_front_of(&upstream.url()).await;
    for run in 1..=3 {
        let answer = gateway.send(get("/charges/1")).await;
        assert_eq!(answer.header("location"), Some(format!("/charges/{run}").as_str()));
        assert!(!answer.is_replayed());
    }
    assert_eq!(upstream.request_count(), 3);
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_connection_is_used_again_no_longer_than_the_upstream_says_that_it_keeps_it() {
    for (keep_alive, again) in [("timeout=60", true), ("timeout=1, max=100", false)] {
        let reply = move |request: &ReceivedRequest| {
            Reply::created(request).header("keep-alive", keep_alive)
        };
        let upstream = Upstream::start(reply).await;
        // Whatever the pauses between the requests are, only the upstream's word counts.
        let setup = Setup::new(&upstream.url()).gateway("threads = 1");
        let gateway = setup.defaults("upstream = { pool_idle = \"10m\" }").start().await;
        // A connection comes back after its answer, so not always in time for the next request.
        for key in 0..20 {
            let answer = gateway.send(charge(&key.to_string(), ORDER)).await;
            assert_eq!(answer.status.as_u16(), 201);
            assert_eq!(answer.header("keep-alive"), None, "it is the connection's own");
        }
        assert_eq!(upstream.request_count(), 20);
        assert_eq!(upstream.connections() < 20, again, "{keep_alive}");
        gateway.assert_clean_shutdown().await;
    }
}
