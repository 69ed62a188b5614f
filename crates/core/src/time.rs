//! Two clocks that never meet.
//!
//! A store stamps records with its own clock ([`StoreTime`]); an owner counts its lease on the
//! monotonic clock of its process ([`ProcessTime`]). They are different types, so that an instant
//! of one cannot be compared with an instant of the other; only durations cross the store trait.
//!
//! Both count whole milliseconds. Rounding favours the owner: a store lets a lease lapse only when
//! its clock shows *more* than the stamped millisecond, an owner stops as soon as its own shows it.

use std::time::Duration;

/// A duration in whole milliseconds, saturating.
#[must_use]
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

macro_rules! instant {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u64);

        impl $name {
            /// The instant this many milliseconds after the clock's origin.
            #[must_use]
            pub const fn from_millis(millis: u64) -> Self {
                Self(millis)
            }

            /// Milliseconds since the clock's origin.
            #[must_use]
            pub const fn as_millis(self) -> u64 {
                self.0
            }

            /// The instant `duration` later, at most the end of time.
            #[must_use]
            pub fn after(self, duration: Duration) -> Self {
                Self(self.0.saturating_add(millis(duration)))
            }

            /// How long from `earlier` until now; zero when `earlier` is later.
            #[must_use]
            pub fn since(self, earlier: Self) -> Duration {
                Duration::from_millis(self.0.saturating_sub(earlier.0))
            }
        }
    };
}

instant! {
    /// An instant on the clock of a store. It never leaves the store.
    StoreTime
}

instant! {
    /// An instant on the monotonic clock of one process. It never reaches a store.
    ProcessTime
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_never_overflows() {
        let end = StoreTime::from_millis(u64::MAX);
        assert_eq!(end.after(Duration::MAX), end);
        assert_eq!(StoreTime::default().since(end), Duration::ZERO);
    }
}
