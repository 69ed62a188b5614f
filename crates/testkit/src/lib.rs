//! What Semel's own tests need and its users do not: never published, a dev-dependency only.

pub mod powercut;
