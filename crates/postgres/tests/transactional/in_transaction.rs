//! Operations in a transaction that the user has opened.

use std::time::Duration;

use semel::{
    OperationError, Outcome,
    core::{Caller, Key, Scope},
    transactional::InTransaction,
};
use semel_postgres::transactional::PgUserTransaction;
use tokio_postgres::{Client, Config, NoTls};

use crate::harness::TestDatabase;

async fn connect(db: &TestDatabase) -> Client {
    let (client, connection) = db.url.parse::<Config>().unwrap().connect(NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

fn within(key: &str) -> InTransaction {
    let (scope, caller) = (Scope::new("orders").unwrap(), Caller::new("shop-3").unwrap());
    InTransaction::new(scope, caller, Key::new(key).unwrap()).fingerprint(&1)
}

async fn write(tx: &mut PgUserTransaction<'_>, entry: &str) -> Result<String, OperationError> {
    tx.execute("INSERT INTO ledger (entry) VALUES ($1)", &[&entry]).await?;
    Ok(entry.to_owned())
}

/// Another schema has such a table too, in which no retry would look.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_for_another_table_is_rejected() {
    let db = TestDatabase::new().await;
    let table = "CREATE SCHEMA tenant; \
                 CREATE TABLE tenant.semel_transactional \
                 (LIKE public.semel_transactional INCLUDING ALL)";
    db.admin.batch_execute(table).await.unwrap();
    let mut client = connect(&db).await;
    let transaction = client.transaction().await.unwrap();
    let mut user_transaction = PgUserTransaction::of(&transaction);
    let run = within("k").run(&mut user_transaction, async |tx: &mut PgUserTransaction<'_>| {
        tx.batch_execute("SET LOCAL search_path = tenant, public").await?;
        write(tx, "elsewhere").await
    });
    let outcome = run.await;
    assert!(!matches!(outcome, Ok(Outcome::Ran(_))), "{outcome:?}");
    let _ = transaction.commit().await;
    assert!(db.entries().await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_record_commits_and_rolls_back_with_the_users_transaction() {
    let db = TestDatabase::new().await;
    let mut client = connect(&db).await;
    for commits in [false, true] {
        let transaction = client.transaction().await.unwrap();
        let mut user_transaction = PgUserTransaction::of(&transaction);
        let outcome = within("k")
            .run(&mut user_transaction, async |tx: &mut PgUserTransaction<'_>| {
                write(tx, "mine").await
            });
        assert!(matches!(outcome.await.unwrap(), Outcome::Ran(_)));
        if commits {
            transaction.commit().await.unwrap();
        } else {
            transaction.rollback().await.unwrap();
        }
    }
    let transaction = client.transaction().await.unwrap();
    let mut user_transaction = PgUserTransaction::of(&transaction);
    let run = within("k").run(&mut user_transaction, async |tx: &mut PgUserTransaction<'_>| {
        write(tx, "twice").await
    });
    let outcome = run.await.unwrap();
    assert!(matches!(&outcome, Outcome::Replayed(text) if text == "mine"), "{outcome:?}");
    let other = within("k").fingerprint(&2);
    let run = other.run(&mut user_transaction, async |tx: &mut PgUserTransaction<'_>| {
        write(tx, "other").await
    });
    assert!(matches!(run.await.unwrap(), Outcome::KeyReused));
    transaction.commit().await.unwrap();
    assert_eq!(db.entries().await, ["mine"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_rolls_its_own_writes_back_and_an_error_leaves_the_transaction_usable() {
    let db = TestDatabase::new().await;
    let mut client = connect(&db).await;
    let transaction = client.transaction().await.unwrap();
    let mut user_transaction = PgUserTransaction::of(&transaction);
    write(&mut user_transaction, "the caller's").await.unwrap();
    let refuse = async |tx: &mut PgUserTransaction<'_>| {
        write(tx, "declined").await?;
        Err::<String, _>(OperationError::refused("declined"))
    };
    let outcome = within("refused").run(&mut user_transaction, refuse).await.unwrap();
    assert!(matches!(outcome, Outcome::Refused(_)));
    let kept =
        within("kept").keep_refused_writes().run(&mut user_transaction, refuse).await.unwrap();
    assert!(matches!(kept, Outcome::Refused(_)));
    let fails =
        within("fails").run(&mut user_transaction, async |tx: &mut PgUserTransaction<'_>| {
            write(tx, "undone").await?;
            tx.execute("INSERT INTO ledger (entry) VALUES (NULL)", &[]).await?;
            Ok(String::new())
        });
    assert!(matches!(fails.await.unwrap(), Outcome::Retry(_)));
    transaction.commit().await.unwrap();
    assert_eq!(db.entries().await, ["declined", "the caller's"]);
    let transaction = client.transaction().await.unwrap();
    let mut user_transaction = PgUserTransaction::of(&transaction);
    let again = within("refused").run(&mut user_transaction, refuse).await.unwrap();
    assert!(matches!(again, Outcome::Refused(refusal) if refusal.is_replayed()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_transaction_waits_within_its_limit_and_then_replays() {
    let db = TestDatabase::new().await;
    let (mut first, mut second) = (connect(&db).await, connect(&db).await);
    let one = first.transaction().await.unwrap();
    let work = async |tx: &mut PgUserTransaction<'_>| write(tx, "once").await;
    within("k").run(&mut PgUserTransaction::of(&one), work).await.unwrap();
    let two = second.transaction().await.unwrap();
    let mut user_transaction = PgUserTransaction::of(&two);
    let short = within("k").wait(Duration::from_millis(30));
    assert!(matches!(short.run(&mut user_transaction, work).await.unwrap(), Outcome::InProgress));
    let waits = within("k").wait(Duration::from_secs(60));
    // Its future is `Send`.
    let ((), outcome) = tokio::join!(
        async {
            // Real time must pass, more than the short limit above: the second transaction waits
            // meanwhile.
            tokio::time::sleep(Duration::from_millis(50)).await;
            one.commit().await.unwrap();
        },
        waits.run(&mut user_transaction, work)
    );
    assert!(matches!(outcome.unwrap(), Outcome::Replayed(_)));
    two.commit().await.unwrap();
    assert_eq!(db.entries().await, ["once"]);
}
