//! A body that the layer holds in memory, and the chunks of one that it streams.

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use crate::{BoxError, memory::Reservation};

/// A body in one chunk.
#[derive(Clone, Debug, Default)]
pub(crate) struct BufferedBody {
    data: Bytes,
    trailers: Option<Box<HeaderMap>>,
}

impl BufferedBody {
    pub(crate) fn new(data: Bytes, trailers: Option<HeaderMap>) -> Self {
        Self { data, trailers: trailers.map(Box::new) }
    }

    pub(crate) const fn data(&self) -> &Bytes {
        &self.data
    }

    /// Replaces the data by an equal copy in other memory.
    pub(crate) fn replace_data(&mut self, data: Bytes) {
        self.data = data;
    }

    /// Keeps a reservation for as long as any of the data is in use.
    pub(crate) fn hold(&mut self, memory: Option<Reservation>) {
        if let Some(memory) = memory {
            self.data = memory.hold(std::mem::take(&mut self.data));
        }
    }

    pub(crate) fn trailers_mut(&mut self) -> Option<&mut HeaderMap> {
        self.trailers.as_deref_mut()
    }

    pub(crate) fn trailers(&self) -> Option<&HeaderMap> {
        self.trailers.as_deref()
    }

    pub(crate) fn next(&mut self) -> Option<Frame<Bytes>> {
        if self.data.is_empty() {
            return self.trailers.take().map(|trailers| Frame::trailers(*trailers));
        }
        Some(Frame::data(std::mem::take(&mut self.data)))
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.data.is_empty() && self.trailers.is_none()
    }

    /// An exact size becomes a `Content-Length`, after which HTTP/1.1 has no place for trailers.
    pub(crate) fn size_hint(&self) -> SizeHint {
        let length = length(&self.data);
        if self.trailers.is_none() {
            return SizeHint::with_exact(length);
        }
        let mut hint = SizeHint::new();
        hint.set_lower(length);
        hint
    }
}

pub(crate) fn length(data: &Bytes) -> u64 {
    u64::try_from(data.len()).unwrap_or(u64::MAX)
}

/// A message from the execution to the body of its answer.
#[derive(Debug)]
pub(crate) enum BodyChunk {
    /// Sent at once.
    Data(Bytes),
    /// The handler's body failed.
    Broken(BoxError),
}

/// A chunk with its permit in the queue.
pub(crate) type QueuedChunk = (BodyChunk, Option<OwnedSemaphorePermit>);

/// The receiving side of a streamed answer.
#[derive(Debug)]
pub(crate) struct ChunkReceiver {
    pub(crate) ahead: mpsc::Receiver<QueuedChunk>,
    /// The last chunk, which is sent when the operation is recorded.
    pub(crate) last: oneshot::Receiver<BufferedBody>,
    /// The total number of bytes, if the handler's body knows it: it becomes the `Content-Length`.
    pub(crate) bytes: Option<u64>,
}
