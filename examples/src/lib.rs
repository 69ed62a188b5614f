//! Semel at work: a checkout, payments and bookings on axum, a gRPC service on tonic, a nightly
//! job.

pub mod booking;
pub mod checkout;
mod database;
pub mod grpc;
pub mod nightly;
pub mod payments;
pub mod shutdown;

/// The examples on the project's front page compile.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct FrontPage;

/// So do those of the guides.
#[cfg(doctest)]
mod guides {
    #[doc = include_str!("../../docs/guide/callers.md")]
    struct Callers;

    #[doc = include_str!("../../docs/guide/deadlines.md")]
    struct Deadlines;

    #[doc = include_str!("../../docs/guide/postgres-axum.md")]
    struct AxumAndPostgres;

    #[doc = include_str!("../../docs/guide/rolling-it-out.md")]
    struct RollingItOut;

    #[doc = include_str!("../../docs/guide/steps.md")]
    struct Steps;

    #[doc = include_str!("../../docs/guide/stripe-sdks.md")]
    struct StripeSdks;

    #[doc = include_str!("../../docs/guide/webhooks.md")]
    struct Webhooks;
}
