//! An accepted connection on its way to the worker that serves it.

use std::{
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio_rustls::TlsAcceptor;

use crate::connections::ConnectionPermit;

/// An accepted connection on its way to the worker that serves it.
pub(crate) struct Accepted {
    pub(crate) stream: TcpStream,
    pub(crate) address: SocketAddr,
    pub(crate) tls: Option<TlsAcceptor>,
    pub(crate) permit: ConnectionPermit,
    pub(crate) count: WorkerCountGuard,
}

/// Counts a connection of a worker until it is dropped.
#[derive(Debug)]
pub(crate) struct WorkerCountGuard(Arc<AtomicUsize>);

impl WorkerCountGuard {
    pub(crate) fn new(thread: &Arc<AtomicUsize>) -> Self {
        thread.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(thread))
    }
}

impl Drop for WorkerCountGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
