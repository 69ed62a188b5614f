//! Accepts connections and assigns each to the worker with the fewest open connections.
//!
//! All workers share one listener. With a listener for each (`SO_REUSEPORT`) the kernel would
//! distribute connections by a hash, so that one worker may get 40 of 64, and closing a listener
//! would reset the connections in its backlog.

use std::{
    io,
    net::{SocketAddr, TcpListener as StdListener, TcpStream as StdStream},
    sync::Arc,
    time::Duration,
};

use socket2::{Domain, Socket, Type};
use tokio::{net::TcpListener, time::sleep};

use crate::connections::{ConnectionPermit, Connections};
use crate::listen::accepted::{Accepted, WorkerCountGuard};
use crate::listen::worker::WorkerHandle;
use crate::shutdown::{Shutdown, ShutdownPhase};
use crate::tls::Certificate;

/// Number of connections that may wait to be accepted.
const BACKLOG: i32 = 1024;

/// Wait after an error that the next attempt would probably meet again, such as too many open
/// files.
const ACCEPT_BACKOFF: Duration = Duration::from_secs(1);

/// Binds an address and listens on it.
pub(crate) fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    // A restart need not wait for the TIME_WAIT connections of the previous process.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Accepts connections until the shutdown begins, and then those that are already in the backlog.
pub(crate) async fn accept(
    listener: TcpListener,
    acceptor: ConnectionAcceptor,
    mut shutdown: Shutdown,
) {
    loop {
        let accepted = tokio::select! {
            biased;
            () = shutdown.wait_for(ShutdownPhase::Draining) => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            // The worker that serves it has its own runtime.
            Ok((stream, address)) => {
                let Ok(stream) = stream.into_std() else { continue };
                // While every connection is in use, new ones wait in the backlog.
                let permit = tokio::select! {
                    biased;
                    permit = acceptor.connections.admit(address) => permit,
                    () = shutdown.wait_for(ShutdownPhase::Draining) => break,
                };
                acceptor.dispatch(stream, address, permit);
            }
            Err(error) => {
                tracing::error!(%error, "cannot accept connections");
                sleep(ACCEPT_BACKOFF).await;
            }
        }
    }
    // Closing a listener resets the connections in its backlog.
    if let Ok(listener) = listener.into_std() {
        acceptor.dispatch_backlog(&listener);
    }
}

/// Distributes the connections of a listener to the workers.
pub(crate) struct ConnectionAcceptor {
    pub(crate) tls: Option<Arc<Certificate>>,
    pub(crate) workers: Vec<WorkerHandle>,
    pub(crate) connections: Arc<Connections>,
}

impl ConnectionAcceptor {
    fn dispatch(&self, stream: StdStream, address: SocketAddr, permit: ConnectionPermit) {
        let Some(worker) = self.workers.iter().min_by_key(|worker| worker.connections()) else {
            return;
        };
        let count = WorkerCountGuard::new(worker.connection_counter());
        let tls = self.tls.as_ref().map(|certificate| certificate.acceptor());
        worker.send(Accepted { stream, address, tls, permit, count });
    }

    /// Accepts the connections in the backlog. Asks the kernel, because the runtime may not have
    /// been notified yet.
    fn dispatch_backlog(&self, listener: &StdListener) {
        loop {
            match listener.accept() {
                Ok((stream, address)) => {
                    let Some(permit) = self.connections.try_admit(address) else { return };
                    if stream.set_nonblocking(true).is_ok() {
                        self.dispatch(stream, address, permit);
                    }
                }
                // The client disconnected before it was accepted.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(_) => return,
            }
        }
    }
}
