//! Handlers of axum that write through sqlx, behind the layer: one commit holds their writes and
//! their answer.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test reports by panicking")]

use axum::{
    Router,
    body::{Body, to_bytes},
    http::{HeaderName, Request, StatusCode},
    routing::{MethodRouter, post},
};
use semel::{
    Semel,
    core::Scope,
    transactional::{Database, TransactionalStore},
};
use semel_sqlx::{postgres, postgres::PgDatabase, sqlite::SqliteDatabase};
use semel_testkit::servers;
use semel_tower::{Callers, IdempotencyLayer, KeyRule, Tx};
use sqlx::{Executor as _, PgPool, SqlitePool, sqlite::SqliteConnectOptions};
use tower_service::Service as _;

const WRITE: &str = "INSERT INTO orders DEFAULT VALUES RETURNING id";
const COUNT: &str = "SELECT count(*) FROM orders";

/// The routes of a shop: each writes, and then answers with its own status.
fn app<D: Database>(
    store: TransactionalStore<D>,
    routes: [(&str, MethodRouter<TransactionalStore<D>>); 4],
) -> Router {
    let semel = Semel::new(store.clone());
    let merchants = Callers::header(HeaderName::from_static("x-merchant-id")).unwrap();
    let layer = IdempotencyLayer::new(&semel, Scope::new("orders").unwrap(), merchants)
        .key(KeyRule::default().required());
    let router = routes.into_iter().fold(Router::new(), |all, (path, one)| all.route(path, one));
    router.route_layer(layer).with_state(store)
}

/// The four handlers for a database.
macro_rules! routes {
    ($database:ty) => {{
        async fn write(tx: &mut Tx<$database>) -> i64 {
            sqlx::query_scalar(WRITE).fetch_one(&mut ***tx).await.unwrap()
        }

        [
            (
                "/ordered",
                post(async |mut tx: Tx<$database>| {
                    (StatusCode::CREATED, format!("order {}", write(&mut tx).await))
                }),
            ),
            (
                "/declined",
                post(async |mut tx: Tx<$database>| {
                    write(&mut tx).await;
                    (StatusCode::PAYMENT_REQUIRED, "declined")
                }),
            ),
            (
                "/noted",
                post(async |mut tx: Tx<$database>| {
                    write(&mut tx).await;
                    tx.keep_writes();
                    (StatusCode::PAYMENT_REQUIRED, "declined, and noted")
                }),
            ),
            (
                "/failed",
                post(async |mut tx: Tx<$database>| {
                    write(&mut tx).await;
                    (StatusCode::SERVICE_UNAVAILABLE, "not now")
                }),
            ),
        ]
    }};
}

/// Sends a request twice under one key. Returns the answers, whether the second was a replay, and
/// the number of orders afterwards.
async fn twice(
    app: &Router,
    path: &str,
    count: impl AsyncFn() -> i64,
) -> (StatusCode, [String; 2], bool, i64) {
    let mut answers = Vec::new();
    for _ in 0..2 {
        let request = Request::post(path)
            .header("x-merchant-id", "shop-3")
            .header("idempotency-key", path)
            .body(Body::empty());
        let answer = app.clone().call(request.unwrap()).await.unwrap();
        let (head, body) = answer.into_parts();
        let body = to_bytes(body, 1 << 20).await.unwrap();
        answers.push((head, String::from_utf8(body.to_vec()).unwrap()));
    }
    let [(first, one), (second, two)] = answers.try_into().unwrap();
    assert_eq!(first.status, second.status, "{path}");
    let replayed = second.headers.get("idempotent-replayed").is_some_and(|value| value == "true");
    (second.status, [one, two], replayed, count().await)
}

async fn assert_one_commit(app: &Router, count: impl AsyncFn() -> i64 + Copy) {
    let (status, [one, two], replayed, orders) = twice(app, "/ordered", count).await;
    assert_eq!((status.as_u16(), replayed, orders), (201, true, 1));
    assert_eq!(one, two);
    let (status, _, replayed, orders) = twice(app, "/declined", count).await;
    assert_eq!((status.as_u16(), replayed, orders), (402, true, 1));
    let (status, _, replayed, orders) = twice(app, "/noted", count).await;
    assert_eq!((status.as_u16(), replayed, orders), (402, true, 2));
    let (status, _, replayed, orders) = twice(app, "/failed", count).await;
    assert_eq!((status.as_u16(), replayed, orders), (503, false, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_on_postgresql_writes_and_answers_by_one_commit() {
    let server = servers::postgres();
    let pool = PgPool::connect(&server.url(&server.fresh_database())).await.unwrap();
    pool.execute("CREATE TABLE orders (id bigserial PRIMARY KEY)").await.unwrap();
    postgres::create_table(&pool).await.unwrap();
    let app = app(PgDatabase::new(pool.clone()).store(), routes!(PgDatabase));
    assert_one_commit(&app, async || sqlx::query_scalar(COUNT).fetch_one(&pool).await.unwrap())
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_on_sqlite_writes_and_answers_by_one_commit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shop.db");
    let options = SqliteConnectOptions::new().filename(path).create_if_missing(true);
    let pool = SqlitePool::connect_with(options).await.unwrap();
    pool.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)").await.unwrap();
    let database = SqliteDatabase::open(pool.clone()).await.unwrap();
    let app = app(database.store(), routes!(SqliteDatabase));
    assert_one_commit(&app, async || sqlx::query_scalar(COUNT).fetch_one(&pool).await.unwrap())
        .await;
}
