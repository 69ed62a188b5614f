//! For each key the operation runs once, and every repeat gets what it gave.
#![allow(missing_docs, reason = "the name of a case is its sentence")]

use std::{sync::Arc, time::Duration};

use semel::{
    OperationError, Outcome,
    core::{Caller, Key},
};
use tokio::{sync::oneshot, time::sleep};

use super::{
    TestProcess, TransactionalFixture,
    process::{EVENT_TIMEOUT, Runs, eventually},
};

/// Calls an operation that writes its number, and gives it back as text.
async fn order<F: TransactionalFixture>(
    process: &TestProcess<F>,
    key: &str,
    runs: &Runs,
) -> Outcome<String> {
    let (store, runs) = (process.store.clone(), runs.clone());
    let run = process.once(key).fingerprint(key).run(move |lease| async move {
        let text = format!("order {}", runs.next());
        let mut transaction = store.transaction(&lease).await?;
        F::write(&mut transaction, &text).await;
        Ok(text)
    });
    run.await.unwrap()
}

#[track_caller]
fn ran(outcome: Outcome<String>) -> String {
    let Outcome::Ran(value) = outcome else { panic!("it did not run: {outcome:?}") };
    value
}

#[track_caller]
fn replayed(outcome: Outcome<String>) -> String {
    let Outcome::Replayed(value) = outcome else { panic!("it is not a replay: {outcome:?}") };
    value
}

pub async fn the_first_call_runs_and_repeats_get_its_value<F: TransactionalFixture>(
    fixture: &Arc<F>,
) {
    let (one, other, runs) =
        (TestProcess::start(fixture).await, TestProcess::start(fixture).await, Runs::default());
    assert_eq!(ran(order(&one, "k", &runs).await), "order 1");
    for process in [&one, &other, &one, &other] {
        assert_eq!(replayed(order(process, "k", &runs).await), "order 1");
    }
    assert_eq!(ran(order(&other, "l", &runs).await), "order 2");
    assert_eq!(replayed(order(&one, "l", &runs).await), "order 2");
    assert_eq!(runs.count(), 2);
    assert_eq!(fixture.rows(&one.store).await, ["order 1", "order 2"]);
}

pub async fn a_value_outlives_its_process<F: TransactionalFixture>(fixture: &Arc<F>) {
    let runs = Runs::default();
    let first = TestProcess::start(fixture).await;
    assert_eq!(ran(order(&first, "k", &runs).await), "order 1");
    drop(first);
    let next = TestProcess::start(fixture).await;
    assert_eq!(replayed(order(&next, "k", &runs).await), "order 1");
    assert_eq!((runs.count(), fixture.rows(&next.store).await.len()), (1, 1));
}

pub async fn fifty_at_once_in_three_processes_run_once<F: TransactionalFixture>(fixture: &Arc<F>) {
    let runs = Runs::default();
    let mut processes = Vec::new();
    for _ in 0..3 {
        processes.push(TestProcess::start(fixture).await);
    }
    for round in 1..=3 {
        let calls: Vec<_> = (0..50)
            .map(|call| {
                let (process, runs) = (processes[call % 3].clone(), runs.clone());
                tokio::spawn(async move { order(&process, &format!("k-{round}"), &runs).await })
            })
            .collect();
        let mut first = 0;
        for call in calls {
            let outcome = call.await.unwrap();
            first += u32::from(matches!(outcome, Outcome::Ran(_)));
            let value = outcome.value().unwrap_or_else(|| panic!("no value: {outcome:?}"));
            assert_eq!(*value, format!("order {round}"));
        }
        assert_eq!((first, runs.count()), (1, round));
    }
    assert_eq!(fixture.rows(&processes[0].store).await, ["order 1", "order 2", "order 3"]);
}

pub async fn another_meaning_is_refused_in_flight_and_afterwards<F: TransactionalFixture>(
    fixture: &Arc<F>,
) {
    let (one, other) = (TestProcess::start(fixture).await, TestProcess::start(fixture).await);
    let (began, begun) = oneshot::channel();
    let (go, going) = oneshot::channel::<()>();
    let run = one.once("k").fingerprint(&1).run(|_| async {
        began.send(()).unwrap();
        going.await?;
        Ok(())
    });
    let running = tokio::spawn(run);
    begun.await.unwrap();
    let impostor = |process: &TestProcess<F>| {
        process
            .once("k")
            .fingerprint(&2)
            .run(|_| async { Err::<(), _>(OperationError::refused("it ran")) })
    };
    let met = impostor(&one).await.unwrap();
    assert!(matches!(met, Outcome::KeyReused), "{met:?}");
    go.send(()).unwrap();
    assert!(matches!(running.await.unwrap(), Ok(Outcome::Ran(()))));
    for process in [&one, &other] {
        let met = impostor(process).await.unwrap();
        assert!(matches!(met, Outcome::KeyReused), "{met:?}");
    }
}

pub async fn callers_and_scopes_do_not_meet<F: TransactionalFixture>(fixture: &Arc<F>) {
    let process = TestProcess::start(fixture).await;
    for (scope, caller, key) in
        [("a", "b", "c"), ("a", "b", "C"), ("a", "bc", "c"), ("ab", "b", "c"), ("a", "c", "b")]
    {
        let names = (Caller::new(caller).unwrap(), Key::new(key).unwrap());
        let run = process.semel.once(scope, names.0, names.1).run(|_| async { Ok(()) });
        assert!(matches!(run.await, Ok(Outcome::Ran(()))), "{scope}/{caller}/{key}");
    }
}

pub async fn those_who_wait_hold_no_connection<F: TransactionalFixture>(fixture: &Arc<F>) {
    let (process, runs) = (TestProcess::start(fixture).await, Runs::default());
    let (go, going) = oneshot::channel::<()>();
    let (store, counted) = (process.store.clone(), runs.clone());
    let run = process.once("k").run(move |lease| async move {
        let mut transaction = store.transaction(&lease).await?;
        F::write(&mut transaction, "slow").await;
        counted.next();
        going.await?;
        Ok(7)
    });
    let running = tokio::spawn(run);
    eventually("it runs", async || runs.count() == 1).await;
    let waiting: Vec<_> = (0..200)
        .map(|_| {
            let repeat = process
                .once("k")
                .run(|_| async { Err::<i32, _>(OperationError::refused("again")) });
            tokio::spawn(repeat)
        })
        .collect();
    // All of them wait by then, wherever that is.
    sleep(Duration::from_millis(200)).await;
    assert!(waiting.iter().all(|waiting| !waiting.is_finished()));
    let asked = tokio::time::timeout(EVENT_TIMEOUT, fixture.rows(&process.store));
    assert_eq!(asked.await.expect("an unrelated query is answered"), [""; 0]);
    go.send(()).unwrap();
    assert!(matches!(running.await.unwrap(), Ok(Outcome::Ran(7))));
    for waiting in waiting {
        assert!(matches!(waiting.await.unwrap(), Ok(Outcome::Replayed(7))));
    }
    assert_eq!(fixture.rows(&process.store).await, ["slow"]);
}

pub async fn what_is_past_its_retention_runs_again<F: TransactionalFixture>(fixture: &Arc<F>) {
    let (process, runs) = (TestProcess::start(fixture).await, Runs::default());
    let call = async |key: &str, retention| {
        let (store, counted) = (process.store.clone(), runs.clone());
        let run = process.once(key).retention(retention).run(move |lease| async move {
            let mut transaction = store.transaction(&lease).await?;
            F::write(&mut transaction, &format!("run {}", counted.next())).await;
            Ok(())
        });
        run.await.unwrap()
    };
    let (short, long) = (Duration::from_millis(300), Duration::from_secs(3600));
    assert!(matches!(call("long", long).await, Outcome::Ran(())));
    assert!(matches!(call("short", short).await, Outcome::Ran(())));
    eventually("it runs again", async || {
        call("short", short).await;
        runs.count() == 3
    })
    .await;
    assert!(matches!(call("long", long).await, Outcome::Replayed(())));
    assert_eq!(fixture.rows(&process.store).await, ["run 1", "run 2", "run 3"]);
}
