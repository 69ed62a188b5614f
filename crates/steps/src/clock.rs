//! The clocks of a process: the time since the machine was started, and the wall clock.

use std::time::Duration;

/// The time since the machine was started, suspension included. It never decreases.
#[cfg(target_os = "linux")]
#[must_use]
pub fn since_boot() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or_default())
}

/// Which start of the machine that was: the same text for every process until it reboots.
#[cfg(target_os = "linux")]
#[must_use]
pub fn boot_id() -> &'static str {
    static ID: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    ID.get_or_init(|| {
        let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        id.trim().to_owned()
    })
}

/// Other systems have no such clock without unsafe code: the wall clock stands in, with its jumps.
#[cfg(not(target_os = "linux"))]
#[must_use]
pub fn since_boot() -> Duration {
    wall()
}

/// As there, one start for ever.
#[cfg(not(target_os = "linux"))]
#[must_use]
pub fn boot_id() -> &'static str {
    "wall"
}

/// The time since 1970.
#[must_use]
pub fn wall() -> Duration {
    std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default()
}

/// A duration in milliseconds, for the database.
#[must_use]
pub fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX / 4)
}

/// A random number other than 0.
pub(crate) fn random() -> u64 {
    getrandom::u64().unwrap_or_else(|_| {
        u64::try_from(since_boot().as_nanos()).unwrap_or_default() ^ u64::from(std::process::id())
    }) | 1
}
