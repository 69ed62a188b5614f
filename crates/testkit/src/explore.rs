//! Every order in which things can happen to one key, tried out.
//!
//! The [rules](semel_core::rules) of a store and the request [machine](semel_core::flow) are pure,
//! so a world of two or three requests, one record and a bad network is a value. The explorer
//! begins with an empty store and takes every possible action in every reachable world, breadth
//! first. After each action every [`Invariant`] is asked. The first world that breaks one is
//! therefore reached by the shortest [`Story`] there is, and when none does, none can within the
//! [`Bounds`].
//!
//! What can happen:
//!
//! | who | what |
//! |---|---|
//! | a request | arrives; joins one in its process; runs, takes effect, ends in one of four ways |
//! | the network | a request or a reply is slow, is lost, or comes when nobody waits any more |
//! | a process | is slow to hear its alarm; crashes at any moment |
//! | time | passes in ticks of [`TICK`], with leases of two |
//! | the house | reaps and sweeps; an operator looks, and later acts on what was seen |
//!
//! A [`Bug`] can be planted to see that the explorer would notice. It is planted in the explorer's
//! own store and driver, which otherwise only call the core.
//!
//! ```
//! use semel_core::OnUnknown;
//! use semel_testkit::explore::{Bounds, Bug, Invariant, Setup, explore};
//!
//! let bounds = Bounds { ticks: 4, crashes: 0, losses: 0, slow: 0, ..Bounds::default() };
//! let sound = Setup { bounds, ..Setup::new(OnUnknown::Rerun) };
//! assert!(explore(&sound).violation.is_none());
//!
//! let broken = Setup { bug: Some(Bug::CompleteUnfenced), ..sound };
//! let violation = explore(&broken).violation.expect("a zombie writes");
//! assert_eq!(violation.invariant, Invariant::ZombiesAreSilent);
//! ```

mod action;
mod hash;
mod invariant;
mod search;
mod setup;
mod shelf;
mod story;
mod turn;
mod world;

pub use invariant::Invariant;
pub use search::{Explored, Violation, explore};
pub use setup::{Bounds, Bug, LEASE, RETENTION, Setup, TICK, WAIT};
pub use story::Story;
