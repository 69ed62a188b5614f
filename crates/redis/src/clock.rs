//! The clock by which entries expire: the wall clock, since gateways on several machines read them.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use semel_core::time::millis;

/// How much the clocks of a fleet may differ. An entry is believed until this long before its
/// record expires.
const MARGIN_MILLIS: u64 = 5_000;

#[derive(Clone)]
pub(crate) struct Clock {
    read: Arc<dyn Fn() -> Duration + Send + Sync>,
    margin: u64,
}

impl Clock {
    /// One that all fronts share.
    pub(crate) fn exact(read: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self { read: Arc::new(read), margin: 0 }
    }

    /// Milliseconds since 1970.
    pub(crate) fn now(&self) -> u64 {
        millis((self.read)())
    }

    /// How many milliseconds other clocks may be off.
    pub(crate) const fn margin(&self) -> u64 {
        self.margin
    }

    /// Whether all fronts share it.
    pub(crate) const fn is_exact(&self) -> bool {
        self.margin == 0
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self { read: Arc::new(wall), margin: MARGIN_MILLIS }
    }
}

#[expect(clippy::disallowed_methods, reason = "the edge: the one place that reads the wall clock")]
fn wall() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clock").field("margin", &self.margin).finish_non_exhaustive()
    }
}
