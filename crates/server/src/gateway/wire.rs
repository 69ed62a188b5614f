//! The two ends of the gateway as streams of bytes: what goes out to a client does not wait for
//! ever; what goes out to an upstream is counted.

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

use super::alarm::Alarm;

/// A client's socket, which is given up when the client takes nothing of what is sent to it.
/// Without that, whoever asks and never reads keeps a place from others for as long as they like.
/// (By HTTP/2 a client can read its connection and yet give one of its streams no room. Then
/// nothing is sent, and this does not see it.)
#[derive(Debug)]
pub(crate) struct Outlet<T> {
    io: T,
    patience: Duration,
    /// Until when something must be taken, if something waits to be.
    deadline: Option<Instant>,
    alarm: Alarm,
}

impl<T> Outlet<T> {
    pub(crate) fn new(io: T, patience: Duration) -> Self {
        Self { io, patience, deadline: None, alarm: Alarm::default() }
    }

    /// Looks at what was taken: if it is nothing, and has been for too long, that is the end.
    fn check(
        &mut self,
        taken: Poll<io::Result<usize>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if taken.is_ready() {
            self.deadline = None;
            return taken;
        }
        let deadline = *self.deadline.get_or_insert_with(|| Instant::now() + self.patience);
        ready!(self.alarm.poll(deadline, context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Outlet<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(context, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Outlet<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let taken = Pin::new(&mut self.io).poll_write(context, bytes);
        self.check(taken, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let taken = Pin::new(&mut self.io).poll_write_vectored(context, pieces);
        self.check(taken, context)
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

/// A socket that the pool can look at, even while hyper owns the connection, and that counts what
/// goes out: the difference between no byte and one is the difference between *nothing was sent*
/// and *outcome unknown*.
///
/// The count is of what the kernel has taken. Over TLS that is more than the request, but never
/// nothing when a part of the request is on its way.
#[derive(Clone, Debug)]
pub(crate) struct Socket {
    stream: Arc<TcpStream>,
    sent: Meter,
}

/// How many bytes have gone out on a connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Meter(Arc<AtomicU64>);

impl Meter {
    pub(crate) fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn count(&self, bytes: usize) {
        self.0.fetch_add(u64::try_from(bytes).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

impl Socket {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self { stream: Arc::new(stream), sent: Meter::default() }
    }

    pub(crate) const fn meter(&self) -> &Meter {
        &self.sent
    }

    /// Whether an idle connection is of no more use, by asking the kernel now: the runtime may not
    /// have heard of it yet. The other side has closed it, or said something that nobody asked for:
    /// by TLS that is how it begins to close.
    pub(crate) fn is_ended(&self) -> bool {
        self.is_closed_or(true)
    }

    /// The same for a connection on which the other side may speak at any time.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed_or(false)
    }

    fn is_closed_or(&self, spoken: bool) -> bool {
        let mut byte = [MaybeUninit::uninit(); 1];
        match SockRef::from(&*self.stream).peek(&mut byte) {
            Ok(0) => true,
            Ok(_) => spoken,
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        }
    }
}

impl Socket {
    /// Says that nothing is left to be read, as a read that fills only a part of its buffer shows:
    /// the next one waits for the kernel's word instead of asking in vain. (Nothing can have come
    /// in between that the runtime would forget: it listens on this very thread.)
    fn rest(&self) {
        let nothing = || Err::<(), _>(io::Error::from(io::ErrorKind::WouldBlock));
        let _ = self.stream.try_io(Interest::READABLE, nothing);
    }
}

impl AsyncRead for Socket {
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
                        self.rest();
                    }
                    return Poll::Ready(Ok(()));
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Socket {
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
