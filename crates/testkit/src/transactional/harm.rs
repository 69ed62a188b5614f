//! Clients that leave, processes that die, and handlers that commit what is not theirs to commit.
#![allow(missing_docs, reason = "the name of a case is its sentence")]

use std::{future::pending, sync::Arc, time::Duration};

use semel::{
    Outcome,
    transactional::{BeginResult, Database as _},
};
use tokio::{runtime, sync::oneshot, time::timeout};

use super::{
    TestProcess, TransactionalFixture,
    process::{Runs, eventually},
};
use crate::conform::id;

pub async fn an_operation_whose_client_left_still_commits<F: TransactionalFixture>(
    fixture: &Arc<F>,
) {
    let (process, runs) = (TestProcess::start(fixture).await, Runs::default());
    let (go, going) = oneshot::channel::<()>();
    let (began, begun) = oneshot::channel();
    let (store, counted) = (process.store.clone(), runs.clone());
    let run = process.once("k").run(move |lease| async move {
        let mut transaction = store.transaction(&lease).await?;
        F::write(&mut transaction, "kept").await;
        began.send(()).unwrap();
        going.await?;
        Ok(counted.next())
    });
    let client = tokio::spawn(run);
    begun.await.unwrap();
    client.abort();
    assert!(client.await.unwrap_err().is_cancelled());
    go.send(()).unwrap();
    let rows = async || fixture.rows(&process.store).await == ["kept"];
    eventually("it commits all the same", rows).await;
    let repeat = process.once("k").run(|_| async { Ok(0) });
    assert!(matches!(repeat.await, Ok(Outcome::Replayed(1))));
    assert_eq!(runs.count(), 1);
}

pub async fn an_operation_whose_process_died_leaves_nothing<F: TransactionalFixture>(
    fixture: &Arc<F>,
) {
    let doomed = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let doomed = doomed.unwrap();
    let (began, begun) = oneshot::channel();
    let theirs = Arc::clone(fixture);
    doomed.spawn(async move {
        let process = TestProcess::start(&theirs).await;
        let store = process.store.clone();
        let run = process.once("k").run(move |lease| async move {
            let mut transaction = store.transaction(&lease).await?;
            F::write(&mut transaction, "lost").await;
            began.send(()).unwrap();
            pending::<()>().await;
            Ok(1)
        });
        run.await
    });
    begun.await.unwrap();
    doomed.shutdown_background();

    let next = TestProcess::start(fixture).await;
    eventually("the key is free", async || {
        let store = next.store.clone();
        let once = next.once("k").wait(Duration::ZERO);
        let run = once.run(move |lease| async move {
            F::write(&mut *store.transaction(&lease).await?, "next").await;
            Ok(2)
        });
        matches!(run.await, Ok(Outcome::Ran(2)))
    })
    .await;
    assert_eq!(fixture.rows(&next.store).await, ["next"]);
}

pub async fn a_transaction_that_is_dropped_leaves_nothing<F: TransactionalFixture>(
    fixture: &Arc<F>,
) {
    let (one, other) = (fixture.store().await, fixture.store().await);
    let id = id("orders", "shop-3", "k");
    for _ in 0..10 {
        let BeginResult::Free { mut transaction, .. } = one.database().begin(&id).await.unwrap()
        else {
            panic!("another owner has it");
        };
        F::write(&mut transaction, "dropped").await;
        drop(transaction);
        eventually("the key is free elsewhere", async || {
            matches!(other.database().begin(&id).await, Ok(BeginResult::Free { .. }))
        })
        .await;
        eventually("the key is free here", async || {
            let begun = one.database().begin(&id).await;
            if let Ok(BeginResult::Free { transaction, .. }) = begun {
                one.database().roll_back(transaction).await;
                return true;
            }
            false
        })
        .await;
    }
    assert_eq!(fixture.rows(&one).await, [""; 0]);
}

pub async fn a_commit_behind_our_back_is_not_recorded_with_what_follows<F: TransactionalFixture>(
    fixture: &Arc<F>,
) {
    let (process, runs) = (TestProcess::start(fixture).await, Runs::default());
    let (store, counted) = (process.store.clone(), runs.clone());
    let run = process.once("k").run(move |lease| async move {
        let mut transaction = store.transaction(&lease).await?;
        F::commit_behind(&mut transaction).await;
        F::write(&mut transaction, "late").await;
        Ok(counted.next())
    });
    let outcome = timeout(super::process::EVENT_TIMEOUT, run).await.expect("an end");
    assert!(!matches!(outcome, Ok(Outcome::Ran(_) | Outcome::Replayed(_))), "{outcome:?}");
    assert_eq!(fixture.rows(&process.store).await, [""; 0]);
    eventually("the key is free", async || {
        let counted = runs.clone();
        let run = process.once("k").run(|_| async move { Ok(counted.next()) });
        matches!(run.await, Ok(Outcome::Ran(2)))
    })
    .await;
}
