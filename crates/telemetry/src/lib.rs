//! Metrics, logs and traces of a server.

mod duration_fmt;
mod engine_observer;
pub mod escape;
mod held;
pub mod log;
pub mod log_throttle;
pub mod metrics;
#[cfg(feature = "otlp")]
mod otlp;
pub mod trace;

pub use duration_fmt::format_duration;
pub use engine_observer::EngineObserver;
pub use held::HeldRecordCounter;
