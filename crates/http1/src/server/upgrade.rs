//! Hands the client connection to the tunnel after 101.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::BytesMut;
use tokio::sync::oneshot;

use crate::server::conn::Io;

/// The byte stream of a client and the input that was already read.
pub type UpgradedConnection = (Box<dyn Io>, BytesMut);

/// Yields the client connection once 101 was sent. It is a request extension; the first to take it
/// gets the connection.
#[derive(Clone)]
pub struct PendingUpgrade(Arc<Mutex<Option<oneshot::Receiver<UpgradedConnection>>>>);

impl PendingUpgrade {
    pub(crate) fn new() -> (oneshot::Sender<UpgradedConnection>, Self) {
        let (sender, receiver) = oneshot::channel();
        (sender, Self(Arc::new(Mutex::new(Some(receiver)))))
    }

    /// Awaits the connection. `None` if it ends before or was already taken.
    pub async fn connection(self) -> Option<UpgradedConnection> {
        let receiver = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        receiver?.await.ok()
    }
}

impl fmt::Debug for PendingUpgrade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PendingUpgrade")
    }
}
