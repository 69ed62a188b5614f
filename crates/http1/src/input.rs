//! Bytes that were received and not yet parsed.

use std::{
    io,
    ops::{Deref, DerefMut},
    pin::pin,
    task::{Context, Poll, ready},
};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// Initial size of a read.
const READ_BYTES_MIN: usize = 8 * 1024;

/// Maximum size of a read.
const READ_BYTES_MAX: usize = 128 * 1024;

/// Bytes that were received and not yet parsed.
#[derive(Debug)]
pub(crate) struct ReadBuffer {
    bytes: BytesMut,
    /// Size of the next read.
    read_size: usize,
}

impl ReadBuffer {
    pub(crate) fn new() -> Self {
        Self { bytes: BytesMut::new(), read_size: READ_BYTES_MIN }
    }

    /// Reads once, and returns the number of bytes: 0 at the end.
    pub(crate) fn poll_fill<T>(
        &mut self,
        from: &mut T,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>>
    where
        T: AsyncRead + Unpin + ?Sized,
    {
        if self.bytes.capacity() - self.bytes.len() < self.read_size / 2 {
            self.bytes.reserve(self.read_size);
        }
        let room = self.bytes.capacity() - self.bytes.len();
        let read = ready!(pin!(from.read_buf(&mut self.bytes)).poll(context))?;
        // The buffer was filled, so more is available.
        if read == room {
            self.read_size = (self.read_size * 2).min(READ_BYTES_MAX);
        }
        Poll::Ready(Ok(read))
    }

    /// Releases the memory of a large message.
    pub(crate) fn shrink(&mut self) {
        if self.read_size > READ_BYTES_MIN && self.bytes.len() <= READ_BYTES_MIN {
            *self = Self { bytes: BytesMut::from(&self.bytes[..]), read_size: READ_BYTES_MIN };
        }
    }

    pub(crate) fn into_bytes(self) -> BytesMut {
        self.bytes
    }
}

impl Deref for ReadBuffer {
    type Target = BytesMut;

    fn deref(&self) -> &BytesMut {
        &self.bytes
    }
}

impl DerefMut for ReadBuffer {
    fn deref_mut(&mut self) -> &mut BytesMut {
        &mut self.bytes
    }
}
