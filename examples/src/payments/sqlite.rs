//! Payments in one SQLite file.

use std::{future::pending, path::Path, sync::Arc};

use axum::{Json, Router, extract::State, routing::post};
use rusqlite::{Connection, Error};
use semel::Semel;
use semel_outbox::{
    Relay,
    sqlite::{self as outbox, SqliteOutbox},
};
use semel_sqlite::{SqliteStore, transactional::SqliteDatabase};
use semel_tower::{IdempotencyKey, Tx};
use tokio::task::JoinError;

use super::{
    CENTS_MAX, Failure, Mode, Payment, RELAY_LEASE, Receipt, guarded, mailbox::Mailbox, paid,
};
use crate::database::Database;

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, cents INTEGER NOT NULL);
    CREATE TABLE IF NOT EXISTS ledger (
        id       INTEGER PRIMARY KEY,
        order_id INTEGER NOT NULL REFERENCES orders,
        key      TEXT NOT NULL,
        cents    INTEGER NOT NULL
    );";

impl From<Error> for Failure {
    fn from(_: Error) -> Self {
        Self::Database
    }
}

impl From<JoinError> for Failure {
    fn from(_: JoinError) -> Self {
        Self::Database
    }
}

/// The service on this file.
///
/// # Errors
///
/// If the file cannot be opened.
pub fn open(path: &Path, mode: &Mode) -> anyhow::Result<(Router, Semel)> {
    let shop = Database::open(path, TABLES)?;
    match mode {
        Mode::OneTransaction => together(path, mode),
        Mode::Separate => separately(path, shop, mode, None),
        Mode::Outbox(mailbox) => {
            let outbox = SqliteOutbox::open(path)?.with_lease(RELAY_LEASE);
            // It ends with the process, and the next one takes over when the lease lapses.
            tokio::spawn(Relay::new(outbox, Mailbox::open(mailbox)?).run(pending()));
            together(path, mode)
        }
        Mode::Publish(mailbox) => {
            separately(path, shop, mode, Some(Arc::new(Mailbox::open(mailbox)?)))
        }
    }
}

fn together(path: &Path, mode: &Mode) -> anyhow::Result<(Router, Semel)> {
    let store = SqliteDatabase::open(path)?.store();
    let semel = Semel::new(store.clone());
    let route = if matches!(mode, Mode::Outbox(_)) { post(pay_and_send) } else { post(pay) };
    let route = route.route_layer(guarded(&semel, mode)?);
    Ok((Router::new().route("/payments", route).with_state(store), semel))
}

/// Everything that is written through `tx` is committed together with the answer.
async fn pay(
    mut tx: Tx<SqliteDatabase>,
    IdempotencyKey(key): IdempotencyKey,
    Json(payment): Json<Payment>,
) -> Result<Receipt, Failure> {
    let booked = tx.run(move |db| book(db, key.as_str(), payment)).await?;
    Ok(booked.ok_or(Failure::Declined)?.write().await)
}

/// The message is committed with the payment and its answer.
async fn pay_and_send(
    mut tx: Tx<SqliteDatabase>,
    IdempotencyKey(key): IdempotencyKey,
    Json(payment): Json<Payment>,
) -> Result<Receipt, Failure> {
    let booked = tx.run(move |db| {
        let Some(receipt) = book(db, key.as_str(), payment)? else { return Ok(None) };
        let message = paid(key.as_str(), receipt);
        let message = message.map_err(|error| Error::ToSqlConversionFailure(Box::new(error)))?;
        outbox::send(db, &message)?;
        Ok(Some(receipt))
    });
    Ok(booked.await?.ok_or(Failure::Declined)?.write().await)
}

/// Books a payment; `None` if it is declined.
fn book(db: &Connection, key: &str, payment: Payment) -> Result<Option<Receipt>, Error> {
    let cents = payment.cents;
    let order = "INSERT INTO orders (cents) VALUES (?) RETURNING id";
    let order: i64 = db.query_row(order, [cents], |row| row.get(0))?;
    if cents > CENTS_MAX {
        return Ok(None);
    }
    let entry = "INSERT INTO ledger (order_id, key, cents) VALUES (?, ?, ?)";
    db.execute(entry, (order, key, cents))?;
    Ok(Some(Receipt { order, cents }))
}

fn separately(
    path: &Path,
    shop: Database,
    mode: &Mode,
    mailbox: Option<Arc<Mailbox>>,
) -> anyhow::Result<(Router, Semel)> {
    let semel = Semel::new(SqliteStore::open(path.with_extension("semel.db"))?);
    let route = post(pay_first).route_layer(guarded(&semel, mode)?);
    Ok((Router::new().route("/payments", route).with_state((shop, mailbox)), semel))
}

/// The payment is committed before its answer is recorded.
async fn pay_first(
    State((shop, mailbox)): State<(Database, Option<Arc<Mailbox>>)>,
    IdempotencyKey(key): IdempotencyKey,
    Json(payment): Json<Payment>,
) -> Result<Receipt, Failure> {
    let name = key.clone();
    let booked = shop.write(move |db| book(db, name.as_str(), payment)?.ok_or(Failure::Declined));
    let receipt = booked.await?;
    if let Some(mailbox) = mailbox {
        // A kill before this line loses the message.
        let id = format!("order-{}", receipt.order);
        mailbox.put(&id, key.as_str()).map_err(|_| Failure::Database)?;
    }
    Ok(receipt.write().await)
}
