//! A client: requests, and answers read to their end.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, time::timeout};

use super::TEST_TIMEOUT;

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

/// An answer, read to its end.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub(crate) fn text(&self) -> &str {
        str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn is_replayed(&self) -> bool {
        self.header("idempotent-replayed") == Some("true")
    }

    /// The slug of a problem, after a look at the rest of it.
    #[track_caller]
    pub(crate) fn slug(&self) -> String {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        let document: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        assert_eq!(document["status"], self.status.as_u16());
        assert!(document["title"].is_string());
        assert!(document["detail"].as_str().is_some_and(|detail| !detail.is_empty()));
        assert_eq!(document["error"]["message"], document["detail"]);
        let retry = self.header("x-should-retry");
        assert!(matches!(retry, Some("true" | "false")), "{self:?}");
        assert_eq!(self.header("stripe-should-retry"), retry);
        assert_eq!(self.header("retry-after").is_some(), retry == Some("true"), "{self:?}");
        let kind = document["type"].as_str().unwrap();
        kind.strip_prefix("urn:semel:problem:").unwrap().to_owned()
    }

    #[track_caller]
    pub(crate) fn assert_problem(&self, status: u16, slug: &str) {
        let output = (self.status.as_u16(), self.slug());
        assert_eq!(output, (status, slug.to_owned()), "{self:?}");
    }

    /// Whether this is a replay of that answer: the same status, bytes and kept headers.
    #[track_caller]
    pub(crate) fn assert_replay_of(&self, first: &Self) {
        assert!(self.is_replayed(), "{self:?}");
        assert_eq!((self.status, &self.body), (first.status, &first.body));
        for name in ["content-type", "content-length", "location", "etag"] {
            assert_eq!(self.header(name), first.header(name), "{name}");
        }
    }
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
    pub(crate) async fn send(&mut self, request: ClientRequest) -> Answer {
        self.try_send(request).await.expect("an answer")
    }

    pub(crate) async fn try_send(&mut self, mut request: ClientRequest) -> hyper::Result<Answer> {
        let host = HeaderName::from_static("host");
        request.headers_mut().entry(host).or_insert(HeaderValue::from_static("shop.example"));
        let whole = async {
            let (head, body) = self.sender.send_request(request).await?.into_parts();
            let body = body.collect().await?.to_bytes();
            Ok(Answer { status: head.status, headers: head.headers, body })
        };
        timeout(TEST_TIMEOUT, whole).await.expect("an answer, or an end")
    }
}

/// Sends a request on a connection of its own.
pub(crate) async fn send(address: SocketAddr, request: ClientRequest) -> Answer {
    Client::connect(address).await.send(request).await
}
