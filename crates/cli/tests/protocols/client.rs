//! Clients: hyper over HTTP/1.1 or HTTP/2, and what they get.

use std::net::SocketAddr;

use http::{Request, Response, Version};
use hyper::{
    body::Incoming,
    client::conn::{http1, http2},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};

use crate::{
    common::{Content, TestResponse, empty, text},
    soon,
};

/// A connection to the gateway.
pub(crate) enum Client {
    Http1(http1::SendRequest<Content>),
    Http2(http2::SendRequest<Content>),
}

impl Client {
    pub(crate) async fn http1(address: SocketAddr) -> Self {
        Self::connect(address, false).await
    }

    /// HTTP/2 without TLS, by prior knowledge.
    pub(crate) async fn http2(address: SocketAddr) -> Self {
        Self::connect(address, true).await
    }

    pub(crate) async fn connect(address: SocketAddr, http2: bool) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        // Segments of the loopback device are as large as a window: Nagle's algorithm would hold
        // each of them back.
        stream.set_nodelay(true).unwrap();
        Self::over(stream, http2).await
    }

    pub(crate) async fn over<T>(io: T, http2: bool) -> Self
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let io = TokioIo::new(io);
        if http2 {
            let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
            tokio::spawn(connection);
            Self::Http2(sender)
        } else {
            let (sender, connection) = http1::handshake(io).await.unwrap();
            tokio::spawn(connection.with_upgrades());
            Self::Http1(sender)
        }
    }

    /// For another stream of the same connection.
    pub(crate) fn another(&self) -> Self {
        match self {
            Self::Http1(_) => panic!("HTTP/1.1 serves one at a time"),
            Self::Http2(sender) => Self::Http2(sender.clone()),
        }
    }

    /// Sends a request and awaits the head of its answer.
    pub(crate) async fn send(&mut self, mut request: Request<Content>) -> Response<Incoming> {
        let sent = match self {
            Self::Http1(sender) => {
                soon(sender.ready()).await.unwrap();
                let headers = request.headers_mut();
                headers.entry("host").or_insert_with(|| "shop.example".parse().unwrap());
                soon(sender.send_request(request)).await
            }
            Self::Http2(sender) => {
                *request.uri_mut() =
                    format!("http://shop.example{}", request.uri()).parse().unwrap();
                *request.version_mut() = Version::HTTP_2;
                soon(sender.clone().send_request(request)).await
            }
        };
        sent.unwrap()
    }

    /// Sends a request and reads its answer to the end.
    pub(crate) async fn ask(&mut self, request: Request<Content>) -> TestResponse {
        let response = self.send(request).await;
        soon(TestResponse::read(response)).await
    }

    pub(crate) async fn get(&mut self, path: &str) -> TestResponse {
        self.ask(Request::get(path).body(empty()).unwrap()).await
    }

    /// A guarded POST.
    pub(crate) async fn post(&mut self, path: &str, key: &str, body: &'static str) -> TestResponse {
        self.ask(guarded(path, key, text(body))).await
    }
}

/// A request that runs once.
pub(crate) fn guarded(path: &str, key: &str, body: Content) -> Request<Content> {
    Request::post(path).header("idempotency-key", key).body(body).unwrap()
}
