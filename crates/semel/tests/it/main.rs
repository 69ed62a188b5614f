//! The engine, on a store in memory whose clock is tokio's, so that a test can stop time.

mod away;
mod basics;
mod bench;
mod cache;
mod limits;
mod waiting;
