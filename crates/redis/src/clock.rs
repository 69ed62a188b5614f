//! The clock for the expiry of entries: the wall clock, because several machines read them.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use semel_core::time::millis;

/// How much the clocks of a fleet may differ. An entry is used until this long before its record
/// expires.
const MARGIN_MILLIS: u64 = 5_000;

#[derive(Clone)]
pub(crate) struct EntryClock {
    read: Arc<dyn Fn() -> Duration + Send + Sync>,
    margin: u64,
}

impl EntryClock {
    /// A clock that all caches share.
    pub(crate) fn exact(read: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self { read: Arc::new(read), margin: 0 }
    }

    /// Milliseconds since 1970.
    pub(crate) fn now(&self) -> u64 {
        millis((self.read)())
    }

    /// The allowed difference of other clocks, in milliseconds.
    pub(crate) const fn margin(&self) -> u64 {
        self.margin
    }

    /// Whether all caches share it.
    pub(crate) const fn is_exact(&self) -> bool {
        self.margin == 0
    }
}

impl Default for EntryClock {
    fn default() -> Self {
        Self { read: Arc::new(wall), margin: MARGIN_MILLIS }
    }
}

#[expect(clippy::disallowed_methods, reason = "the edge: the one place that reads the wall clock")]
fn wall() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

impl fmt::Debug for EntryClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EntryClock").field("margin", &self.margin).finish_non_exhaustive()
    }
}
