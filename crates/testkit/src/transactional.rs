//! The kit of the transactional stores: what every database must show whose transactions carry
//! records.
//!
//! A backend gives the kit a [fixture](TransactionalFixture) and one line, and each case becomes a
//! test of the backend's own crate; the same for [transactions of the user's
//! own](UserTransactionFixture):
//!
//! ```text
//! semel_testkit::transactional!(SqliteFixture::new());
//! semel_testkit::in_transaction!(SqliteFixture::new());
//! ```
//!
//! Every case counts how often the operation ran and which of its rows were committed.

pub mod endings;
mod fixture;
pub mod harm;
pub mod in_transaction;
mod process;
pub mod records;
pub mod repeats;

pub use fixture::{TransactionalFixture, UserTransactionFixture};
pub(crate) use process::TestProcess;

/// Runs a case; what [`transactional!`](crate::transactional) and
/// [`in_transaction!`](crate::in_transaction) put into each test.
#[doc(hidden)]
pub fn run(case: impl Future<Output = ()>) {
    crate::conform::on_a_runtime(case);
}

/// One test for each case, in a module for each theme. The expression makes a fresh
/// [`TransactionalFixture`] and may await.
#[macro_export]
macro_rules! transactional {
    ($make:expr) => {
        $crate::__transactional_tests! { ($make)
            repeats {
                the_first_call_runs_and_repeats_get_its_value
                a_value_outlives_its_process
                fifty_at_once_in_three_processes_run_once
                another_meaning_is_refused_in_flight_and_afterwards
                callers_and_scopes_do_not_meet
                those_who_wait_hold_no_connection
                what_is_past_its_retention_runs_again
            }
            endings {
                a_value_and_its_writes_appear_together
                a_refusal_is_recorded_and_its_writes_are_gone
                a_refusal_keeps_its_writes_where_it_says_so
                a_value_drops_its_writes_where_it_says_so
                a_retry_leaves_nothing_and_the_next_call_runs
                an_error_leaves_nothing_and_the_next_call_runs
                a_panic_leaves_nothing_and_the_next_call_runs
                a_failure_that_is_final_leaves_no_writes
            }
            harm {
                an_operation_whose_client_left_still_commits
                an_operation_whose_process_died_leaves_nothing
                a_transaction_that_is_dropped_leaves_nothing
                a_commit_behind_our_back_is_not_recorded_with_what_follows
            }
            records {
                a_claim_that_is_asked_again_gets_the_same_fence
                an_answer_that_is_recorded_again_is_applied_once
                a_release_after_the_answer_changes_nothing
                a_release_frees_the_key_with_a_higher_fence
                a_record_tells_its_age_and_what_is_left_of_it
                every_byte_of_an_answer_comes_back
                an_old_record_that_runs_again_is_running_to_others
                an_unrenewed_transaction_is_rolled_back
                what_is_only_observed_opens_no_transaction
                sweeping_goes_in_batches_and_spares_what_is_kept
            }
        }
    };
}

/// One test for each case about transactions of the user's own. The expression makes a fresh
/// [`UserTransactionFixture`] and may await.
#[macro_export]
macro_rules! in_transaction {
    ($make:expr) => {
        $crate::__transactional_tests! { ($make)
            in_transaction {
                the_first_one_runs_and_repeats_get_its_value
                a_rollback_frees_the_key
                a_refusal_undoes_its_own_writes_alone
                a_refusal_keeps_its_writes_where_configured
                an_error_leaves_the_transaction_usable
                another_meaning_is_refused
                two_keys_fit_into_one_transaction
                a_second_transaction_meanwhile_gets_in_flight
                what_is_past_its_retention_runs_again
            }
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __transactional_tests {
    (($make:expr) $($theme:ident { $($case:ident)* })*) => {
        $(mod $theme {
            #[allow(unused_imports, reason = "the expression may name what is beside the macro")]
            use super::*;

            $(#[test]
            fn $case() {
                $crate::transactional::run(async {
                    let fixture = ::std::sync::Arc::new($make);
                    $crate::transactional::$theme::$case(&fixture).await;
                });
            })*
        })*
    };
}
