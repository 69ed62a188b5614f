//! What is explored: how many requests, under which policy, with how much bad luck, with which bug.

use std::time::Duration;

use semel_core::OnUnknown;

/// How far one tick of time moves every clock: the shortest pause of the request machine.
pub const TICK: Duration = Duration::from_millis(10);
/// The lease: two ticks, so that it can be renewed and can lapse within a short story.
pub const LEASE: Duration = Duration::from_millis(20);
/// How long a claim may take: less than a tick, so that a failing store is noticed.
pub(super) const STORE_TIMEOUT: Duration = Duration::from_millis(6);
/// How long a repeat waits.
pub const WAIT: Duration = Duration::from_millis(20);
/// How long a finished record is kept: longer than a lease, and short enough to pass.
pub const RETENTION: Duration = Duration::from_millis(30);

/// One exploration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    /// What the route says about unknown outcomes.
    pub on_unknown: OnUnknown,
    /// How many requests with the same key there are.
    pub requests: usize,
    /// Whether the first two arrive in the same process, so that one may join the other.
    pub joins: bool,
    /// Whether the route runs unguarded while the store is away. Then an operation may run
    /// twice, and the effects of unguarded runs are not counted.
    pub passes: bool,
    /// How much can go wrong.
    pub bounds: ExplorationBounds,
    /// What is broken on purpose.
    pub bug: Option<Bug>,
}

impl Setup {
    /// Two requests in two processes, and nothing broken.
    #[must_use]
    pub fn new(on_unknown: OnUnknown) -> Self {
        Self {
            on_unknown,
            requests: 2,
            joins: false,
            passes: false,
            bounds: ExplorationBounds::default(),
            bug: None,
        }
    }
}

/// How much can happen before the explorer stops looking. What is spent is part of a world, so
/// these numbers decide how many worlds there are.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub struct ExplorationBounds {
    /// How many ticks of time pass.
    pub ticks: u64,
    /// How many processes crash.
    pub crashes: u8,
    /// How many requests or replies are lost, or refused by a busy store.
    pub losses: u8,
    /// How many replies are slow. (A request may always be: it is served whenever it is served.)
    pub slow: u8,
    /// How many requests are given up on and may arrive all the same.
    pub late: u8,
    /// How many times an operator looks, and then acts or does not.
    pub acts: u8,
}

impl Default for ExplorationBounds {
    fn default() -> Self {
        Self { ticks: 5, crashes: 1, losses: 1, slow: 1, late: 0, acts: 0 }
    }
}

macro_rules! bugs {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// A mistake that can be planted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Bug {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Bug {
            /// Every bug there is.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// What is wrong, in a sentence.
            #[must_use]
            pub const fn sentence(self) -> &'static str {
                match self {
                    $(Self::$name => concat!($($doc),+).trim_ascii(),)+
                }
            }
        }
    };
}

impl Bug {
    /// The smallest world in which it shows.
    #[must_use]
    pub fn setup(self) -> Setup {
        let calm = ExplorationBounds {
            crashes: 0,
            losses: 0,
            slow: 0,
            late: 0,
            acts: 0,
            ..ExplorationBounds::default()
        };
        let (on_unknown, bounds) = match self {
            Self::CompleteUnfenced | Self::ReleaseUnfenced | Self::TakeoverInTwoSteps => {
                (OnUnknown::Rerun, calm)
            }
            Self::LeaseFromReply => (OnUnknown::Rerun, ExplorationBounds { slow: 1, ..calm }),
            Self::OwnerTokenIgnored | Self::AcknowledgedEarly | Self::ErrorSwallowed => {
                (OnUnknown::Hold, ExplorationBounds { losses: 1, ..calm })
            }
            Self::ActIsBlind | Self::FenceRestarts => {
                (OnUnknown::Hold, ExplorationBounds { acts: 1, ..calm })
            }
            Self::WaiterTakesOver | Self::HeldExpires | Self::BrokenTakenForUnreached => {
                (OnUnknown::Hold, calm)
            }
            Self::LeaseNeverLapses => (OnUnknown::Hold, ExplorationBounds { crashes: 1, ..calm }),
        };
        Setup { bounds, bug: Some(self), ..Setup::new(on_unknown) }
    }
}

bugs! {
    /// The store records an answer without checking the fence.
    CompleteUnfenced,
    /// The store releases a record without checking the fence.
    ReleaseUnfenced,
    /// A record with an expired lease is taken over by a read, and a compare-and-swap on its fence.
    TakeoverInTwoSteps,
    /// The store does not recognize a repeated claim by its owner token.
    OwnerTokenIgnored,
    /// The owner counts its lease from the reply instead of from the request.
    LeaseFromReply,
    /// A waiter claims the record when it is released.
    WaiterTakesOver,
    /// A held record is deleted when its retention has passed.
    HeldExpires,
    /// An operator's action does not check the fence that the operator saw.
    ActIsBlind,
    /// Fences are counted in the record, so that they restart when it is deleted.
    FenceRestarts,
    /// An answer is acknowledged before the store has confirmed the record.
    AcknowledgedEarly,
    /// A broken execution counts as never sent.
    BrokenTakenForUnreached,
    /// A lease never expires: one time limit serves as lease and as retention.
    LeaseNeverLapses,
    /// The driver swallows an error of the store instead of reporting it.
    ErrorSwallowed,
}
