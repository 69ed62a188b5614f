//! What a connection to an upstream is made of: a socket, or TLS on one.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, Waker},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::client::TlsStream;

use crate::gateway::wire::Socket;

/// A socket, or TLS on one.
#[derive(Debug)]
pub(crate) enum Stream {
    Clear(Socket),
    Tls(Box<TlsStream<Socket>>),
}

impl Stream {
    pub(crate) fn socket(&self) -> &Socket {
        match self {
            Self::Clear(socket) => socket,
            Self::Tls(stream) => stream.get_ref().0,
        }
    }

    /// Whether nothing is left in here that the kernel does not know of any more.
    pub(crate) fn is_silent(&mut self) -> bool {
        let Self::Tls(stream) = self else { return true };
        let mut byte = [0; 1];
        let mut byte = ReadBuf::new(&mut byte);
        let mut context = Context::from_waker(Waker::noop());
        Pin::new(&mut **stream).poll_read(&mut context, &mut byte).is_pending()
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Clear(socket) => Pin::new(socket).poll_read(context, buffer),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Clear(socket) => Pin::new(socket).poll_write(context, bytes),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Clear(socket) => Pin::new(socket).poll_write_vectored(context, pieces),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_write_vectored(context, pieces),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Clear(socket) => Pin::new(socket).poll_flush(context),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Clear(socket) => Pin::new(socket).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_shutdown(context),
        }
    }
}
