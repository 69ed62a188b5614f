//! The clocks of the client: one that only rises, one that counts suspend as well, and the date.
#![allow(clippy::disallowed_methods, reason = "the client is a driver: here it reads its clocks")]

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A clock that only rises.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Time since 1970.
pub(crate) fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Time since the system started, suspend included: a lease ends while its owner sleeps.
#[cfg(target_os = "linux")]
pub(crate) fn since_boot() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or_default())
}

/// Elsewhere the date, which suspend does not stop.
#[cfg(not(target_os = "linux"))]
pub(crate) fn since_boot() -> Duration {
    since_1970()
}
