//! What has come on a connection and is not yet understood.

use std::{
    io,
    ops::{Deref, DerefMut},
    pin::pin,
    task::{Context, Poll, ready},
};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// How much is read at once at first.
const ROOM: usize = 8 * 1024;

/// How much is read at once at most.
const ROOM_MAX: usize = 128 * 1024;

/// What has come on a connection and is not yet understood.
#[derive(Debug)]
pub(crate) struct Input {
    bytes: BytesMut,
    /// How much is read at once.
    room: usize,
}

impl Input {
    pub(crate) fn new() -> Self {
        Self { bytes: BytesMut::new(), room: ROOM }
    }

    /// Reads what has come, and says how much: nothing at the end.
    pub(crate) fn poll_fill<T>(
        &mut self,
        from: &mut T,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>>
    where
        T: AsyncRead + Unpin + ?Sized,
    {
        if self.bytes.capacity() - self.bytes.len() < self.room / 2 {
            self.bytes.reserve(self.room);
        }
        let room = self.bytes.capacity() - self.bytes.len();
        let read = ready!(pin!(from.read_buf(&mut self.bytes)).poll(context))?;
        // There is more than was asked for.
        if read == room {
            self.room = (self.room * 2).min(ROOM_MAX);
        }
        Poll::Ready(Ok(read))
    }

    /// The space of something large is not kept for what comes next.
    pub(crate) fn shrink(&mut self) {
        if self.room > ROOM && self.bytes.len() <= ROOM {
            *self = Self { bytes: BytesMut::from(&self.bytes[..]), room: ROOM };
        }
    }

    pub(crate) fn into_bytes(self) -> BytesMut {
        self.bytes
    }
}

impl Deref for Input {
    type Target = BytesMut;

    fn deref(&self) -> &BytesMut {
        &self.bytes
    }
}

impl DerefMut for Input {
    fn deref_mut(&mut self) -> &mut BytesMut {
        &mut self.bytes
    }
}
