//! Where clients knock: accepts connections and hands each to the thread that has the fewest.
//!
//! One listener for all threads, not one for each (`SO_REUSEPORT`): the kernel would spread
//! connections by a hash, so that of 64 one thread may get 40, and what waits at a listener that is
//! closed would be cut off.

use std::{
    io,
    net::{SocketAddr, TcpListener as StdListener, TcpStream as StdStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use socket2::{Domain, Socket, Type};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::sleep,
};
use tokio_rustls::TlsAcceptor;

use super::{
    stop::{Phase, Stop},
    worker::Hand,
};
use crate::ops::metrics::Metrics;

/// How many connections may wait to be accepted.
const BACKLOG: i32 = 1024;

/// How long to wait after an error that the next attempt would meet again, such as too many open
/// files.
const PAUSE: Duration = Duration::from_secs(1);

/// A connection on its way to the thread that serves it.
pub(crate) struct Accepted {
    pub(crate) stream: StdStream,
    pub(crate) address: SocketAddr,
    pub(crate) tls: Option<TlsAcceptor>,
    pub(crate) place: Place,
}

/// A connection's place among those that are allowed, and among those of its thread. Given up when
/// it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    thread: Arc<AtomicUsize>,
    metrics: Arc<Metrics>,
    _permit: OwnedSemaphorePermit,
}

impl Place {
    pub(crate) fn new(
        thread: &Arc<AtomicUsize>,
        permit: OwnedSemaphorePermit,
        metrics: &Arc<Metrics>,
    ) -> Self {
        thread.fetch_add(1, Ordering::Relaxed);
        metrics.connection_opened();
        Self { thread: Arc::clone(thread), metrics: Arc::clone(metrics), _permit: permit }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.thread.fetch_sub(1, Ordering::Relaxed);
        self.metrics.connection_closed();
    }
}

/// Takes an address.
pub(crate) fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    // A restart need not wait until the kernel forgets the last process's connections.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Accepts until it is told to stop, and then still whoever has knocked before.
pub(crate) async fn accept(listener: TcpListener, door: Door, mut stop: Stop) {
    loop {
        let accepted = tokio::select! {
            biased;
            () = stop.reached(Phase::Draining) => break,
            accepted = door.next(&listener) => accepted,
        };
        match accepted {
            // The thread that serves it has its own runtime.
            Ok(((stream, address), permit)) => {
                if let Ok(stream) = stream.into_std() {
                    door.admit(stream, address, permit);
                }
            }
            Err(error) => {
                tracing::error!(%error, "no connection can be accepted");
                sleep(PAUSE).await;
            }
        }
    }
    // A listener that is closed resets whoever waits there.
    if let Ok(listener) = listener.into_std() {
        door.admit_waiting(&listener);
    }
}

/// What stands behind a listener.
pub(crate) struct Door {
    pub(crate) tls: Option<TlsAcceptor>,
    pub(crate) hands: Vec<Hand>,
    pub(crate) places: Arc<Semaphore>,
    pub(crate) metrics: Arc<Metrics>,
}

type Knock = ((TcpStream, SocketAddr), OwnedSemaphorePermit);

impl Door {
    /// The next connection. When all places are taken nobody is accepted: they wait in the kernel.
    async fn next(&self, listener: &TcpListener) -> io::Result<Knock> {
        let permit = Arc::clone(&self.places).acquire_owned().await.map_err(io::Error::other)?;
        Ok((listener.accept().await?, permit))
    }

    fn admit(&self, stream: StdStream, address: SocketAddr, permit: OwnedSemaphorePermit) {
        let Some(hand) = self.hands.iter().min_by_key(|hand| hand.connections()) else { return };
        let place = Place::new(hand.counter(), permit, &self.metrics);
        hand.give(Accepted { stream, address, tls: self.tls.clone(), place });
    }

    /// Admits whoever has knocked. The kernel is asked: the runtime may not have heard of them yet.
    fn admit_waiting(&self, listener: &StdListener) {
        while let Ok(permit) = Arc::clone(&self.places).try_acquire_owned() {
            match listener.accept() {
                Ok((stream, address)) => {
                    if stream.set_nonblocking(true).is_ok() {
                        self.admit(stream, address, permit);
                    }
                }
                // One that was gone before its turn.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(_) => return,
            }
        }
    }
}
