//! Ten ways in which operations of other systems are stranded or run twice.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use semel_core::Fenced;
use semel_steps::{
    Operation, OperationOutcome, OperationStore, StepError,
    store::{
        Direction, NewOperation, OperationEnd, OperationRow, OperationState, OperatorStep,
        OwnedOperation, StepPart, StepRow, StepState, StepWrite, TakeRequest,
    },
};
use semel_testkit::servers::Postgres;
use tokio::{
    sync::{Notify, Semaphore},
    time::Instant,
};

use crate::{
    databases::{PgServer, TestDatabase},
    harness::{Callee, CrashPlan, Process, TEST_TIMEOUT, TestStore, World},
    on_both_databases,
};

/// The lease of the tests that let one end by itself.
const LEASE: Duration = Duration::from_secs(2);

fn process<D: TestDatabase>(database: &D, callee: &Callee) -> Process<D> {
    Process::new(database, World::new(CrashPlan::never(), callee))
}

/// Waits until this holds.
fn eventually(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < TEST_TIMEOUT, "not within the timeout: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// An operation of these steps, one after the other, each with an undo.
async fn in_sequence<S: OperationStore>(
    op: Operation<S>,
    steps: &'static [&'static str],
    world: World,
) -> Result<usize, StepError> {
    for name in steps {
        let (world, undo) = (world.clone(), world.clone());
        op.step(name, |step| async move { world.call(step, name).await })
            .undo(move |context, _| async move {
                undo.call(context, &format!("undo {name}")).await.map(drop)
            })
            .await?;
    }
    Ok(steps.len())
}

/// Starts an operation under `name` and crashes at this boundary.
fn crash_at<D: TestDatabase>(
    database: &D,
    callee: &Callee,
    steps: &'static [&'static str],
    boundary: usize,
    lease: Duration,
) {
    let (plan, fired) = CrashPlan::at(boundary);
    let first = Process::with_lease(database, World::new(plan, callee), lease);
    let world = first.world.clone();
    let handle = first
        .operations
        .operation("crashed", 1, move |op, (): ()| in_sequence(op, steps, world.clone()));
    first.runtime.spawn(async move { handle.run("k", &()).await.map(drop) });
    fired.recv_timeout(TEST_TIMEOUT).expect("the boundary is reached");
    first.crash();
}

/// 1. The database restarts while operations are recovered.
#[test]
fn a_database_that_restarts_during_recovery_strands_no_operation() {
    let mut server = Postgres::start(&[]);
    let database = PgServer::new(&server);
    let callee = Callee::default();
    crash_at(&database, &callee, &["a", "b"], 4, LEASE);
    // The second process has taken the operation over and is within step `b`.
    let (entered_tx, entered) = mpsc::channel();
    let gate = Arc::new(Semaphore::new(0));
    let second = Process::with_lease(&database, World::new(CrashPlan::never(), &callee), LEASE);
    let (world, open) = (second.world.clone(), Arc::clone(&gate));
    let handle = second.operations.operation("crashed", 1, move |op, (): ()| {
        let (world, gate, entered_tx) = (world.clone(), Arc::clone(&open), entered_tx.clone());
        async move {
            for name in ["a", "b"] {
                let (world, gate, entered_tx) = (&world, &gate, &entered_tx);
                op.step(name, |step| async move {
                    let _ = entered_tx.send(());
                    gate.acquire().await.unwrap().forget();
                    world.call(step, name).await
                })
                .await?;
            }
            Ok(2)
        }
    });
    second.recover();
    entered.recv_timeout(TEST_TIMEOUT).expect("the operation is taken over");
    server.stop();
    gate.add_permits(2);
    server.start_again();
    // A call may fail while the database is away; the operation goes on.
    let ended = second.runtime.block_on(handle.run("k", &()));
    assert!(ended.is_err() || ended.unwrap() == OperationOutcome::Done(2));
    eventually("done", || second.row("crashed").state == OperationState::Done);
    assert_eq!((callee.count("a"), callee.count("b")), (1, 1));
    second.crash();
}

/// 2. Several processes look at the same time, and each has an outdated list of candidates.
fn lapsed_operations_are_taken_once_each<D: TestDatabase>(database: &D) {
    const OPERATIONS: usize = 40;
    let starter = process(database, &Callee::default());
    let store = Arc::new(database.store());
    let known = [("stale".to_owned(), 1)];
    starter.runtime.block_on(async {
        for number in 0..OPERATIONS {
            let (key, lease) = (number.to_string(), Duration::ZERO);
            let new =
                NewOperation { name: "stale", version: 1, key: &key, input: "1", owner: 7, lease };
            store.start(&new).await.unwrap();
        }
    });
    thread::sleep(Duration::from_millis(5));
    let taken: Vec<OperationRow> = thread::scope(|scope| {
        let takers: Vec<_> = (0..4_i64)
            .map(|owner| {
                let known = &known;
                scope.spawn(move || {
                    let taker = process(database, &Callee::default());
                    let store = database.store();
                    let lease = Duration::from_secs(600);
                    let mut taken = Vec::new();
                    loop {
                        let request = TakeRequest { known, owner, lease, limit: 3 };
                        let rows = taker.runtime.block_on(store.take_lapsed(&request)).unwrap();
                        if rows.is_empty() {
                            return taken;
                        }
                        taken.extend(rows);
                    }
                })
            })
            .collect();
        takers.into_iter().flat_map(|taker| taker.join().unwrap()).collect()
    });
    let mut ids: Vec<_> = taken.iter().map(|row| row.id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!((ids.len(), taken.len()), (OPERATIONS, OPERATIONS), "each once");
    assert!(taken.iter().all(|row| row.attempt == 1));
}

/// 3. A process that drains gives its operations away and takes none.
fn a_draining_owner_hands_over_at_the_next_boundary_and_takes_nothing<D: TestDatabase>(
    database: &D,
) {
    let callee = Callee::default();
    let (entered_tx, entered) = mpsc::channel();
    let gate = Arc::new(Notify::new());
    let first = process(database, &callee);
    let (world, opened) = (first.world.clone(), Arc::clone(&gate));
    let handle = first.operations.operation("drained", 1, move |op, (): ()| {
        let (world, gate, entered_tx) = (world.clone(), Arc::clone(&opened), entered_tx.clone());
        async move {
            op.step("a", |step| async move {
                let _ = entered_tx.send(());
                gate.notified().await;
                world.call(step, "a").await
            })
            .await?;
            op.step("b", |_| async move { Ok("never here".to_owned()) }).await
        }
    });
    let running = handle.clone();
    first.runtime.spawn(async move { running.run("k", &()).await.map(drop) });
    entered.recv_timeout(TEST_TIMEOUT).expect("step `a` runs");
    let draining = {
        let operations = first.operations.clone();
        first.runtime.spawn(async move { operations.drain(TEST_TIMEOUT).await })
    };
    gate.notify_one();
    assert!(first.runtime.block_on(draining).unwrap(), "nothing runs here any more");
    let row = first.row("drained");
    assert_eq!((row.state, row.attempt, row.owner), (OperationState::Running, -1, 0));
    assert_eq!(first.steps(row.id).len(), 1, "what was running was recorded");
    assert!(first.runtime.block_on(handle.run("other", &())).is_err(), "it starts nothing");

    // The lease was given up: another process need not wait for it.
    let second = process(database, &callee);
    let world = second.world.clone();
    let handle = second.operations.operation("drained", 1, move |op, (): ()| {
        let world = world.clone();
        async move { in_sequence(op, &["a", "b"], world).await.map(|count| count.to_string()) }
    });
    let begun = Instant::now();
    assert_eq!(second.run(&handle, "k", &()), OperationOutcome::Done("2".to_owned()));
    assert!(begun.elapsed() < Duration::from_secs(20), "the lease is 30 s");
    assert_eq!((callee.count("a"), callee.count("b")), (1, 1));
    let counts = first.operations.counts();
    assert_eq!((counts.taken, counts.running), (0, 0));
}

/// 4. The version of the code changed.
fn an_operation_waits_for_a_process_that_knows_its_version<D: TestDatabase>(database: &D) {
    let callee = Callee::default();
    crash_at(database, &callee, &["a", "b"], 6, Duration::from_secs(30));
    database.lapse("crashed");
    let newer = process(database, &callee);
    let world = newer.world.clone();
    let handle = newer
        .operations
        .operation("crashed", 2, move |op, (): ()| in_sequence(op, &["z"], world.clone()));
    // The first look is over when an operation that was started after it is done.
    assert_eq!(newer.run(&handle, "other", &()), OperationOutcome::Done(1));
    let store = newer.operations.store();
    let request =
        TakeRequest { known: &[("crashed".to_owned(), 2)], owner: 1, lease: LEASE, limit: 10 };
    assert_eq!(newer.runtime.block_on(store.take_lapsed(&request)).unwrap(), []);
    let filter = semel_steps::store::OperationFilter { limit: 10, ..Default::default() };
    let rows = newer.runtime.block_on(store.list(&filter)).unwrap();
    let waiting = rows.iter().find(|row| row.key == "k").unwrap();
    assert_eq!((waiting.state, waiting.version), (OperationState::Running, 1));
    assert!(waiting.lease_ms < 0, "it shows as lapsed: {waiting:?}");
    // Both versions in one process.
    let world = newer.world.clone();
    newer
        .operations
        .operation("crashed", 1, move |op, (): ()| in_sequence(op, &["a", "b"], world.clone()));
    let begun = Instant::now();
    eventually("version 1 is done", || {
        newer.runtime.block_on(store.read(waiting.id)).unwrap().unwrap().state
            == OperationState::Done
    });
    assert!(begun.elapsed() < LEASE * 2, "at the next look");
    assert_eq!((callee.count("a"), callee.count("b"), callee.count("z")), (1, 1, 1));
}

/// 4b. The code changed, the version did not.
fn changed_code_under_the_same_version_parks<D: TestDatabase>(database: &D) {
    let callee = Callee::default();
    crash_at(database, &callee, &["a", "b"], 6, Duration::from_secs(30));
    database.lapse("crashed");
    let second = process(database, &callee);
    let world = second.world.clone();
    let handle = second
        .operations
        .operation("crashed", 1, move |op, (): ()| in_sequence(op, &["b"], world.clone()));
    let OperationOutcome::Parked(why) = second.run(&handle, "k", &()) else { panic!("not parked") };
    assert!(why.contains("`a` is recorded, and the code does not call it"), "{why}");
}

/// 5. A process is gone between two steps, when nothing runs and nothing waits.
fn an_operation_stuck_between_two_steps_resumes_within_two_leases<D: TestDatabase>(database: &D) {
    let callee = Callee::default();
    // After the row of `a` is durable, and before `b` begins.
    crash_at(database, &callee, &["a", "b"], 5, LEASE);
    let crashed_at = Instant::now();
    let second = Process::with_lease(database, World::new(CrashPlan::never(), &callee), LEASE);
    let world = second.world.clone();
    let handle = second
        .operations
        .operation("crashed", 1, move |op, (): ()| in_sequence(op, &["a", "b"], world.clone()));
    assert_eq!(second.run(&handle, "k", &()), OperationOutcome::Done(2));
    assert!(crashed_at.elapsed() < LEASE * 2, "{:?}", crashed_at.elapsed());
    assert_eq!((callee.count("a"), callee.count("b")), (1, 1));
}

/// 6. A process is paused within a step, and wakes up when its operation was undone.
fn a_zombie_that_wakes_up_after_its_operation_was_undone_writes_nothing<D: TestDatabase>(
    database: &D,
) {
    let callee = Callee::default();
    let (entered_tx, entered) = mpsc::channel();
    let gate = Arc::new(Notify::new());
    let zombie = process(database, &callee);
    let (world, opened) = (zombie.world.clone(), Arc::clone(&gate));
    let pausing = zombie.operations.operation("haunted", 1, move |op, (): ()| {
        let (world, gate, entered_tx) = (world.clone(), Arc::clone(&opened), entered_tx.clone());
        async move {
            let (undo, pause) = (world.clone(), world.clone());
            op.step("charge", |step| async move { world.call(step, "charge").await })
                .undo(move |context, _| async move { undo.call(context, "refund").await.map(drop) })
                .await?;
            op.step("ship", |step| async move {
                let _ = entered_tx.send(());
                gate.notified().await;
                pause.call(step, "ship").await
            })
            .await
        }
    });
    zombie.runtime.spawn(async move { pausing.run("k", &()).await.map(drop) });
    entered.recv_timeout(TEST_TIMEOUT).expect("`ship` runs");
    // From here on its lease counts as ended, as if it had been suspended.
    let former = zombie.row("haunted");
    let second = process(database, &callee);
    let world = second.world.clone();
    let refusing = second.operations.operation("haunted", 1, move |op, (): ()| {
        let (world, undo) = (world.clone(), world.clone());
        async move {
            op.step("charge", |step| async move { world.call(step, "charge").await })
                .undo(move |context, _| async move { undo.call(context, "refund").await.map(drop) })
                .await?;
            op.step("ship", |_| async move { Err::<String, _>(StepError::refused("out of stock")) })
                .await
        }
    });
    database.lapse("haunted");
    let outcome = second.run(&refusing, "k", &());
    assert!(matches!(outcome, OperationOutcome::Undone(_)), "{outcome:?}");
    let rows = second.steps(former.id);
    gate.notify_one();
    eventually("the zombie notices", || zombie.operations.counts().lost == 1);
    assert_eq!(second.steps(former.id), rows);
    assert_eq!(second.row("haunted").state, OperationState::Undone);
    // And every verb under its fence is refused.
    let owned = OwnedOperation { id: former.id, fence: former.fence };
    let own = StepRow {
        name: "ship".to_owned(),
        part: StepPart::Do,
        state: StepState::Done,
        result: None,
        position: 9,
    };
    let write = StepWrite { own, noted: Vec::new() };
    let store = second.operations.store();
    second.runtime.block_on(async {
        assert_eq!(store.step(owned, &write).await.unwrap(), Fenced::Lost);
        let transaction = store.begin().await.unwrap();
        assert_eq!(store.commit(transaction, owned, &write).await.unwrap(), Fenced::Lost);
        assert_eq!(store.turn(owned, "1").await.unwrap(), Fenced::Lost);
        let end = OperationEnd::Done("1".to_owned());
        assert_eq!(store.finish(owned, &end).await.unwrap(), Fenced::Lost);
        assert!(store.renew(&[owned], LEASE).await.unwrap().is_empty());
    });
    assert_eq!((callee.count("charge"), callee.count("refund")), (1, 1));
}

/// 7. A process is gone between two undos.
fn a_crash_between_two_undos_undoes_the_rest_once<D: TestDatabase>(database: &D) {
    let callee = Callee::default();
    let refusing = |op: Operation<TestStore<D>>, world: World| async move {
        in_sequence(op, &["a", "b"], world).await?;
        Err::<usize, _>(StepError::refused("no"))
    };
    // start, a, b: 2 + 2 * 4; turn: 2; undo of `b`: 4. The next boundary is within that of `a`.
    let (plan, fired) = CrashPlan::at(16);
    let first = Process::new(database, World::new(plan, &callee));
    let world = first.world.clone();
    let handle =
        first.operations.operation("between", 1, move |op, (): ()| refusing(op, world.clone()));
    first.runtime.spawn(async move { handle.run("k", &()).await.map(drop) });
    fired.recv_timeout(TEST_TIMEOUT).expect("the first undo is done");
    assert_eq!((callee.count("undo a"), callee.count("undo b")), (0, 1));
    first.crash();
    database.lapse("between");
    let second = process(database, &callee);
    let world = second.world.clone();
    let handle =
        second.operations.operation("between", 1, move |op, (): ()| refusing(op, world.clone()));
    assert!(matches!(second.run(&handle, "k", &()), OperationOutcome::Undone(_)));
    for what in ["a", "b", "undo a", "undo b"] {
        assert_eq!(callee.count(what), 1, "{what}");
    }
}

/// 8. An operation is parked for a week, and then resumed.
fn an_operation_parked_for_a_week_resumes_where_it_was<D: TestDatabase>(database: &D) {
    let callee = Callee::default();
    let failures = Arc::new(AtomicUsize::new(0));
    let first = process(database, &callee);
    let register = |process: &Process<D>| {
        let (world, failures) = (process.world.clone(), Arc::clone(&failures));
        process.operations.operation("parked", 1, move |op, (): ()| {
            let (world, failures) = (world.clone(), Arc::clone(&failures));
            async move {
                let (first, second) = (world.clone(), world.clone());
                op.step("a", |step| async move { first.call(step, "a").await }).await?;
                op.step_once("b", |_| async move {
                    if failures.fetch_add(1, Ordering::Relaxed) == 0 {
                        return Err(StepError::unknown("the connection broke"));
                    }
                    second.call_unkeyed("b").await
                })
                .await
            }
        })
    };
    let handle = register(&first);
    let OperationOutcome::Parked(why) = first.run(&handle, "k", &()) else { panic!("not parked") };
    assert!(why.contains("`b` is unknown: the connection broke"), "{why}");
    first.crash();
    database.age("parked", Duration::from_secs(7 * 24 * 3600));
    let second = process(database, &callee);
    let handle = register(&second);
    assert!(matches!(second.run(&handle, "k", &()), OperationOutcome::Parked(_)), "it stays so");
    // Resumed as it is, it would run what may have happened: it parks again.
    second.operate("parked", &OperatorStep::Resume);
    let outcome = second.run(&handle, "k", &());
    assert!(matches!(outcome, OperationOutcome::Parked(_)), "{outcome:?}");
    assert_eq!(callee.count("b"), 0);
    let settle = OperatorStep::Settle { step: "b".to_owned(), result: None };
    second.operate("parked", &settle);
    second.operate("parked", &OperatorStep::Resume);
    assert_eq!(second.run(&handle, "k", &()), OperationOutcome::Done("b".to_owned()));
    assert_eq!((callee.count("a"), callee.count("b")), (1, 1));
}

/// 9. `select!` over steps: which one is faster must not decide anything.
fn select_over_steps_parks_and_can_be_undone<D: TestDatabase>(database: &D) {
    let callee = Callee::default();
    let only = process(database, &callee);
    let world = only.world.clone();
    let handle = only.operations.operation("raced", 1, move |op, (): ()| {
        let (fast, slow) = (world.clone(), world.clone());
        let (undo_fast, undo_slow) = (world.clone(), world.clone());
        async move {
            let fast =
                op.step("fast", |step| async move { fast.call(step, "fast").await }).undo_by_key(
                    |undo| async move { undo_fast.call(undo, "undo fast").await.map(drop) },
                );
            let slow = op
                .step("slow", |step| async move {
                    slow.call(step, "slow").await?;
                    std::future::pending().await
                })
                .undo_by_key(
                    |undo| async move { undo_slow.call(undo, "undo slow").await.map(drop) },
                );
            let won: String = tokio::select! {
                biased;
                slow = slow => slow?,
                fast = fast => fast?,
            };
            op.step("after", |step| async move { Ok(step.key().to_owned()) }).await?;
            Ok(won)
        }
    });
    let OperationOutcome::Parked(why) = only.run(&handle, "k", &()) else { panic!("not parked") };
    assert!(why.contains("the code dropped the step `slow` while it ran"), "{why}");
    let row = only.row("raced");
    let steps: Vec<_> =
        only.steps(row.id).into_iter().map(|step| (step.name, step.state)).collect();
    let noted = [("fast".to_owned(), StepState::Done), ("slow".to_owned(), StepState::Begun)];
    assert_eq!(steps, noted, "the dropped step is noted by the write of the other");
    only.operate("raced", &OperatorStep::Undo);
    let outcome = only.run(&handle, "k", &());
    assert!(matches!(outcome, OperationOutcome::Undone(_)), "{outcome:?}");
    for what in ["fast", "slow", "undo fast", "undo slow"] {
        assert_eq!(callee.count(what), 1, "{what}");
    }
}

/// 10. A name is used twice.
fn a_name_used_twice_parks_before_the_second_step_runs<D: TestDatabase>(database: &D) {
    let callee = Callee::default();
    let only = process(database, &callee);
    let world = only.world.clone();
    let handle = only
        .operations
        .operation("twice", 1, move |op, (): ()| in_sequence(op, &["a", "a"], world.clone()));
    let OperationOutcome::Parked(why) = only.run(&handle, "k", &()) else { panic!("not parked") };
    assert_eq!(why, "two steps have the name `a`");
    assert_eq!(callee.count("a"), 1);
    assert_eq!(only.row("twice").direction, Direction::Forward);
}

on_both_databases!(
    lapsed_operations_are_taken_once_each,
    a_draining_owner_hands_over_at_the_next_boundary_and_takes_nothing,
    an_operation_waits_for_a_process_that_knows_its_version,
    changed_code_under_the_same_version_parks,
    an_operation_stuck_between_two_steps_resumes_within_two_leases,
    a_zombie_that_wakes_up_after_its_operation_was_undone_writes_nothing,
    a_crash_between_two_undos_undoes_the_rest_once,
    an_operation_parked_for_a_week_resumes_where_it_was,
    select_over_steps_parks_and_can_be_undone,
    a_name_used_twice_parks_before_the_second_step_runs,
);
