//! Server-sent events: each arrives when it is sent.

use std::sync::{Arc, Mutex};

use http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

use crate::{
    client::{Client, guarded},
    common::{Pen, Setup, TestResponse, Upstream, empty, text, written},
    soon,
};

/// An upstream whose answers are written by the test, event by event.
async fn stream() -> (Upstream, Arc<Mutex<Option<Pen>>>) {
    let current = Arc::<Mutex<Option<Pen>>>::default();
    let upstream = Upstream::serving({
        let current = Arc::clone(&current);
        move |_| {
            let (pen, body) = written();
            pen.write("data: 1\n\n");
            *current.lock().unwrap() = Some(pen);
            let response = Response::builder().header("content-type", "text/event-stream");
            async { response.body(body).unwrap() }
        }
    })
    .await;
    (upstream, current)
}

async fn event(response: &mut Response<Incoming>) -> String {
    let frame = soon(response.frame()).await.unwrap().unwrap();
    String::from_utf8(frame.into_data().unwrap().into()).unwrap()
}

async fn both_versions(setup: Setup, mut examine: impl AsyncFnMut(Client, &str)) {
    let gateway = setup.start().await;
    examine(Client::http1(gateway.address()).await, "over-HTTP/1.1").await;
    examine(Client::http2(gateway.address()).await, "over-HTTP/2").await;
}

#[tokio::test]
async fn events_arrive_one_by_one() {
    let (upstream, current) = stream().await;
    for setup in [Setup::at(upstream.address()), Setup::at_http2(upstream.address())] {
        both_versions(setup, async |mut client, how| {
            let request = Request::get("/events").body(empty()).unwrap();
            let mut response = client.send(request).await;
            assert_eq!(response.headers()["content-type"], "text/event-stream");
            assert_eq!(event(&mut response).await, "data: 1\n\n", "{how}");
            let pen = current.lock().unwrap().take().unwrap();
            for number in 2..5 {
                pen.write(format!("data: {number}\n\n"));
                assert_eq!(event(&mut response).await, format!("data: {number}\n\n"), "{how}");
            }
            drop(pen);
            assert!(TestResponse::read(response).await.body.is_empty());
        })
        .await;
    }
}

#[tokio::test]
async fn a_stream_may_be_silent_for_longer_than_the_upstream_may_take_to_answer() {
    let (upstream, current) = stream().await;
    let url = format!("http://{}", upstream.address());
    let setup = Setup::upstream(format_args!("{{ url = \"{url}\", timeout = \"2s\" }}"))
        .tables("[limits]\nheader_timeout = \"2s\"\nbody_timeout = \"2s\"");
    both_versions(setup, async |mut client, how| {
        let mut response = client.send(Request::get("/events").body(empty()).unwrap()).await;
        assert_eq!(event(&mut response).await, "data: 1\n\n");
        let pen = current.lock().unwrap().take().unwrap();
        tokio::time::sleep(std::time::Duration::from_millis(2500)).await;
        pen.write("data: 2\n\n");
        assert_eq!(event(&mut response).await, "data: 2\n\n", "{how}");
    })
    .await;
}

#[tokio::test]
async fn a_client_that_leaves_ends_the_stream_at_the_upstream() {
    let (upstream, current) = stream().await;
    for setup in [Setup::at(upstream.address()), Setup::at_http2(upstream.address())] {
        both_versions(setup, async |mut client, _| {
            let mut response = client.send(Request::get("/events").body(empty()).unwrap()).await;
            event(&mut response).await;
            let pen = current.lock().unwrap().take().unwrap();
            drop((response, client));
            soon(async {
                while pen.is_read() {
                    pen.write("data: more\n\n");
                    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
                }
            })
            .await;
        })
        .await;
    }
}

#[tokio::test]
async fn a_guarded_answer_that_is_a_stream_runs_once_and_is_not_replayed() {
    let (upstream, current) = stream().await;
    let mut runs = 0;
    for setup in [Setup::at(upstream.address()), Setup::at_http2(upstream.address())] {
        both_versions(setup, async |mut client, how| {
            let post = || guarded("/chats", how, text("{}"));
            let mut response = client.send(post()).await;
            let pen = current.lock().unwrap().take().unwrap();
            // Each goes out when it is known not to be the last, which waits until it is durable.
            for number in 2..5 {
                pen.write(format!("data: {number}\n\n"));
                let before = number - 1;
                assert_eq!(event(&mut response).await, format!("data: {before}\n\n"), "{how}");
            }
            drop(pen);
            assert_eq!(TestResponse::read(response).await.text(), "data: 4\n\n", "{how}");
            let again = client.ask(post()).await;
            assert_eq!(again.outcome(), (410, Some("response-not-retained")), "{how}");
            runs += 1;
            assert_eq!(upstream.request_count(), runs);
        })
        .await;
    }
}
