//! How an operation ends decides about its writes and its record, and about both at once.
#![allow(missing_docs, reason = "the name of a case is its sentence")]

use std::{io, sync::Arc};

use semel::{OnceErrorKind, OperationError, Outcome, core::OnUnknown};
use tokio::sync::oneshot;

use super::{
    TestProcess, TransactionalFixture,
    process::{Open, Runs},
};

/// Calls an operation that writes a row with its number and ends like this.
async fn call<F: TransactionalFixture>(
    process: &TestProcess<F>,
    runs: &Runs,
    end: fn(&Open<F>) -> Result<u32, OperationError>,
) -> Outcome<u32> {
    let (store, runs) = (process.store.clone(), runs.clone());
    let run = process.once("k").run(move |lease| async move {
        let mut transaction = store.transaction(&lease).await?;
        F::write(&mut transaction, &format!("run {}", runs.next())).await;
        end(&transaction)
    });
    run.await.unwrap()
}

pub async fn a_value_and_its_writes_appear_together<F: TransactionalFixture>(fixture: &Arc<F>) {
    let (process, runs) = (TestProcess::start(fixture).await, Runs::default());
    let (go, going) = oneshot::channel::<()>();
    let (store, counted) = (process.store.clone(), runs.clone());
    let (wrote, written) = oneshot::channel();
    let run = process.once("k").run(move |lease| async move {
        let mut transaction = store.transaction(&lease).await?;
        F::write(&mut transaction, "one").await;
        F::write(&mut transaction, "two").await;
        drop(transaction);
        wrote.send(()).unwrap();
        going.await?;
        // Asked for again, it is the same transaction.
        F::write(&mut *store.transaction(&lease).await?, "three").await;
        Ok(counted.next())
    });
    let running = tokio::spawn(run);
    written.await.unwrap();
    assert_eq!(fixture.rows(&process.store).await, [""; 0]);
    go.send(()).unwrap();
    assert!(matches!(running.await.unwrap(), Ok(Outcome::Ran(1))));
    assert_eq!(fixture.rows(&process.store).await, ["one", "three", "two"]);
    let other = TestProcess::start(fixture).await;
    assert!(matches!(call(&other, &runs, |_| Ok(0)).await, Outcome::Replayed(1)));
}

/// A refusal, twice, and which rows it leaves.
async fn refused<F: TransactionalFixture>(
    fixture: &Arc<F>,
    end: fn(&Open<F>) -> Result<u32, OperationError>,
    rows: &[&str],
) {
    let runs = Runs::default();
    for replayed in [false, true, true] {
        let process = TestProcess::start(fixture).await;
        let outcome = call(&process, &runs, end).await;
        let Outcome::Refused(refusal) = outcome else { panic!("{outcome:?}") };
        assert_eq!(refusal.read::<String>().unwrap(), "declined");
        assert_eq!(refusal.is_replayed(), replayed);
        assert_eq!(fixture.rows(&process.store).await, rows);
    }
    assert_eq!(runs.count(), 1);
}

pub async fn a_refusal_is_recorded_and_its_writes_are_gone<F: TransactionalFixture>(
    fixture: &Arc<F>,
) {
    refused(fixture, |_| Err(OperationError::refused("declined")), &[]).await;
}

pub async fn a_refusal_keeps_its_writes_where_it_says_so<F: TransactionalFixture>(
    fixture: &Arc<F>,
) {
    let end = |transaction: &Open<F>| {
        transaction.keep_writes();
        Err(OperationError::refused("declined"))
    };
    refused(fixture, end, &["run 1"]).await;
}

pub async fn a_value_drops_its_writes_where_it_says_so<F: TransactionalFixture>(fixture: &Arc<F>) {
    let (process, runs) = (TestProcess::start(fixture).await, Runs::default());
    let end = |transaction: &Open<F>| {
        transaction.drop_writes();
        Ok(5)
    };
    assert!(matches!(call(&process, &runs, end).await, Outcome::Ran(5)));
    assert!(matches!(call(&process, &runs, end).await, Outcome::Replayed(5)));
    assert_eq!((runs.count(), fixture.rows(&process.store).await.len()), (1, 0));
}

/// An operation that ends like this has not happened: elsewhere and here the next call runs.
async fn undone<F: TransactionalFixture>(
    fixture: &Arc<F>,
    end: fn(&Open<F>) -> Result<u32, OperationError>,
    result: fn(&Outcome<u32>) -> bool,
) {
    let runs = Runs::default();
    let (one, other) = (TestProcess::start(fixture).await, TestProcess::start(fixture).await);
    for process in [&one, &one, &other] {
        let outcome = call(process, &runs, end).await;
        assert!(result(&outcome), "{outcome:?}");
        assert_eq!(fixture.rows(&one.store).await, [""; 0]);
    }
    assert_eq!(runs.count(), 3);
    assert!(matches!(call(&one, &runs, |_| Ok(4)).await, Outcome::Ran(4)));
    assert!(matches!(call(&other, &runs, |_| Ok(0)).await, Outcome::Replayed(4)));
    assert_eq!(fixture.rows(&one.store).await, ["run 4"]);
}

pub async fn a_retry_leaves_nothing_and_the_next_call_runs<F: TransactionalFixture>(
    fixture: &Arc<F>,
) {
    let result = |outcome: &Outcome<u32>| matches!(outcome, Outcome::Retry(_));
    undone(fixture, |_| Err(OperationError::retry("the bank is closed")), result).await;
}

pub async fn an_error_leaves_nothing_and_the_next_call_runs<F: TransactionalFixture>(
    fixture: &Arc<F>,
) {
    let end = |_: &Open<F>| Err(io::Error::other("untyped").into());
    undone(fixture, end, |outcome| matches!(outcome, Outcome::Unknown(_))).await;
}

pub async fn a_panic_leaves_nothing_and_the_next_call_runs<F: TransactionalFixture>(
    fixture: &Arc<F>,
) {
    let end = |_: &Open<F>| panic!("this panic is part of the test");
    undone(fixture, end, |outcome| matches!(outcome, Outcome::Unknown(_))).await;
}

pub async fn a_failure_that_is_final_leaves_no_writes<F: TransactionalFixture>(fixture: &Arc<F>) {
    let (process, runs) = (TestProcess::start(fixture).await, Runs::default());
    for _ in 0..2 {
        let (store, counted) = (process.store.clone(), runs.clone());
        let run = process.once("k").on_unknown(OnUnknown::Fail).run(move |lease| async move {
            let mut transaction = store.transaction(&lease).await?;
            F::write(&mut transaction, &format!("run {}", counted.next())).await;
            // That is for refusals: how far this one came is unknown.
            transaction.keep_writes();
            Err::<(), _>(io::Error::other("untyped").into())
        });
        assert_eq!(run.await.unwrap_err().kind(), OnceErrorKind::Failed);
    }
    assert_eq!((runs.count(), fixture.rows(&process.store).await.len()), (1, 0));
}
