//! Byte for byte: an upstream that is a script, and a client that is a socket.

use std::{
    future::{Future, pending},
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use crate::soon;

/// A socket with what was read from it too early.
pub(crate) struct Raw {
    pub(crate) stream: TcpStream,
    ahead: Vec<u8>,
}

impl Raw {
    pub(crate) const fn new(stream: TcpStream) -> Self {
        Self { stream, ahead: Vec::new() }
    }

    pub(crate) async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self::new(stream)
    }

    pub(crate) async fn write(&mut self, bytes: impl AsRef<[u8]>) {
        soon(self.stream.write_all(bytes.as_ref())).await.unwrap();
    }

    /// Reads up to and including these bytes. `None` if the other side ends before.
    pub(crate) async fn try_read_to(&mut self, end: &str) -> Option<String> {
        loop {
            let found = self.ahead.windows(end.len()).position(|piece| piece == end.as_bytes());
            if let Some(at) = found {
                let rest = self.ahead.split_off(at + end.len());
                let text = std::mem::replace(&mut self.ahead, rest);
                return Some(String::from_utf8(text).unwrap());
            }
            if soon(self.stream.read_buf(&mut self.ahead)).await.unwrap_or(0) == 0 {
                return None;
            }
        }
    }

    pub(crate) async fn read_to(&mut self, end: &str) -> String {
        let read = self.try_read_to(end).await;
        read.unwrap_or_else(|| panic!("it ended after {:?}", String::from_utf8_lossy(&self.ahead)))
    }

    /// Reads a head, in lower case: this compares fields, whose names are.
    pub(crate) async fn read_head(&mut self) -> String {
        self.read_to("\r\n\r\n").await.to_lowercase()
    }

    /// Reads this many bytes. Waits for ever when the other side ends before: a script that is
    /// over has nothing more to do.
    pub(crate) async fn read_bytes(&mut self, count: usize) -> Vec<u8> {
        while self.ahead.len() < count {
            if self.stream.read_buf(&mut self.ahead).await.unwrap_or(0) == 0 {
                pending::<()>().await;
            }
        }
        let rest = self.ahead.split_off(count);
        std::mem::replace(&mut self.ahead, rest)
    }

    pub(crate) async fn read(&mut self, count: usize) -> String {
        String::from_utf8(soon(self.read_bytes(count)).await).unwrap()
    }

    /// Reads until the other side ends.
    pub(crate) async fn read_all(&mut self) -> String {
        soon(self.stream.read_to_end(&mut self.ahead)).await.unwrap();
        String::from_utf8(std::mem::take(&mut self.ahead)).unwrap()
    }
}

/// An upstream that gives each connection to a function.
pub(crate) struct RawUpstream {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
}

impl RawUpstream {
    /// The function gets the connection and its number, from 0.
    pub(crate) async fn start<F, A>(serve: F) -> Self
    where
        F: Fn(Raw, usize) -> A + Send + 'static,
        A: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&connections);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                stream.set_nodelay(true).unwrap();
                tokio::spawn(serve(Raw::new(stream), count.fetch_add(1, Ordering::SeqCst)));
            }
        });
        Self { address, connections }
    }

    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many connections were made to it.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}
