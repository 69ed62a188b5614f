//! Bodies for the unit tests.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::BoxError;

/// A body of these frames, without a declared size.
pub(crate) fn frames(chunks: &[&'static str]) -> Frames {
    Frames::new(chunks.iter().map(|chunk| Ok(Frame::data(Bytes::from_static(chunk.as_bytes())))))
}

/// The same, followed by an error.
pub(crate) fn broken(chunks: &[&'static str]) -> Frames {
    let mut body = frames(chunks);
    body.0.push(Err("cut".into()));
    body
}

/// A body that is a list.
pub(crate) struct Frames(Vec<Result<Frame<Bytes>, BoxError>>);

impl Frames {
    pub(crate) fn new(frames: impl IntoIterator<Item = Result<Frame<Bytes>, BoxError>>) -> Self {
        Self(frames.into_iter().collect())
    }
}

impl Body for Frames {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let next = (!self.0.is_empty()).then(|| self.0.remove(0));
        Poll::Ready(next)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}
