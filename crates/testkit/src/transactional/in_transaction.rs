//! Operations inside a transaction that the caller has opened.
#![allow(missing_docs, reason = "the name of a case is its sentence")]

use std::{sync::Arc, time::Duration};

use semel::{
    OperationError, Outcome,
    core::{Caller, Key, Scope},
    transactional::InTransaction,
};
use tokio::time::Instant;

use super::{
    UserTransactionFixture,
    process::{EVENT_TIMEOUT, Runs, eventually},
};

fn call(key: &str) -> InTransaction {
    let (scope, caller) = (Scope::new("orders").unwrap(), Caller::new("shop-3").unwrap());
    InTransaction::new(scope, caller, Key::new(key).unwrap())
}

/// An operation that writes a row with its number and gives that.
async fn order<F: UserTransactionFixture>(
    call: InTransaction,
    user_transaction: &mut F::UserTransaction<'_>,
    runs: &Runs,
) -> Outcome<u32> {
    let operation = async |user_transaction: &mut F::UserTransaction<'_>| {
        let run = runs.next();
        F::write(user_transaction, &format!("run {run}")).await;
        Ok(run)
    };
    call.run(user_transaction, operation).await.unwrap()
}

pub async fn the_first_one_runs_and_repeats_get_its_value<F: UserTransactionFixture>(
    fixture: &Arc<F>,
) {
    let runs = Runs::default();
    let first = async |user_transaction: &mut F::UserTransaction<'_>| {
        assert!(matches!(order::<F>(call("k"), user_transaction, &runs).await, Outcome::Ran(1)));
        // Also before the commit.
        assert!(matches!(
            order::<F>(call("k"), user_transaction, &runs).await,
            Outcome::Replayed(1)
        ));
    };
    fixture.transaction(true, first).await;
    for _ in 0..2 {
        let again = async |user_transaction: &mut F::UserTransaction<'_>| {
            assert!(matches!(
                order::<F>(call("k"), user_transaction, &runs).await,
                Outcome::Replayed(1)
            ));
        };
        fixture.transaction(true, again).await;
    }
    assert_eq!(runs.count(), 1);
    assert_eq!(fixture.rows().await, ["run 1"]);
}

pub async fn a_rollback_frees_the_key<F: UserTransactionFixture>(fixture: &Arc<F>) {
    let runs = Runs::default();
    for (number, commit) in [(1, false), (2, false), (3, true)] {
        let script = async |user_transaction: &mut F::UserTransaction<'_>| {
            let outcome = order::<F>(call("k"), user_transaction, &runs).await;
            assert!(matches!(outcome, Outcome::Ran(run) if run == number), "{outcome:?}");
        };
        fixture.transaction(commit, script).await;
    }
    assert_eq!(fixture.rows().await, ["run 3"]);
}

/// A refusal between writes of the caller, once and again.
async fn refused<F: UserTransactionFixture>(fixture: &Arc<F>, keep: bool, rows: &[&str]) {
    for replayed in [false, true] {
        let script = async |user_transaction: &mut F::UserTransaction<'_>| {
            F::write(user_transaction, &format!("before, {replayed}")).await;
            let operation_call = if keep { call("k").keep_refused_writes() } else { call("k") };
            let operation = async |user_transaction: &mut F::UserTransaction<'_>| {
                F::write(user_transaction, "inside").await;
                Err::<(), _>(OperationError::refused("declined"))
            };
            let outcome = operation_call.run(user_transaction, operation).await.unwrap();
            let Outcome::Refused(refusal) = outcome else { panic!("{outcome:?}") };
            assert_eq!(refusal.read::<String>().unwrap(), "declined");
            assert_eq!(refusal.is_replayed(), replayed);
            F::write(user_transaction, &format!("behind, {replayed}")).await;
        };
        fixture.transaction(true, script).await;
    }
    assert_eq!(fixture.rows().await, rows);
}

pub async fn a_refusal_undoes_its_own_writes_alone<F: UserTransactionFixture>(fixture: &Arc<F>) {
    let rows = ["before, false", "before, true", "behind, false", "behind, true"];
    refused(fixture, false, &rows).await;
}

pub async fn a_refusal_keeps_its_writes_where_configured<F: UserTransactionFixture>(
    fixture: &Arc<F>,
) {
    let rows = ["before, false", "before, true", "behind, false", "behind, true", "inside"];
    refused(fixture, true, &rows).await;
}

pub async fn an_error_leaves_the_transaction_usable<F: UserTransactionFixture>(fixture: &Arc<F>) {
    let runs = Runs::default();
    let script = async |user_transaction: &mut F::UserTransaction<'_>| {
        F::write(user_transaction, "before").await;
        let operation = async |user_transaction: &mut F::UserTransaction<'_>| {
            runs.next();
            F::write(user_transaction, "inside").await;
            Err::<u32, _>(F::fail(user_transaction).await)
        };
        let outcome = call("k").run(user_transaction, operation).await.unwrap();
        assert!(matches!(outcome, Outcome::Retry(_)), "{outcome:?}");
        F::write(user_transaction, "behind").await;
        // The key is free, here and now.
        assert!(matches!(order::<F>(call("k"), user_transaction, &runs).await, Outcome::Ran(2)));
    };
    fixture.transaction(true, script).await;
    assert_eq!(fixture.rows().await, ["before", "behind", "run 2"]);
}

pub async fn another_meaning_is_refused<F: UserTransactionFixture>(fixture: &Arc<F>) {
    let runs = Runs::default();
    for meaning in [1, 2] {
        let script = async |user_transaction: &mut F::UserTransaction<'_>| {
            let outcome =
                order::<F>(call("k").fingerprint(&meaning), user_transaction, &runs).await;
            match meaning {
                1 => assert!(matches!(outcome, Outcome::Ran(1)), "{outcome:?}"),
                _ => assert!(matches!(outcome, Outcome::KeyReused), "{outcome:?}"),
            }
        };
        fixture.transaction(true, script).await;
    }
    assert_eq!(fixture.rows().await, ["run 1"]);
}

pub async fn two_keys_fit_into_one_transaction<F: UserTransactionFixture>(fixture: &Arc<F>) {
    let runs = Runs::default();
    for _ in 0..2 {
        let script = async |user_transaction: &mut F::UserTransaction<'_>| {
            for (key, number) in [("k", 1), ("l", 2)] {
                let outcome = order::<F>(call(key), user_transaction, &runs).await;
                assert_eq!(outcome.into_value(), Some(number));
            }
        };
        fixture.transaction(true, script).await;
    }
    assert_eq!((runs.count(), fixture.rows().await.len()), (2, 2));
}

pub async fn a_second_transaction_meanwhile_gets_in_flight<F: UserTransactionFixture>(
    fixture: &Arc<F>,
) {
    let runs = Runs::default();
    let first = async |user_transaction: &mut F::UserTransaction<'_>| {
        assert!(matches!(order::<F>(call("k"), user_transaction, &runs).await, Outcome::Ran(1)));
        let second = async |user_transaction: &mut F::UserTransaction<'_>| {
            let begun = Instant::now();
            let operation = call("k").wait(Duration::from_millis(50));
            let outcome = order::<F>(operation, user_transaction, &runs).await;
            assert!(matches!(outcome, Outcome::InProgress), "{outcome:?}");
            assert!(begun.elapsed() < EVENT_TIMEOUT);
        };
        fixture.transaction(false, second).await;
    };
    fixture.transaction(true, first).await;
    let third = async |user_transaction: &mut F::UserTransaction<'_>| {
        assert!(matches!(
            order::<F>(call("k"), user_transaction, &runs).await,
            Outcome::Replayed(1)
        ));
    };
    fixture.transaction(false, third).await;
    assert_eq!(fixture.rows().await, ["run 1"]);
}

pub async fn what_is_past_its_retention_runs_again<F: UserTransactionFixture>(fixture: &Arc<F>) {
    let runs = Runs::default();
    eventually("it runs again", async || {
        let script = async |user_transaction: &mut F::UserTransaction<'_>| {
            let operation = call("k").retention(Duration::from_millis(100));
            order::<F>(operation, user_transaction, &runs).await;
        };
        fixture.transaction(true, script).await;
        runs.count() == 2
    })
    .await;
    assert_eq!(fixture.rows().await, ["run 1", "run 2"]);
}
