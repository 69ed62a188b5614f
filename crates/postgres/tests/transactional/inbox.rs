//! Messages and webhooks: the receipt and the writes of a handler are one transaction.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime},
};

use axum::{
    Extension, Router,
    body::{Body, Bytes, to_bytes},
    extract::State,
    http::{Request, StatusCode},
    routing::post,
};
use hmac::{Hmac, KeyInit as _, Mac as _};
use semel::{
    Lease, Outcome,
    core::{Caller, Key, Scope},
    transactional::{INBOX_RETENTION, InTransaction},
};
use semel_postgres::transactional::{PgTransactionalStore, PgUserTransaction};
use semel_tower::{IdempotencyLayer, Signature};
use sha2::Sha256;
use tokio_postgres::{Config, NoTls};
use tower_service::Service as _;

use crate::harness::{TestDatabase, insert};

const SECRET: &str = "whsec_of_the_sender";
/// The time of the tests.
const NOW: u64 = 1_772_359_200;

/// A receiver whose handler writes to the ledger and returns these statuses in turn.
#[derive(Clone)]
struct Inbox {
    store: PgTransactionalStore,
    answers: &'static [StatusCode],
    runs: Arc<AtomicUsize>,
}

impl Inbox {
    fn runs(&self) -> usize {
        self.runs.load(Ordering::Relaxed)
    }
}

async fn paid(
    State(inbox): State<Inbox>,
    Extension(lease): Extension<Lease>,
) -> (StatusCode, String) {
    let run = inbox.runs.fetch_add(1, Ordering::Relaxed);
    let tx = inbox.store.transaction(&lease).await.unwrap();
    insert(&tx, &format!("run {run}")).await.unwrap();
    (inbox.answers[run], format!("run {run}"))
}

fn receiver(db: &TestDatabase, answers: &'static [StatusCode]) -> (Router, Inbox) {
    let process = db.process(2);
    let inbox = Inbox { store: process.store, answers, runs: Arc::default() };
    let clock = || SystemTime::UNIX_EPOCH + Duration::from_secs(NOW);
    let signature = Signature::stripe([SECRET]).unwrap().clock(clock);
    let source = Scope::new("webhooks.stripe").unwrap();
    let layer = IdempotencyLayer::inbox(&process.semel, source, signature);
    let app = Router::new().route("/", post(paid)).route_layer(layer).with_state(inbox.clone());
    (app, inbox)
}

/// Delivers an event that is signed with a time and a secret.
async fn deliver(app: &Router, secret: &str, at: u64, id: &str) -> (StatusCode, bool, Bytes) {
    let body = format!(r#"{{"id":"{id}","type":"invoice.paid"}}"#);
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
    mac.update(format!("{at}.{body}").as_bytes());
    let v1: String = mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let request = Request::post("/")
        .header("content-type", "application/json")
        .header("stripe-signature", format!("t={at},v1={v1}"))
        .body(Body::from(body))
        .unwrap();
    let answer = app.clone().call(request).await.unwrap();
    let (status, replayed) =
        (answer.status(), answer.headers().contains_key("idempotent-replayed"));
    (status, replayed, to_bytes(answer.into_body(), 1 << 16).await.unwrap())
}

async fn records(db: &TestDatabase) -> usize {
    db.admin.query("SELECT FROM semel_transactional", &[]).await.unwrap().len()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_handler_is_rolled_back_and_the_redelivery_runs() {
    let db = TestDatabase::new().await;
    // The last but one would be held if the store did not know that it was rolled back.
    let answers = &[
        StatusCode::INTERNAL_SERVER_ERROR,
        StatusCode::UNPROCESSABLE_ENTITY,
        StatusCode::BAD_GATEWAY,
        StatusCode::OK,
    ];
    let (app, inbox) = receiver(&db, answers);
    for (run, status) in answers.iter().enumerate() {
        assert!(db.entries().await.is_empty(), "before run {run}");
        assert_eq!(records(&db).await, 0, "before run {run}");
        let (answered, replayed, body) = deliver(&app, SECRET, NOW + run as u64, "evt_1").await;
        assert_eq!((answered, replayed), (*status, false), "{body:?}");
    }
    assert_eq!((inbox.runs(), records(&db).await), (4, 1));
    assert_eq!(db.entries().await, ["run 3"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_after_a_success_is_replayed() {
    let db = TestDatabase::new().await;
    let (app, inbox) = receiver(&db, &[StatusCode::ACCEPTED, StatusCode::OK]);
    let first = deliver(&app, SECRET, NOW, "evt_1").await;
    assert_eq!(first, (StatusCode::ACCEPTED, false, "run 0".into()));
    // Also in another process, without a cache.
    let (there, idle) = receiver(&db, &[]);
    for app in [&app, &there] {
        let again = deliver(app, SECRET, NOW + 60, "evt_1").await;
        assert_eq!(again, (StatusCode::ACCEPTED, true, "run 0".into()));
    }
    assert_eq!((inbox.runs(), idle.runs()), (1, 0));
    assert_eq!(deliver(&app, SECRET, NOW, "evt_2").await.2, "run 1");
    assert_eq!(db.entries().await, ["run 0", "run 1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forged_event_has_no_effect_and_the_genuine_one_runs() {
    let db = TestDatabase::new().await;
    let (app, inbox) = receiver(&db, &[StatusCode::OK]);
    for (secret, at) in [("whsec_of_another_sender", NOW), (SECRET, NOW - 3600)] {
        assert_eq!(deliver(&app, secret, at, "evt_1").await.0, StatusCode::UNAUTHORIZED);
    }
    assert_eq!((inbox.runs(), records(&db).await), (0, 0));
    assert!(db.entries().await.is_empty());
    assert_eq!(deliver(&app, SECRET, NOW, "evt_1").await.0, StatusCode::OK);
    // A forged repeat does not get the answer.
    let forged = deliver(&app, "whsec_of_another_sender", NOW, "evt_1").await;
    assert_eq!((forged.0, forged.1), (StatusCode::UNAUTHORIZED, false));
    assert_eq!((inbox.runs(), db.entries().await), (1, vec!["run 0".to_owned()]));
}

/// Consumes a message in its own transaction.
async fn consume(db: &TestDatabase, source: &str, id: &str) -> Outcome<()> {
    let config: Config = db.url.parse().unwrap();
    let (mut client, connection) = config.connect(NoTls).await.unwrap();
    tokio::spawn(connection);
    let transaction = client.transaction().await.unwrap();
    let mut user_transaction = PgUserTransaction::of(&transaction);
    let message = InTransaction::message(Scope::new(source).unwrap(), Key::new(id).unwrap());
    let run = message.run(&mut user_transaction, async |tx: &mut PgUserTransaction<'_>| {
        tx.execute("INSERT INTO ledger (entry) VALUES ($1)", &[&id]).await?;
        Ok(())
    });
    let outcome = run.await.unwrap();
    transaction.commit().await.unwrap();
    outcome
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_remembered_for_a_week_by_its_source_and_id() {
    let db = TestDatabase::new().await;
    let first = consume(&db, "queue.paid", "m-1").await;
    assert!(matches!(first, Outcome::Ran(())), "{first:?}");
    let kept = "SELECT extract(epoch FROM expires_at - recorded_at)::bigint, scope, caller, key \
                FROM semel_transactional";
    let kept = db.admin.query_one(kept, &[]).await.unwrap();
    assert_eq!(kept.get::<_, i64>(0), INBOX_RETENTION.as_secs() as i64);
    let names: [String; 3] = [1, 2, 3].map(|column| kept.get(column));
    assert_eq!(names, ["queue.paid", Caller::anonymous().as_str(), "m-1"]);
    let again = consume(&db, "queue.paid", "m-1").await;
    assert!(matches!(again, Outcome::Replayed(())), "{again:?}");
    let elsewhere = consume(&db, "queue.shipped", "m-1").await;
    assert!(matches!(elsewhere, Outcome::Ran(())), "{elsewhere:?}");
    assert_eq!(db.entries().await, ["m-1", "m-1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_and_a_message_with_the_same_source_and_id_do_not_mix() {
    let db = TestDatabase::new().await;
    let (app, inbox) = receiver(&db, &[StatusCode::OK]);
    assert_eq!(deliver(&app, SECRET, NOW, "evt_1").await.0, StatusCode::OK);
    let message = consume(&db, "webhooks.stripe", "evt_1").await;
    assert!(matches!(message, Outcome::KeyReused), "{message:?}");
    assert_eq!((inbox.runs(), db.entries().await), (1, vec!["run 0".to_owned()]));
}
