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
        if self.room() < self.read_size / 2 {
            self.bytes.reserve(self.read_size);
        }
        self.poll_read(from, context)
    }

    /// Reads once, for a head of fewer than `bytes_max` bytes so far: the buffer gets no room for
    /// more than `bytes_max`.
    pub(crate) fn poll_fill_head<T>(
        &mut self,
        bytes_max: usize,
        from: &mut T,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>>
    where
        T: AsyncRead + Unpin + ?Sized,
    {
        let size = self.read_size.min(bytes_max.saturating_sub(self.bytes.len()));
        if self.room() < size.div_ceil(2) && !self.bytes.try_reclaim(size) {
            // `reserve` would double the capacity.
            let mut larger = BytesMut::with_capacity(self.bytes.len() + size);
            larger.extend_from_slice(&self.bytes);
            self.bytes = larger;
        }
        self.poll_read(from, context)
    }

    fn room(&self) -> usize {
        self.bytes.capacity() - self.bytes.len()
    }

    fn poll_read<T>(&mut self, from: &mut T, context: &mut Context<'_>) -> Poll<io::Result<usize>>
    where
        T: AsyncRead + Unpin + ?Sized,
    {
        let room = self.room();
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads all there is as a head that may have so many bytes.
    fn fill(buffer: &mut ReadBuffer, bytes_max: usize, mut from: &[u8]) {
        let mut context = Context::from_waker(std::task::Waker::noop());
        while !from.is_empty() {
            let read = buffer.poll_fill_head(bytes_max, &mut from, &mut context);
            assert!(matches!(read, Poll::Ready(Ok(1..))), "{read:?}");
        }
    }

    #[test]
    fn a_head_takes_no_more_room_than_it_may_have_bytes_and_leaves_little() {
        for bytes_max in [8 << 10, 20_000, 32 << 10, 1 << 20] {
            let mut buffer = ReadBuffer::new();
            fill(&mut buffer, bytes_max, &vec![b'x'; bytes_max - 1]);
            assert_eq!(buffer.len(), bytes_max - 1);
            let room = buffer.bytes.capacity();
            assert!(room <= bytes_max, "{room} for {bytes_max}");
            // The head is parsed, and a body follows.
            buffer.clear();
            buffer.shrink();
            assert!(buffer.bytes.capacity() <= READ_BYTES_MIN, "{bytes_max}");
        }
    }

    #[test]
    fn small_heads_one_after_the_other_need_no_new_buffer() {
        let mut buffer = ReadBuffer::new();
        fill(&mut buffer, 32 << 10, &[b'x'; 300]);
        let begin = buffer.as_ptr();
        for _ in 0..1000 {
            bytes::Buf::advance(&mut *buffer, 300);
            fill(&mut buffer, 32 << 10, &[b'x'; 300]);
        }
        assert!(buffer.as_ptr() as usize - (begin as usize) < READ_BYTES_MIN);
    }
}
