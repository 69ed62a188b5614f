//! What senders, relays and operators rely on, on each database.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test reports by panicking")]

mod backend;
mod cases;
mod postgres_only;
mod test_sink;

/// Each case, on each database.
macro_rules! cases {
    ($($case:ident),+ $(,)?) => {
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                crate::cases::$case(crate::backend::PgBackend::fresh().await).await;
            })+
        }
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                crate::cases::$case(crate::backend::SqliteBackend::fresh()).await;
            })+
        }
    };
}

cases! {
    a_message_is_delivered_if_and_only_if_its_transaction_committed,
    a_failing_key_moves_aside_in_its_order_and_the_others_go_on,
    a_parked_message_waits_for_an_operator,
    a_refused_message_is_dropped_and_the_next_of_its_key_follows,
    an_outage_of_the_receiver_moves_nothing_aside,
    a_stopped_relay_gives_its_leases_back,
    a_lapsed_lease_is_taken_over_and_its_owner_saves_nothing,
}
