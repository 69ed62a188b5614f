//! Payments in PostgreSQL.

use std::{future::pending, sync::Arc};

use axum::{Json, Router, extract::State, routing::post};
use deadpool_postgres::{Manager, Pool};
use semel::Semel;
use semel_outbox::{
    Relay,
    postgres::{self as outbox, PgOutbox},
};
use semel_postgres::{
    PostgresStore,
    transactional::{self, PgDatabase, PgTransactionalStore},
};
use semel_tower::{IdempotencyKey, Tx};
use tokio_postgres::{Client, Config, Error, NoTls};

use super::{
    CENTS_MAX, Failure, Mode, Payment, RELAY_LEASE, Receipt, guarded, mailbox::Mailbox, paid,
};

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS orders (
        id    bigserial PRIMARY KEY,
        cents bigint NOT NULL
    );
    CREATE TABLE IF NOT EXISTS ledger (
        id       bigserial PRIMARY KEY,
        order_id bigint NOT NULL REFERENCES orders,
        key      text NOT NULL,
        cents    bigint NOT NULL
    )";

impl From<Error> for Failure {
    fn from(_: Error) -> Self {
        Self::Database
    }
}

/// The service on the database that this URL names.
///
/// # Errors
///
/// If the database cannot be reached.
pub async fn open(url: &str, mode: &Mode) -> anyhow::Result<(Router, Semel)> {
    let manager = Manager::new(url.parse::<Config>()?, NoTls);
    // Few, so that payments wait for each other's connections.
    let pool = Pool::builder(manager).max_size(4).build()?;
    let making = "SELECT pg_advisory_xact_lock(1)";
    pool.get().await?.batch_execute(&format!("BEGIN; {making}; {TABLES}; COMMIT")).await?;
    transactional::create_table(&pool).await?;
    match mode {
        Mode::OneTransaction => together(pool, mode),
        Mode::Separate => separately(url, pool, mode, None).await,
        Mode::Outbox(mailbox) => {
            outbox::create_tables(&*pool.get().await?).await?;
            let sink = Mailbox::open(mailbox)?;
            let relay = Relay::new(PgOutbox::new(pool.clone()).with_lease(RELAY_LEASE), sink);
            // It ends with the process, and the next one takes over when the lease lapses.
            tokio::spawn(relay.run(pending()));
            together(pool, mode)
        }
        Mode::Publish(mailbox) => {
            separately(url, pool, mode, Some(Arc::new(Mailbox::open(mailbox)?))).await
        }
    }
}

fn together(pool: Pool, mode: &Mode) -> anyhow::Result<(Router, Semel)> {
    let store: PgTransactionalStore = PgDatabase::new(pool).store();
    let semel = Semel::new(store.clone());
    let route = if matches!(mode, Mode::Outbox(_)) { post(pay_and_send) } else { post(pay) };
    let route = route.route_layer(guarded(&semel, mode)?);
    Ok((Router::new().route("/payments", route).with_state(store), semel))
}

/// Everything that is written through `tx` is committed together with the answer.
async fn pay(
    tx: Tx<PgDatabase>,
    IdempotencyKey(key): IdempotencyKey,
    Json(payment): Json<Payment>,
) -> Result<Receipt, Failure> {
    let receipt = book(&tx, key.as_str(), payment).await?;
    Ok(receipt.write().await)
}

/// The message is committed with the payment and its answer.
async fn pay_and_send(
    tx: Tx<PgDatabase>,
    IdempotencyKey(key): IdempotencyKey,
    Json(payment): Json<Payment>,
) -> Result<Receipt, Failure> {
    let receipt = book(&tx, key.as_str(), payment).await?.write().await;
    // Last, because it takes the lock of the key until the commit.
    outbox::send(&tx, &paid(key.as_str(), receipt)?).await?;
    Ok(receipt)
}

async fn book(client: &Client, key: &str, payment: Payment) -> Result<Receipt, Failure> {
    let cents = payment.cents;
    let order = "INSERT INTO orders (cents) VALUES ($1) RETURNING id";
    let order: i64 = client.query_one(order, &[&cents]).await?.get(0);
    if cents > CENTS_MAX {
        return Err(Failure::Declined);
    }
    let entry = "INSERT INTO ledger (order_id, key, cents) VALUES ($1, $2, $3)";
    client.execute(entry, &[&order, &key, &cents]).await?;
    Ok(Receipt { order, cents })
}

async fn separately(
    url: &str,
    pool: Pool,
    mode: &Mode,
    mailbox: Option<Arc<Mailbox>>,
) -> anyhow::Result<(Router, Semel)> {
    let semel = Semel::new(PostgresStore::connect(url).await?);
    let route = post(pay_first).route_layer(guarded(&semel, mode)?);
    Ok((Router::new().route("/payments", route).with_state((pool, mailbox)), semel))
}

/// The payment is committed before its answer is recorded.
async fn pay_first(
    State((pool, mailbox)): State<(Pool, Option<Arc<Mailbox>>)>,
    IdempotencyKey(key): IdempotencyKey,
    Json(payment): Json<Payment>,
) -> Result<Receipt, Failure> {
    let client = pool.get().await.map_err(|_| Failure::Database)?;
    client.batch_execute("BEGIN").await?;
    let booked = book(&client, key.as_str(), payment).await;
    let end = if booked.is_ok() { "COMMIT" } else { "ROLLBACK" };
    client.batch_execute(end).await?;
    let receipt = booked?;
    if let Some(mailbox) = mailbox {
        // A kill before this line loses the message.
        let id = format!("order-{}", receipt.order);
        mailbox.put(&id, key.as_str()).map_err(|_| Failure::Database)?;
    }
    Ok(receipt.write().await)
}
