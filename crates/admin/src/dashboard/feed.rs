//! The history and the update that was rendered last, shared by all who watch.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use semel_telemetry::metrics::Totals;
use tokio::sync::{Semaphore, watch};

use super::history::{Gauges, History};

/// Maximum number of open streams.
const STREAMS_MAX: usize = 64;

/// The last hour, and the update that was rendered last.
pub(super) struct LiveFeed {
    history: Mutex<Option<History>>,
    pub(super) update: watch::Sender<Bytes>,
    pub(super) streams: Arc<Semaphore>,
}

impl Default for LiveFeed {
    fn default() -> Self {
        Self {
            history: Mutex::default(),
            update: watch::Sender::default(),
            streams: Arc::new(Semaphore::new(STREAMS_MAX)),
        }
    }
}

impl LiveFeed {
    /// Adds the counters of now, and reads the history.
    pub(super) fn with_history<T>(
        &self,
        totals: Totals,
        gauges: Gauges,
        read: impl FnOnce(&History) -> T,
    ) -> T {
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        let history = history.get_or_insert_with(|| History::new(totals.clone()));
        history.record(totals, gauges);
        read(history)
    }
}
