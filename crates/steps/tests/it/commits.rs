//! What an operation costs: the transactions that wrote something, counted by PostgreSQL.

use semel_steps::{OperationOutcome, StepError};
use semel_testkit::servers::Postgres;

use crate::{
    databases::{PgServer, TestDatabase},
    harness::{Callee, CrashPlan, Process, World},
};

/// The next transaction id; reading it takes none.
fn next_transaction(database: &PgServer) -> u64 {
    let next = database.sql("SELECT pg_snapshot_xmax(pg_current_snapshot())::text");
    next[0].parse().unwrap()
}

#[test]
fn three_steps_cost_five_commits_and_transactional_ones_none_of_their_own() {
    let server = Postgres::start(&[("autovacuum", "off")]);
    let database = PgServer::new(&server);
    let process = Process::new(&database, World::new(CrashPlan::never(), &Callee::default()));
    let calls = process.operations.operation("calls", 1, |op, (): ()| async move {
        for name in ["a", "b", "c"] {
            op.step(name, |step| async move { Ok(step.key().to_owned()) }).await?;
        }
        Ok::<_, StepError>(3)
    });
    let writes = process.operations.operation("writes", 1, |op, (): ()| async move {
        for name in ["a", "b", "c"] {
            op.step_tx(name, |mut transaction| async move {
                PgServer::put(&mut transaction, name.to_owned()).await
            })
            .await?;
        }
        Ok::<_, StepError>(3)
    });
    let once = process.operations.operation("once", 1, |op, (): ()| async move {
        op.step_once("a", |_| async move { Ok(1) }).await
    });
    let cost = |run: &dyn Fn()| {
        let before = next_transaction(&database);
        run();
        next_transaction(&database) - before
    };
    let done = OperationOutcome::Done(3);
    assert_eq!(cost(&|| assert_eq!(process.run(&calls, "k", &()), done)), 5);
    assert_eq!(cost(&|| assert_eq!(process.run(&calls, "k", &()), done)), 0, "a replay");
    // The three are those of the user's own writes.
    assert_eq!(cost(&|| assert_eq!(process.run(&writes, "k", &()), done)), 3 + 2);
    let one = OperationOutcome::Done(1);
    assert_eq!(cost(&|| assert_eq!(process.run(&once, "k", &()), one)), 2 + 2);
}
