//! Verified callers and deadlines of a layer that is built in code, through a real axum server.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{Router, extract::Request, middleware};
use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use semel::core::Scope;
use semel_testkit::issuer::{
    AUDIENCE, Algorithm, ISSUER, JwksAnswer, JwksServer, SigningKey, claims, key_set,
};
use semel_tower::{
    Callers, CertificateField, ClientCertificate, ClientContext, DeadlineHeader, DeadlineRule,
    IdempotencyLayer, Jwks, JwtVerifier,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    time::Instant,
};

use crate::harness::{Gate, Harness, ORDER, TestResponse};

/// How late an answer may be on a busy machine.
const SLACK: Duration = Duration::from_secs(20);

async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

async fn send(to: SocketAddr, headers: &[(&str, &str)]) -> TestResponse {
    let stream = TokioIo::new(TcpStream::connect(to).await.unwrap());
    let (mut sender, connection) = http1::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let mut request = http::Request::post("/charges")
        .header("host", "localhost")
        .header("idempotency-key", "k")
        .header("content-type", "application/json");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Full::new(Bytes::from(ORDER))).unwrap();
    TestResponse::read(sender.send_request(request).await.unwrap()).await
}

fn layer(harness: &Harness, callers: Callers) -> IdempotencyLayer {
    IdempotencyLayer::new(&harness.semel, Scope::new("payments").unwrap(), callers)
}

fn verified(keys: &Jwks) -> Callers {
    Callers::jwt(&JwtVerifier::new(keys, ISSUER, [AUDIENCE]))
}

#[tokio::test]
async fn the_claim_of_a_token_is_the_caller() {
    let harness = Harness::new();
    let key = SigningKey::generate("k", Algorithm::ES256);
    let keys = Jwks::from_json(&key_set(&[&key])).unwrap();
    let app =
        harness.app_with(layer(&harness, verified(&keys)), |run| async move { run.to_string() });
    let address = serve(app).await;
    let token = |subject| format!("Bearer {}", key.sign(&claims(subject)));
    let first = send(address, &[("authorization", &token("zoe"))]).await;
    assert_eq!(first.text(), "1");
    // ECDSA signs with a new number each time: it is another token of the same caller.
    let again = send(address, &[("authorization", &token("zoe"))]).await;
    assert!(again.is_replayed() && again.body == first.body, "{again:?}");
    assert_eq!(send(address, &[("authorization", &token("max"))]).await.text(), "2");
    let forged = SigningKey::generate("k", Algorithm::ES256).sign(&claims("zoe"));
    let refused = send(address, &[("authorization", &format!("Bearer {forged}"))]).await;
    refused.assert_problem(401, "caller-unverified");
    send(address, &[]).await.assert_problem(401, "caller-unverified");
    assert_eq!(harness.runs(), 2);
}

#[tokio::test]
async fn the_name_in_a_client_certificate_is_the_caller() {
    let harness = Harness::new();
    let certificate = |name: &str| {
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let made = params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap();
        ClientCertificate::from_der(made.der()).unwrap()
    };
    // A server that terminates TLS puts the certificate of the connection there.
    let shops = ["shop-7", "shop-8"].map(certificate);
    let callers = Callers::client_certificate(CertificateField::Subject);
    let app = harness.app_with(layer(&harness, callers), |run| async move { run.to_string() });
    let app =
        app.layer(middleware::from_fn(move |mut request: Request, next: middleware::Next| {
            let shop = request.headers().get("x-connection").and_then(|it| it.to_str().ok());
            if let Some(shop) = shop.and_then(|number| shops.get(number.parse::<usize>().unwrap()))
            {
                let mut client = ClientContext::default();
                client.certificate = Some(Arc::new(shop.clone()));
                request.extensions_mut().insert(client);
            }
            async move { next.run(request).await }
        }));
    let address = serve(app).await;
    let first = send(address, &[("x-connection", "0")]).await;
    assert!(send(address, &[("x-connection", "0")]).await.is_replayed());
    let other = send(address, &[("x-connection", "1")]).await;
    assert_eq!((first.text(), other.text()), ("1", "2"));
    send(address, &[]).await.assert_problem(403, "caller-unidentified");
    assert_eq!(harness.runs(), 2);
}

#[tokio::test]
async fn an_operation_runs_on_beyond_the_deadline_of_its_client() {
    let (harness, gate) = (Harness::new(), Gate::new());
    let rule = DeadlineRule::new([DeadlineHeader::RequestTimeoutMs]);
    let app = harness.app_with(harness.layer().deadline(rule), {
        let gate = gate.clone();
        move |run| {
            let gate = gate.clone();
            async move {
                gate.wait_open().await;
                run.to_string()
            }
        }
    });
    let address = serve(app).await;
    let late = send(address, &[("x-request-timeout-ms", "0")]).await;
    late.assert_problem(504, "deadline-exceeded");
    assert_eq!(harness.runs(), 0);
    let soon = send(address, &[("x-request-timeout-ms", "500")]).await;
    soon.assert_problem(504, "deadline-exceeded");
    gate.open();
    assert_eq!(send(address, &[]).await.text(), "1");
    assert_eq!(harness.runs(), 1);
}

/// A request is answered at its deadline, whatever it waits for before its operation begins.
#[tokio::test]
async fn a_body_that_does_not_come_is_awaited_until_the_deadline() {
    let harness = Harness::new();
    let rule = DeadlineRule::new([DeadlineHeader::RequestTimeoutMs]);
    let layer = harness.layer().deadline(rule);
    let address = serve(harness.app_with(layer, |run| async move { run.to_string() })).await;
    let mut client = TcpStream::connect(address).await.unwrap();
    let head = "POST /charges HTTP/1.1\r\nhost: localhost\r\nidempotency-key: k\r\n\
                content-type: application/json\r\ncontent-length: 100\r\n\
                x-request-timeout-ms: 300\r\n\r\n{";
    let begun = Instant::now();
    client.write_all(head.as_bytes()).await.unwrap();
    let mut answer = vec![0; 12];
    client.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer, b"HTTP/1.1 504");
    assert!((Duration::from_millis(300)..SLACK).contains(&begun.elapsed()));
    assert_eq!(harness.runs(), 0);
    assert_eq!(send(address, &[]).await.text(), "1", "the key is free");
}

#[tokio::test]
async fn keys_that_do_not_come_are_awaited_until_the_deadline() {
    let harness = Harness::new();
    let server = JwksServer::start(JwksAnswer::Silence).await;
    let keys = Jwks::url(&server.url()).unwrap();
    let rule = DeadlineRule::new([DeadlineHeader::RequestTimeoutMs]);
    let layer = layer(&harness, verified(&keys)).deadline(rule);
    let address = serve(harness.app_with(layer, |run| async move { run.to_string() })).await;
    let key = SigningKey::generate("k", Algorithm::ES256);
    let token = format!("Bearer {}", key.sign(&claims("zoe")));
    let begun = Instant::now();
    let headers = [("authorization", &*token), ("x-request-timeout-ms", "300")];
    send(address, &headers).await.assert_problem(504, "deadline-exceeded");
    let waited = begun.elapsed();
    assert!(waited >= Duration::from_millis(300), "{waited:?}");
    assert_eq!(harness.runs(), 0);
}
