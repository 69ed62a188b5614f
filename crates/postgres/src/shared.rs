//! The connection settings, the queue and the state of the connections that all tasks of a store
//! share.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

use semel_core::{StoreError, StoreErrorKind, StoreId};

use crate::{
    command_queue::CommandQueue,
    presence::store_id,
    session::{Session, SessionConnector},
    timeline::Timeline,
};

pub(crate) struct SharedState {
    pub(crate) connector: Arc<SessionConnector>,
    pub(crate) queue: CommandQueue,
    /// How often the database turned out to be another one. Connections from before are not used.
    replacements: AtomicU64,
    connections: AtomicUsize,
    last_error: Mutex<String>,
}

impl SharedState {
    pub(crate) fn new(connector: Arc<SessionConnector>) -> Self {
        let (connections, waiting_max) =
            (connector.options.connections, connector.options.waiting_max);
        Self {
            queue: CommandQueue::new(connections, waiting_max),
            replacements: AtomicU64::new(0),
            connections: AtomicUsize::new(0),
            last_error: Mutex::default(),
            connector,
        }
    }

    /// Opens a connection to the same store.
    pub(crate) async fn open(
        &self,
        on_notification: impl FnMut(&str) + Clone + Send + 'static,
    ) -> Result<Session, StoreError> {
        let replacements = self.replacements.load(Ordering::Acquire);
        let mut session = self.connector.open(on_notification).await?;
        session.replacements = replacements;
        Ok(session)
    }

    /// Whether a connection can still be used.
    pub(crate) fn is_usable(&self, session: &Session) -> bool {
        !session.client.is_closed()
            && session.replacements == self.replacements.load(Ordering::Acquire)
            && session.timeline_changes == self.connector.history.changes()
    }

    /// Checks which store a connection leads to. A pooler keeps its clients when the database
    /// behind it is replaced or restored, so the connection stays open.
    pub(crate) fn verify_identity(&self, store: &str) -> Result<(), StoreError> {
        if self.connector.store.get().is_some_and(|ours| ours == store) {
            return Ok(());
        }
        self.replacements.fetch_add(1, Ordering::AcqRel);
        Err(self.connector.replaced())
    }

    /// Checks the timeline of the server behind a pooler, for the same reason.
    pub(crate) fn verify_timeline(
        &self,
        session: &Session,
        found: Timeline,
    ) -> Result<(), StoreError> {
        let admitted = self.connector.history.admit(Some(found), &session.host);
        if admitted.is_err() {
            self.replacements.fetch_add(1, Ordering::AcqRel);
        }
        admitted.map(|_| ())
    }

    /// The identity of this store, for a cache that several stores share.
    pub(crate) fn identity(&self) -> Option<StoreId> {
        store_id(self.connector.store.get()?)
    }

    /// Counts a writer's new connection.
    pub(crate) fn connected(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
        self.last_error().clear();
    }

    /// Counts a writer's lost connection.
    pub(crate) fn disconnected(&self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether a writer has a connection.
    pub(crate) fn is_connected(&self) -> bool {
        self.connections.load(Ordering::Relaxed) > 0
    }

    /// Keeps the reason why there is no connection, for commands that fail.
    pub(crate) fn set_last_error(&self, error: &StoreError) {
        *self.last_error() = error.to_string();
    }

    pub(crate) fn unavailable(&self) -> StoreError {
        let mut last_error = self.last_error().clone();
        if last_error.is_empty() {
            "there is no connection to the database".clone_into(&mut last_error);
        }
        StoreError::new(StoreErrorKind::Unavailable, last_error)
    }

    fn last_error(&self) -> MutexGuard<'_, String> {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
