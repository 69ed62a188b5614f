//! Byte streams: a write timeout towards clients, and a count of the bytes sent to upstreams.

use std::{
    io,
    mem::MaybeUninit,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use socket2::SockRef;
use tokio::{
    io::{AsyncRead, AsyncWrite, Interest, ReadBuf},
    net::TcpStream,
    time::Instant,
};

use crate::lazy_timer::LazyTimer;

/// A client's stream that fails when the client accepts no bytes for too long. Without that, a
/// client that never reads would hold its connection permit without limit. (An HTTP/2 client can
/// read its connection and yet give one of its streams no window. Then nothing is written here;
/// a timeout of each stream covers that.)
#[derive(Debug)]
pub struct WriteTimeout<T> {
    io: T,
    timeout: Duration,
    /// When a pending write times out.
    deadline: Option<Instant>,
    timer: LazyTimer,
}

impl<T> WriteTimeout<T> {
    /// Fails a write that is pending for longer than `timeout`.
    pub fn new(io: T, timeout: Duration) -> Self {
        Self { io, timeout, deadline: None, timer: LazyTimer::default() }
    }

    /// Fails a write that has been pending for too long.
    fn check(
        &mut self,
        written: Poll<io::Result<usize>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.deadline = None;
            return written;
        }
        let deadline = *self.deadline.get_or_insert_with(|| Instant::now() + self.timeout);
        ready!(self.timer.poll(deadline, context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for WriteTimeout<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(context, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for WriteTimeout<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(context, bytes);
        self.check(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(context, pieces);
        self.check(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}

/// A socket that counts the bytes sent. The pool can inspect it even while hyper owns the
/// connection. The difference between no byte and one byte is the difference between *nothing was
/// sent* and *outcome unknown*.
///
/// It counts the bytes that the kernel accepted. Over TLS these are more than the request, but
/// never zero when a part of the request was sent.
#[derive(Clone, Debug)]
pub struct CountedStream {
    stream: Arc<TcpStream>,
    sent: ByteCounter,
}

/// Number of bytes sent on a connection.
#[derive(Clone, Debug, Default)]
pub struct ByteCounter(Arc<AtomicU64>);

impl ByteCounter {
    /// How many bytes the kernel accepted.
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn count(&self, bytes: usize) {
        self.0.fetch_add(u64::try_from(bytes).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

impl CountedStream {
    /// A socket on which nothing was sent so far.
    pub fn new(stream: TcpStream) -> Self {
        Self { stream: Arc::new(stream), sent: ByteCounter::default() }
    }

    /// The counter of this connection.
    pub const fn byte_counter(&self) -> &ByteCounter {
        &self.sent
    }

    /// Whether an idle connection cannot be used any more: the peer closed it or sent unsolicited
    /// bytes, which over TLS is how a close begins. Asks the kernel, because the runtime may not
    /// have been notified yet.
    pub fn is_unusable(&self) -> bool {
        self.is_closed_or_spoke(true)
    }

    /// The same for a connection on which the peer may send at any time.
    pub fn is_closed(&self) -> bool {
        self.is_closed_or_spoke(false)
    }

    fn is_closed_or_spoke(&self, spoken: bool) -> bool {
        let mut byte = [MaybeUninit::uninit(); 1];
        match SockRef::from(&*self.stream).peek(&mut byte) {
            Ok(0) => true,
            Ok(_) => spoken,
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        }
    }
}

impl CountedStream {
    /// Clears the read readiness after a read that did not fill its buffer: nothing is left to be
    /// read, so the next read waits for a notification instead of making a system call. (No
    /// notification can be lost in between: the runtime polls for events on this thread.)
    fn clear_readiness(&self) {
        let nothing = || Err::<(), _>(io::Error::from(io::ErrorKind::WouldBlock));
        let _ = self.stream.try_io(Interest::READABLE, nothing);
    }
}

impl AsyncRead for CountedStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.stream.poll_read_ready(context))?;
            let room = buffer.remaining();
            match self.stream.try_read_buf(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(read) => {
                    if (1..room).contains(&read) {
                        self.clear_readiness();
                    }
                    return Poll::Ready(Ok(()));
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for CountedStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.stream.poll_write_ready(context))?;
            match self.stream.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => {
                    self.sent.count(*written.as_ref().unwrap_or(&0));
                    return Poll::Ready(written);
                }
            }
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.stream.poll_write_ready(context))?;
            match self.stream.try_write_vectored(pieces) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => {
                    self.sent.count(*written.as_ref().unwrap_or(&0));
                    return Poll::Ready(written);
                }
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(SockRef::from(&*self.stream).shutdown(std::net::Shutdown::Write))
    }
}
