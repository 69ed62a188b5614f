//! The explorer: every order of events at one key.
//!
//! The [rules](semel_core::rules) of a store and the request [machine](semel_core::flow) are pure,
//! so a world of two or three requests, one record and a bad network is a value. The explorer
//! begins with an empty store and takes every possible action in every reachable world, breadth
//! first. After each action every [`Invariant`] is checked. The first world that breaks one is
//! therefore reached by the shortest [`EventTrace`] there is. If no world does, none can within the
//! [`ExplorationBounds`].
//!
//! What can happen:
//!
//! | who | what |
//! |---|---|
//! | a request | arrives; joins one in its process; runs, takes effect, ends in one of four ways |
//! | the network | a request or a reply is slow, is lost, or comes after its time-out |
//! | a process | is slow to serve its timer; crashes at any time |
//! | time | passes in ticks of [`TICK`], with leases of two |
//! | maintenance | reaps and sweeps; an operator looks, and later acts on what was seen |
//!
//! A [`Bug`] can be planted to see that the explorer would notice. It is planted in the explorer's
//! own store and driver, which otherwise only call the core.
//!
//! ```
//! use semel_core::OnUnknown;
//! use semel_testkit::explore::{ExplorationBounds, Bug, Invariant, Setup, explore};
//!
//! let default = ExplorationBounds::default();
//! let bounds = ExplorationBounds { ticks: 4, crashes: 0, losses: 0, slow: 0, ..default };
//! let sound = Setup { bounds, ..Setup::new(OnUnknown::Rerun) };
//! assert!(explore(&sound).violation.is_none());
//!
//! let broken = Setup { bug: Some(Bug::CompleteUnfenced), ..sound };
//! let violation = explore(&broken).violation.expect("a zombie writes");
//! assert_eq!(violation.invariant, Invariant::ZombiesAreSilent);
//! ```

mod event;
mod hash;
mod invariant;
mod model_store;
mod search;
mod setup;
mod story;
mod transition;
mod world;

pub use invariant::Invariant;
pub use search::{Explored, Violation, explore};
pub use setup::{Bug, ExplorationBounds, LEASE, RETENTION, Setup, TICK, WAIT};
pub use story::EventTrace;
