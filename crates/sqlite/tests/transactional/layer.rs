//! An axum handler behind the `IdempotencyLayer` that receives its transaction as an extractor.

use std::convert::Infallible;

use axum::{
    Router,
    body::{Body, to_bytes},
    http::{HeaderName, Request, StatusCode},
    routing::post,
};
use semel::{
    Semel,
    core::{OnUnknown, Policy, Scope},
};
use semel_sqlite::transactional::{SqliteDatabase, SqliteTransactionalStore};
use semel_tower::{Callers, IdempotencyLayer, KeyRule, Tx};
use tower_service::Service;

use super::{Shop, insert};

/// Handles an order: the body selects the status.
async fn order(
    mut tx: Tx<SqliteDatabase>,
    body: String,
) -> Result<(StatusCode, String), StatusCode> {
    let internal_error = |_| StatusCode::INTERNAL_SERVER_ERROR;
    let row = body.clone();
    tx.run(move |db| insert(db, &row)).await.map_err(internal_error)?;
    if body.starts_with("kept") {
        tx.keep_writes();
    }
    let count = "SELECT count(*) FROM business";
    let rows = tx.run(|db| db.query_row(count, [], |row| row.get::<_, i64>(0))).await;
    let rows = rows.map_err(internal_error)?;
    match &*body {
        "good" => Ok((StatusCode::CREATED, format!("row {rows}"))),
        "declined" | "kept and declined" => {
            Ok((StatusCode::PAYMENT_REQUIRED, format!("no {rows}")))
        }
        _ => Err(StatusCode::SERVICE_UNAVAILABLE),
    }
}

/// A handler that also works on a route without the layer.
async fn describe_transaction(tx: Option<Tx<SqliteDatabase>>) -> &'static str {
    if tx.is_some() { "in a transaction" } else { "on its own" }
}

fn app(shop: &Shop) -> Router {
    let store: SqliteTransactionalStore = SqliteDatabase::open(shop.path()).unwrap().store();
    let semel = Semel::new(store.clone());
    let callers = Callers::header(HeaderName::from_static("x-merchant-id")).unwrap();
    let layer = IdempotencyLayer::new(&semel, Scope::new("orders").unwrap(), callers)
        .key(KeyRule::default().required())
        .policy(Policy { on_unknown: OnUnknown::Rerun, ..Policy::default() });
    Router::new()
        .route("/orders", post(order))
        .route("/transaction", post(describe_transaction))
        .route_layer(layer)
        .route("/unguarded", post(order))
        .route("/transaction/unguarded", post(describe_transaction))
        .with_state(store)
}

async fn send(app: &mut Router, path: &str, key: &str, body: &str) -> (u16, bool, String) {
    let request = Request::post(path)
        .header("x-merchant-id", "ada")
        .header("idempotency-key", key)
        .body(Body::from(body.to_owned()))
        .unwrap();
    let answer: Result<_, Infallible> = app.call(request).await;
    let (head, body) = answer.unwrap().into_parts();
    let body = to_bytes(body, 1 << 20).await.unwrap();
    let replayed = head.headers.contains_key("idempotent-replayed");
    (head.status.as_u16(), replayed, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn an_answer_and_the_writes_of_its_handler_are_one_commit() {
    let shop = Shop::new();
    // Two apps on one file, like two processes.
    let mut apps = [app(&shop), app(&shop)];
    for (key, body, status, text, rows) in [
        ("k1", "good", 201, "row 1", 1),
        ("k2", "declined", 402, "no 2", 1),
        ("k3", "kept and declined", 402, "no 2", 2),
        ("k4", "good", 201, "row 3", 3),
    ] {
        let response = send(&mut apps[0], "/orders", key, body).await;
        assert_eq!(response, (status, false, text.to_owned()));
        for app in &mut apps {
            let response = send(app, "/orders", key, body).await;
            assert_eq!(response, (status, true, text.to_owned()));
        }
        assert_eq!(shop.committed().len(), rows);
    }
    // If the response is not recorded, the transaction is rolled back and the handler runs again.
    for _ in 0..2 {
        let (status, replayed, _) = send(&mut apps[0], "/orders", "k5", "transient").await;
        assert_eq!((status, replayed), (503, false));
    }
    assert_eq!(shop.committed(), ["good", "good", "kept and declined"]);
}

#[tokio::test]
async fn a_handler_without_a_layer_gets_no_transaction() {
    let shop = Shop::new();
    let (status, ..) = send(&mut app(&shop), "/unguarded", "k", "good").await;
    assert_eq!((status, shop.committed().len()), (500, 0));
    let mut app = app(&shop);
    let (.., text) = send(&mut app, "/transaction", "k", "").await;
    assert_eq!(text, "in a transaction");
    let (status, _, text) = send(&mut app, "/transaction/unguarded", "k", "").await;
    assert_eq!(
        (status, &*text),
        (200, "on its own"),
        "a handler with an optional transaction runs without one"
    );
}
