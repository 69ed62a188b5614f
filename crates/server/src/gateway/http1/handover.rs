//! A connection that changes hands: after 101 it belongs to whoever speaks its new protocol.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::BytesMut;
use tokio::sync::oneshot;

use super::inlet::Io;

/// The connection of a client, and what has come on it already.
pub(crate) type Handed = (Box<dyn Io>, BytesMut);

/// Where the connection of a client can be had once it was told of 101. Goes with the request, for
/// one who takes it.
#[derive(Clone)]
pub(crate) struct Handover(Arc<Mutex<Option<oneshot::Receiver<Handed>>>>);

impl Handover {
    pub(super) fn new() -> (oneshot::Sender<Handed>, Self) {
        let (sender, receiver) = oneshot::channel();
        (sender, Self(Arc::new(Mutex::new(Some(receiver)))))
    }

    /// The connection, unless it ends before or was asked for already.
    pub(crate) async fn connection(self) -> Option<Handed> {
        let receiver = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        receiver?.await.ok()
    }
}

impl fmt::Debug for Handover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Handover")
    }
}
