//! The pure heart of Semel: no I/O, no clock, no runtime.
#![warn(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::as_conversions)]
#![cfg_attr(
    test,
    allow(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        clippy::as_conversions,
        reason = "a test may panic"
    )
)]

pub mod canonical;
pub mod fingerprint;
pub mod form;
pub mod key;
pub mod multipart;
