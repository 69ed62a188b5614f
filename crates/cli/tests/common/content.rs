//! Bodies of requests and responses: whole, empty, or written while they are sent.

use std::error::Error;

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame};
use http_body_util::{BodyExt as _, Empty, Full, StreamBody, combinators::UnsyncBoxBody};
use tokio::sync::mpsc;
use tonic::codegen::tokio_stream::wrappers::UnboundedReceiverStream;

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
