//! A client: requests, and answers read to their end.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request};
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, time::timeout};

use super::{TEST_TIMEOUT, TestResponse};

pub(crate) type ClientRequest = Request<Full<Bytes>>;

pub(crate) const ORDER: &str = r#"{"amount":100,"to":"zoe"}"#;

/// `POST /charges` with a key and this JSON.
pub(crate) fn charge(key: &str, body: &str) -> ClientRequest {
    Request::post("/charges")
        .header("idempotency-key", key)
        .header("content-type", "application/json")
        .body(Full::from(body.to_owned()))
        .unwrap()
}

pub(crate) fn get(path: &str) -> ClientRequest {
    Request::get(path).body(Full::default()).unwrap()
}

/// A request to the listener for operators, which is asked as what it is: this machine.
pub(crate) fn local(path: &str) -> ClientRequest {
    Request::get(path).header("host", "localhost").body(Full::default()).unwrap()
}

/// A connection that is kept.
pub(crate) struct Client {
    sender: http1::SendRequest<Full<Bytes>>,
}

impl Client {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        Self::try_connect(address).await.unwrap()
    }

    pub(crate) async fn try_connect(address: SocketAddr) -> std::io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let handshake = http1::handshake(TokioIo::new(stream)).await;
        let (sender, connection) = handshake.map_err(std::io::Error::other)?;
        tokio::spawn(connection);
        Ok(Self { sender })
    }

    /// Sends a request and reads the answer to its end.
    pub(crate) async fn send(&mut self, request: ClientRequest) -> TestResponse {
        self.try_send(request).await.expect("an answer")
    }

    pub(crate) async fn try_send(
        &mut self,
        mut request: ClientRequest,
    ) -> hyper::Result<TestResponse> {
        let host = HeaderName::from_static("host");
        request.headers_mut().entry(host).or_insert(HeaderValue::from_static("shop.example"));
        let whole = async {
            let response = self.sender.send_request(request).await?;
            TestResponse::try_read(response).await
        };
        timeout(TEST_TIMEOUT, whole).await.expect("an answer, or an end")
    }
}

/// Sends a request on a connection of its own.
pub(crate) async fn send(address: SocketAddr, request: ClientRequest) -> TestResponse {
    Client::connect(address).await.send(request).await
}
