//! The statements of `contrib/fence/fence.sql` on PostgreSQL: a service that runs them refuses a
//! zombie.
//!
//! The first attempt is paused beyond `upstream_timeout`, so its route lets the next request run
//! with a higher fence. Then the first wakes up.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use semel_testkit::servers::{self, Postgres};
use tokio_postgres::NoTls;

use crate::common::{
    ClientRequest, Content, Gate, Gateway, ORDER, Setup, Upstream, charge, text, wait_until,
};

const FENCE: &str = include_str!("../../../../contrib/fence/fence.sql");

const LEDGER: &str = "SELECT string_agg(attempt::text, ',' ORDER BY attempt) FROM charge";

/// Where the first attempt is paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pause {
    /// Before its transaction.
    Before,
    /// In its transaction, after its claim and its write.
    Inside,
}

/// A service that writes one row for each charge, in a database of its own.
struct Service {
    server: &'static Postgres,
    database: String,
    pause: Pause,
    gate: Gate,
    refused: AtomicUsize,
    ended: AtomicUsize,
}

impl Service {
    fn new(pause: Pause) -> Arc<Self> {
        let server = servers::postgres();
        let database = server.fresh_database();
        server.sql(&database, statements()[0]);
        server.sql(&database, "CREATE TABLE charge (attempt integer)");
        let (gate, refused, ended) = (Gate::new(), AtomicUsize::new(0), AtomicUsize::new(0));
        Arc::new(Self { server, database, pause, gate, refused, ended })
    }

    async fn upstream(self: &Arc<Self>) -> Upstream {
        let service = Arc::clone(self);
        Upstream::serving(move |request| {
            // The connection of a zombie is gone, and its work goes on.
            let service = Arc::clone(&service);
            let written = tokio::spawn(async move {
                let answer = service.charge(request).await;
                service.ended.fetch_add(1, Ordering::SeqCst);
                answer
            });
            async { written.await.unwrap() }
        })
        .await
    }

    async fn charge(&self, request: Request<Incoming>) -> Response<Content> {
        let number = |name: &str| request.headers()[name].to_str().unwrap().parse::<i64>().unwrap();
        let (fence, attempt) = (number("idempotency-fence"), number("idempotency-attempt"));
        let url = self.server.url(&self.database);
        let (mut client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
        tokio::spawn(connection);
        if attempt == 1 && self.pause == Pause::Before {
            self.gate.wait_open().await;
        }
        let transaction = client.transaction().await.unwrap();
        let claimed = transaction.execute(statements()[1], &[&"charge ada", &fence]).await.unwrap();
        if claimed == 0 {
            self.refused.fetch_add(1, Ordering::SeqCst);
            let mut refused = Response::new(text("a later attempt has written already"));
            *refused.status_mut() = StatusCode::CONFLICT;
            return refused;
        }
        let written = "SELECT attempt FROM charge";
        if let Some(row) = transaction.query_opt(written, &[]).await.unwrap() {
            return Response::new(text(format!("attempt {}", row.get::<_, i32>(0))));
        }
        let attempt = i32::try_from(attempt).unwrap();
        transaction.execute("INSERT INTO charge VALUES ($1)", &[&attempt]).await.unwrap();
        if attempt == 1 && self.pause == Pause::Inside {
            self.gate.wait_open().await;
        }
        transaction.commit().await.unwrap();
        Response::new(text(format!("attempt {attempt}")))
    }

    fn ended(&self) -> usize {
        self.ended.load(Ordering::SeqCst)
    }

    /// The attempts that have written, and how many were refused.
    fn writes(&self) -> (String, usize) {
        let ledger = self.server.sql(&self.database, LEDGER);
        (ledger, self.refused.load(Ordering::SeqCst))
    }
}

/// The table, and the statement that claims a fence.
fn statements() -> [&'static str; 2] {
    let parts: Vec<&str> = FENCE.split(";\n").filter(|part| !part.is_empty()).collect();
    parts.try_into().unwrap()
}

async fn gateway(upstream: &Upstream) -> Gateway {
    let defaults = "on_unknown = \"rerun\"\nupstream_timeout = \"2s\"";
    Setup::new(&upstream.url()).defaults(defaults).start().await
}

fn order() -> ClientRequest {
    charge("k", ORDER)
}

#[tokio::test]
async fn a_zombie_that_wakes_up_after_its_successor_writes_nothing() {
    let service = Service::new(Pause::Before);
    let upstream = service.upstream().await;
    let gateway = gateway(&upstream).await;
    gateway.send(order()).await.assert_problem(504, "upstream-timeout");
    let second = gateway.send(order()).await;
    assert_eq!((second.status.as_u16(), second.text()), (200, "attempt 2"));
    service.gate.open();
    wait_until(|| service.ended() == 2).await;
    assert_eq!(service.writes(), ("2".to_owned(), 1));
    gateway.send(order()).await.assert_replay_of(&second);
    gateway.assert_clean_shutdown().await;
}

/// The claim of the fence locks its row, so the later attempt sees what the zombie committed.
#[tokio::test]
async fn a_successor_waits_for_a_zombie_in_its_transaction_and_finds_its_write() {
    let service = Service::new(Pause::Inside);
    let upstream = service.upstream().await;
    let gateway = gateway(&upstream).await;
    gateway.send(order()).await.assert_problem(504, "upstream-timeout");
    let waits = format!(
        "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = '{}'",
        service.database
    );
    let (second, ()) = tokio::join!(gateway.send(order()), async {
        let (server, gate) = (service.server, service.gate.clone());
        let waited = tokio::task::spawn_blocking(move || server.wait_for(&waits));
        waited.await.unwrap();
        gate.open();
    });
    assert_eq!((second.status.as_u16(), second.text()), (200, "attempt 1"));
    wait_until(|| service.ended() == 2).await;
    assert_eq!(service.writes(), ("1".to_owned(), 0));
    gateway.send(order()).await.assert_replay_of(&second);
    gateway.assert_clean_shutdown().await;
}
