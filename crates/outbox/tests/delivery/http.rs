//! HTTP: what each response does to a message, and what a receiver can verify.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Router,
    body::Bytes,
    extract::{Path, State},
    http::{HeaderMap, StatusCode},
    response::IntoResponse,
    routing::post,
};
use semel_outbox::{OutgoingMessage, postgres, sinks::HttpSink};
use tokio::{net::TcpListener, time::timeout};

use crate::{RunningRelay, fresh_outbox, send, wait_until_delivered};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// A receiver that answers a payload with the status that it names, the first time.
#[derive(Clone, Debug, Default)]
struct Receiver {
    /// Topic, payload and headers of each request.
    requests: Arc<Mutex<Vec<(String, String, HeaderMap)>>>,
    attempts: Arc<Mutex<BTreeMap<String, u32>>>,
}

async fn receive(
    State(receiver): State<Receiver>,
    Path(topic): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> impl IntoResponse {
    let payload = String::from_utf8(body.to_vec()).unwrap();
    receiver.requests.lock().unwrap().push((topic, payload.clone(), headers));
    let mut attempts = receiver.attempts.lock().unwrap();
    let attempt = attempts.entry(payload.clone()).or_default();
    *attempt += 1;
    match payload.strip_prefix("status ").and_then(|status| status.parse().ok()) {
        Some(status) if *attempt == 1 || status == 410 || status == 423 => {
            (StatusCode::from_u16(status).unwrap(), [("retry-after", "1")])
        }
        _ => (StatusCode::NO_CONTENT, [("retry-after", "0")]),
    }
}

async fn serve(receiver: Receiver) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = Router::new().route("/hooks/{topic}", post(receive)).with_state(receiver);
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn each_response_is_obeyed() {
    let (pool, receiver) = (fresh_outbox().await, Receiver::default());
    let address = serve(receiver.clone()).await;
    let sink = HttpSink::new(&format!("http://{address}/hooks/{{topic}}")).unwrap();
    let relay = RunningRelay::start(&pool, sink.secret(SECRET).unwrap());
    let client = pool.get().await.unwrap();
    for payload in ["plain", "status 500", "status 404", "status 429", "status 410", "status 423"] {
        let message = OutgoingMessage::new("order.paid", payload).unwrap();
        postgres::send(&client, &message.key(payload).unwrap()).await.unwrap();
    }
    let waiting = async {
        loop {
            let backlog = postgres::backlog(&client, 100).await.unwrap();
            if (backlog.waiting, backlog.parked) == (2, 2) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(Duration::from_secs(30), waiting).await.unwrap();
    relay.stop().await;
    let parked = postgres::list(&client, true, 10).await.unwrap();
    let reasons: Vec<_> = parked.iter().filter_map(|entry| entry.reason.as_deref()).collect();
    assert!(reasons[0].starts_with("410 Gone") && reasons[1].starts_with("423 "), "{reasons:?}");
    let attempts = receiver.attempts.lock().unwrap().clone();
    for (payload, expected) in
        [("plain", 1), ("status 500", 2), ("status 404", 2), ("status 429", 2), ("status 410", 1)]
    {
        assert_eq!(attempts[payload], expected, "{payload}");
    }
    for (topic, _, headers) in receiver.requests.lock().unwrap().iter() {
        assert_eq!(topic, "order.paid");
        assert_eq!(headers["idempotency-key"], headers["webhook-id"]);
        assert!(headers["webhook-signature"].to_str().unwrap().starts_with("v1,"));
        assert_eq!(headers["content-type"], "application/json");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_is_away_gets_everything_in_order_when_it_is_back() {
    let (pool, receiver) = (fresh_outbox().await, Receiver::default());
    let reserved = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = reserved.local_addr().unwrap();
    drop(reserved);
    let sink = HttpSink::new(&format!("http://{address}/hooks/{{topic}}")).unwrap();
    let relay = RunningRelay::start(&pool, sink);
    send(&pool, 0..200, 20).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(postgres::list(&pool.get().await.unwrap(), false, 9).await.unwrap(), []);
    let listener = TcpListener::bind(address).await.unwrap();
    let app = Router::new().route("/hooks/{topic}", post(receive)).with_state(receiver.clone());
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    wait_until_delivered(&pool).await;
    relay.stop().await;
    let requests = receiver.requests.lock().unwrap();
    let numbers: Vec<u32> =
        requests.iter().map(|(_, payload, _)| payload.parse().unwrap()).collect();
    assert_eq!(numbers.len(), 200);
    for key in 0..20 {
        assert!(numbers.iter().filter(|number| *number % 20 == key).is_sorted());
    }
}
