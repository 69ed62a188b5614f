//! A crash at every boundary and inside every step and undo: all is done, or all is undone, and
//! each effect happens once.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use semel_steps::{
    Operation, OperationHandle, OperationOutcome, OperationStore, Step, StepError,
    store::{OperatorStep, StepPart, StepState},
};
use serde::{Deserialize, Serialize};
use tokio::{join, time::Instant};

use crate::{
    databases::TestDatabase,
    harness::{Callee, CrashPlan, Process, TEST_TIMEOUT, TestStore, World},
    on_both_databases,
};

/// What the operation of a case does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Cart {
    /// The last step refuses.
    is_refused: bool,
}

/// A checkout with every kind of step: a keyed call, two at the same time, one without a key, a
/// write to the database, and a last one that may refuse.
async fn checkout<D: TestDatabase>(
    op: Operation<TestStore<D>>,
    cart: Cart,
    case: String,
    world: World,
) -> Result<String, StepError> {
    let name = |what: &str| format!("{case} {what}");
    let charge = keyed(&op, &world, "charge", name("charge"), name("refund"));
    let charge = charge.await?;
    let label = keyed(&op, &world, "label", name("label"), name("void"));
    let invoice = keyed(&op, &world, "invoice", name("invoice"), name("credit"));
    let (label, invoice) = join!(label, invoice);
    let (_, _) = (label?, invoice?);
    let (mail, regret) = ((world.clone(), name("mail")), (world.clone(), name("regret")));
    op.step_once("mail", |_| async move { mail.0.call_unkeyed(&mail.1).await })
        .undo(|undo, _| async move { regret.0.call(undo, &regret.1).await.map(drop) })
        .await?;
    let (put, removed, plan) = (name("line"), name("line"), world.plan.clone());
    op.step_tx("reserve", |mut transaction| async move {
        D::put(&mut transaction, put).await?;
        plan.boundary().await;
        Ok(())
    })
    .undo_tx(|mut transaction, ()| async move { D::remove(&mut transaction, removed).await })
    .await?;
    let ship = (world.clone(), name("ship"));
    op.step("ship", |step| async move {
        if cart.is_refused {
            ship.0.plan.boundary().await;
            return Err(StepError::refused("out of stock"));
        }
        ship.0.call(step, &ship.1).await
    })
    .await?;
    Ok(charge)
}

fn keyed<S: OperationStore>(
    op: &Operation<S>,
    world: &World,
    step: &str,
    effect: String,
    undone: String,
) -> Step<'static, S, String> {
    let (world, undo) = (world.clone(), world.clone());
    op.step(step, move |step| async move { world.call(step, &effect).await })
        .undo(move |context, _| async move { undo.call(context, &undone).await.map(drop) })
}

type CheckoutHandle<D> = OperationHandle<TestStore<D>, Cart, String>;

fn register<D: TestDatabase>(process: &Process<D>, name: &str) -> CheckoutHandle<D> {
    let (case, world) = (name.to_owned(), process.world.clone());
    process
        .operations
        .operation(name, 1, move |op, cart| checkout::<D>(op, cart, case.clone(), world.clone()))
}

/// Crashes at this boundary, then lets another process go on. `false` if there is no such boundary.
fn crashes_and_recovers<D: TestDatabase>(
    database: &D,
    callee: &Callee,
    boundary: usize,
    cart: Cart,
) -> bool {
    let name = format!("checkout-{boundary}-{}", cart.is_refused);
    let (plan, fired) = CrashPlan::at(boundary);
    let first = Process::new(database, World::new(plan.clone(), callee));
    let handle = register(&first, &name);
    let (ended_tx, ended) = std::sync::mpsc::channel();
    first.runtime.spawn(async move {
        let outcome = handle.run("order-1", &cart).await;
        let _ = ended_tx.send(outcome.map(|_| ()));
    });
    // The call does not end after a crash: the driver's reply is waited for.
    let begun = Instant::now();
    while fired.try_recv().is_err() && ended.try_recv().is_err() {
        assert!(begun.elapsed() < TEST_TIMEOUT, "neither a crash nor an end: {name}");
        thread::sleep(Duration::from_millis(1));
    }
    let crashed = plan.has_fired();
    first.crash();
    database.lapse(&name);

    let second = Process::new(database, World::new(CrashPlan::never(), callee));
    let handle = register(&second, &name);
    let mut outcome = second.run(&handle, "order-1", &cart);
    if let OperationOutcome::Parked(why) = &outcome {
        assert!(why.contains("`mail` began, and its outcome is unknown"), "{why}");
        let row = second.row(&name);
        let mail = second.steps(row.id).into_iter().find(|row| row.name == "mail").unwrap();
        assert_eq!((mail.part, mail.state), (StepPart::Do, StepState::Begun));
        let happened = callee.count(&format!("{name} mail")) == 1;
        let result = happened.then(|| "\"mail\"".to_owned());
        second.operate(&name, &OperatorStep::Settle { step: "mail".to_owned(), result });
        second.operate(&name, &OperatorStep::Resume);
        outcome = second.run(&handle, "order-1", &cart);
    }
    check(database, callee, &name, cart, &outcome);
    crashed
}

fn check<D: TestDatabase>(
    database: &D,
    callee: &Callee,
    name: &str,
    cart: Cart,
    outcome: &OperationOutcome<String>,
) {
    let counts = |names: &[&str]| -> Vec<usize> {
        names.iter().map(|what| callee.count(&format!("{name} {what}"))).collect()
    };
    let done = counts(&["charge", "label", "invoice", "mail"]);
    assert_eq!(done, [1; 4], "{name}");
    let undone = counts(&["refund", "void", "credit", "regret"]);
    let lines = database.entries(&format!("{name} line"));
    if cart.is_refused {
        let OperationOutcome::Undone(refusal) = outcome else { panic!("{name}: {outcome:?}") };
        assert_eq!(refusal.refusal::<String>().unwrap(), "out of stock");
        assert_eq!((undone, lines), (vec![1; 4], 0), "{name}");
    } else {
        assert_eq!(*outcome, OperationOutcome::Done(format!("{name} charge")));
        assert_eq!((undone, lines), (vec![0; 4], 1), "{name}");
        assert_eq!(counts(&["ship"]), [1], "{name}");
    }
}

/// Every boundary, several at a time.
fn every_boundary<D: TestDatabase>(database: &D, cart: Cart, boundaries_min: usize) {
    let (callee, next) = (Callee::default(), AtomicUsize::new(0));
    let last = Mutex::new(usize::MAX);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let boundary = next.fetch_add(1, Ordering::Relaxed);
                    if boundary >= *last.lock().unwrap() {
                        return;
                    }
                    if !crashes_and_recovers(database, &callee, boundary, cart) {
                        let mut last = last.lock().unwrap();
                        *last = boundary.min(*last);
                    }
                }
            });
        }
    });
    let last = last.into_inner().unwrap();
    assert!(last >= boundaries_min, "only {last} boundaries");
}

fn a_crash_at_any_boundary_ends_with_everything_done<D: TestDatabase>(database: &D) {
    every_boundary(database, Cart { is_refused: false }, 30);
}

fn a_crash_at_any_boundary_ends_with_everything_undone<D: TestDatabase>(database: &D) {
    every_boundary(database, Cart { is_refused: true }, 45);
}

on_both_databases!(
    a_crash_at_any_boundary_ends_with_everything_done,
    a_crash_at_any_boundary_ends_with_everything_undone,
);
