//! Payments in PostgreSQL.

use axum::{Json, Router, extract::State, routing::post};
use deadpool_postgres::{Manager, Pool};
use semel::Semel;
use semel_postgres::{
    PostgresStore,
    transactional::{self, PgDatabase, PgTransactionalStore},
};
use semel_tower::{IdempotencyKey, Tx};
use tokio_postgres::{Client, Config, Error, NoTls};

use super::{CENTS_MAX, Failure, Mode, Payment, Receipt, guarded};

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
pub async fn open(url: &str, mode: Mode) -> anyhow::Result<(Router, Semel)> {
    let manager = Manager::new(url.parse::<Config>()?, NoTls);
    // Few, so that payments wait for each other's connections.
    let pool = Pool::builder(manager).max_size(4).build()?;
    let making = "SELECT pg_advisory_xact_lock(1)";
    pool.get().await?.batch_execute(&format!("BEGIN; {making}; {TABLES}; COMMIT")).await?;
    transactional::create_table(&pool).await?;
    match mode {
        Mode::OneTransaction => together(pool),
        Mode::Separate => separately(url, pool).await,
    }
}

fn together(pool: Pool) -> anyhow::Result<(Router, Semel)> {
    let store: PgTransactionalStore = PgDatabase::new(pool).store();
    let semel = Semel::new(store.clone());
    let route = post(pay).route_layer(guarded(&semel, Mode::OneTransaction)?);
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

async fn separately(url: &str, pool: Pool) -> anyhow::Result<(Router, Semel)> {
    let semel = Semel::new(PostgresStore::connect(url).await?);
    let route = post(pay_first).route_layer(guarded(&semel, Mode::Separate)?);
    Ok((Router::new().route("/payments", route).with_state(pool), semel))
}

/// The payment is committed before its answer is recorded.
async fn pay_first(
    State(pool): State<Pool>,
    IdempotencyKey(key): IdempotencyKey,
    Json(payment): Json<Payment>,
) -> Result<Receipt, Failure> {
    let client = pool.get().await.map_err(|_| Failure::Database)?;
    client.batch_execute("BEGIN").await?;
    let booked = book(&client, key.as_str(), payment).await;
    let end = if booked.is_ok() { "COMMIT" } else { "ROLLBACK" };
    client.batch_execute(end).await?;
    Ok(booked?.write().await)
}
