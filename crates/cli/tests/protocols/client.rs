//! Clients: hyper over HTTP/1.1 or HTTP/2, and what they get.

use std::{error::Error, net::SocketAddr};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, Version};
use http_body::{Body, Frame};
use http_body_util::{BodyExt as _, Empty, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    body::Incoming,
    client::conn::{http1, http2},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    sync::mpsc,
};
use tonic::codegen::tokio_stream::wrappers::UnboundedReceiverStream;

use crate::soon;

pub(crate) type Content = UnsyncBoxBody<Bytes, Box<dyn Error + Send + Sync>>;

pub(crate) fn content<B>(body: B) -> Content
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    body.map_err(Into::into).boxed_unsync()
}

pub(crate) fn empty() -> Content {
    content(Empty::new())
}

pub(crate) fn text(text: impl Into<Bytes>) -> Content {
    content(Full::new(text.into()))
}

/// The sender decides when a body continues.
#[derive(Clone)]
pub(crate) struct Pen(mpsc::UnboundedSender<Result<Frame<Bytes>, std::io::Error>>);

impl Pen {
    pub(crate) fn write(&self, text: impl Into<Bytes>) {
        let _ = self.0.send(Ok(Frame::data(text.into())));
    }

    /// Ends the body with trailers.
    pub(crate) fn trailers(self, trailers: HeaderMap) {
        let _ = self.0.send(Ok(Frame::trailers(trailers)));
    }

    /// Whether the receiver is still open.
    pub(crate) fn is_read(&self) -> bool {
        !self.0.is_closed()
    }
}

/// A body that is written while it is sent; it ends when its pen is dropped.
pub(crate) fn written() -> (Pen, Content) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (Pen(sender), content(StreamBody::new(UnboundedReceiverStream::new(receiver))))
}

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
        Self::over(TcpStream::connect(address).await.unwrap(), http2).await
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
    pub(crate) async fn ask(&mut self, request: Request<Content>) -> Answer {
        let response = self.send(request).await;
        Answer::read(response).await
    }

    pub(crate) async fn get(&mut self, path: &str) -> Answer {
        self.ask(Request::get(path).body(empty()).unwrap()).await
    }

    /// A guarded POST.
    pub(crate) async fn post(&mut self, path: &str, key: &str, body: &'static str) -> Answer {
        self.ask(guarded(path, key, text(body))).await
    }
}

/// A request that runs once.
pub(crate) fn guarded(path: &str, key: &str, body: Content) -> Request<Content> {
    Request::post(path).header("idempotency-key", key).body(body).unwrap()
}

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) version: Version,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) trailers: Option<HeaderMap>,
}

impl Answer {
    pub(crate) async fn read(response: Response<Incoming>) -> Self {
        let (parts, body) = response.into_parts();
        let collected = soon(body.collect()).await.unwrap();
        let trailers = collected.trailers().cloned();
        let (status, version, headers) = (parts.status, parts.version, parts.headers);
        Self { status, version, headers, body: collected.to_bytes(), trailers }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub(crate) fn text(&self) -> &str {
        str::from_utf8(&self.body).unwrap()
    }

    /// The status and the slug of the problem that it is, if it is one.
    pub(crate) fn outcome(&self) -> (u16, Option<&str>) {
        (self.status.as_u16(), self.header("idempotency-problem"))
    }

    pub(crate) fn is_replayed(&self) -> bool {
        self.header("idempotent-replayed") == Some("true")
    }
}
