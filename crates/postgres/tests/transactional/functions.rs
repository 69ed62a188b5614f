//! The SQL functions for programs in other languages, beside this library on the same table.

use semel::{OnceErrorKind, Outcome};
use semel_postgres::transactional::FUNCTIONS;
use tokio_postgres::{Client, Config, NoTls, Row, error::SqlState};

use crate::harness::TestDatabase;

/// A program in another language: it has SQL, and nothing else.
struct SqlProgram(Client);

impl SqlProgram {
    async fn on(db: &TestDatabase) -> Self {
        db.admin.batch_execute(FUNCTIONS).await.unwrap();
        let (client, connection) = db.url.parse::<Config>().unwrap().connect(NoTls).await.unwrap();
        tokio::spawn(connection);
        Self(client)
    }

    async fn run(&self, sql: &str) {
        self.0.batch_execute(sql).await.unwrap();
    }

    async fn try_begin(&self, key: &str) -> Result<Row, tokio_postgres::Error> {
        let begin = "SELECT * FROM semel_begin('orders', 'shop-3', $1)";
        self.0.query_one(begin, &[&key]).await
    }

    /// The outcome, and the result of a replay.
    async fn begin(&self, key: &str) -> (String, Option<String>) {
        let row = self.try_begin(key).await.unwrap();
        (row.get("outcome"), row.get("result"))
    }

    /// Begins an operation that is free, and returns its claim.
    async fn claim(&self, key: &str) -> String {
        let row = self.try_begin(key).await.unwrap();
        assert_eq!(row.get::<_, &str>("outcome"), "execute");
        assert!(row.get::<_, i64>("fence") > 1_700_000_000_000_000);
        row.get("claim")
    }

    async fn try_record(&self, claim: &str, result: &str) -> Result<(), tokio_postgres::Error> {
        self.0.execute("SELECT semel_record($1, $2)", &[&claim, &result]).await.map(drop)
    }

    /// Runs an operation in a transaction of its own.
    async fn write(&self, key: &str) {
        self.run("BEGIN").await;
        let claim = self.claim(key).await;
        self.0.execute("INSERT INTO ledger (entry) VALUES ($1)", &[&key]).await.unwrap();
        self.try_record(&claim, &format!("\"{key}\"")).await.unwrap();
        self.run("COMMIT").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operation_runs_once_whether_rust_or_sql_runs_it() {
    let db = TestDatabase::new().await;
    let (sql, rust) = (SqlProgram::on(&db).await, db.process(2));
    sql.write("by-sql").await;
    let outcome = rust.write("by-sql").await;
    assert!(matches!(&outcome, Outcome::Replayed(entry) if entry == "by-sql"), "{outcome:?}");
    assert!(matches!(rust.write("by-rust").await, Outcome::Ran(_)));
    assert_eq!(sql.begin("by-rust").await, ("replay".to_owned(), Some("\"by-rust\"".to_owned())));
    assert_eq!(sql.begin("by-sql").await, ("replay".to_owned(), Some("\"by-sql\"".to_owned())));
    assert_eq!(db.entries().await, ["by-rust", "by-sql"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_result_is_null_and_a_result_that_is_no_text_is_none() {
    let db = TestDatabase::new().await;
    let sql = SqlProgram::on(&db).await;
    sql.run("BEGIN").await;
    let claim = sql.claim("null").await;
    let none: Option<&str> = None;
    sql.0.execute("SELECT semel_record($1, $2)", &[&claim, &none]).await.unwrap();
    sql.run("COMMIT").await;
    assert_eq!(sql.begin("null").await, ("replay".to_owned(), Some("null".to_owned())));

    sql.write("bytes").await;
    for bytes in ["ff", "00"] {
        let append = format!("answer || '\\x{bytes}'");
        sql.run(&format!("UPDATE semel_transactional SET answer = {append} WHERE key = 'bytes'"))
            .await;
        assert_eq!(sql.begin("bytes").await, ("replay".to_owned(), None), "{bytes}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rust_and_sql_wait_for_each_other() {
    let db = TestDatabase::new().await;
    let (sql, rust) = (SqlProgram::on(&db).await, db.process(2));
    sql.run("BEGIN").await;
    sql.claim("k").await;
    let rival = rust.once("k").wait(std::time::Duration::ZERO);
    let outcome = rival.run(async |_| Ok("rival".to_owned())).await.unwrap();
    assert!(matches!(outcome, Outcome::InProgress), "{outcome:?}");
    sql.run("ROLLBACK").await;
    let (started, begun) = tokio::sync::oneshot::channel();
    let (finish, finished) = tokio::sync::oneshot::channel::<()>();
    let running = rust.once("k").run(move |_| async move {
        let _ = started.send(());
        let _ = finished.await;
        Ok("rust".to_owned())
    });
    let running = tokio::spawn(running);
    begun.await.unwrap();
    assert_eq!(sql.begin("k").await, ("in-progress".to_owned(), None));
    finish.send(()).unwrap();
    assert!(matches!(running.await.unwrap().unwrap(), Outcome::Ran(_)));
    assert_eq!(sql.begin("k").await.1.as_deref(), Some("\"rust\""));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_is_refused_outside_of_its_transaction_and_table() {
    let db = TestDatabase::new().await;
    let sql = SqlProgram::on(&db).await;
    let refused = |result: Result<(), tokio_postgres::Error>| {
        let error = result.unwrap_err();
        let error = error.as_db_error().unwrap();
        (error.code().clone(), error.message().to_owned())
    };
    // Without BEGIN, each statement is a transaction.
    let claim = sql.claim("k").await;
    let (code, message) = refused(sql.try_record(&claim, "1").await);
    assert_eq!(code, SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
    assert!(message.contains("not begun in this transaction"), "{message}");
    // The functions of another schema use the table of that schema.
    let table = "CREATE SCHEMA tenant; SET search_path = tenant; \
                 CREATE TABLE semel_transactional (LIKE public.semel_transactional INCLUDING ALL)";
    sql.run(table).await;
    sql.run(FUNCTIONS).await;
    sql.run("SET search_path = public; BEGIN").await;
    let claim = sql.claim("k").await;
    let elsewhere = "SELECT tenant.semel_record($1, '1')";
    let elsewhere = sql.0.execute(elsewhere, &[&claim]).await.map(drop);
    assert_eq!(refused(elsewhere).0, SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
    sql.run("ROLLBACK; BEGIN; SET LOCAL search_path = tenant, public").await;
    // By its name, a function is found that keeps its own table.
    let row = sql.0.query_one("SELECT * FROM public.semel_begin('s', '', 'k')", &[]).await.unwrap();
    let claim: String = row.get("claim");
    sql.0.execute("SELECT public.semel_record($1)", &[&claim]).await.unwrap();
    sql.run("COMMIT; RESET search_path").await;
    let count = "SELECT count(*) FROM public.semel_transactional WHERE scope = 's'";
    assert_eq!(db.admin.query_one(count, &[]).await.unwrap().get::<_, i64>(0), 1);
    // A transaction that records twice, or after another one, is rolled back.
    sql.run("BEGIN").await;
    let claim = sql.claim("twice").await;
    sql.try_record(&claim, "1").await.unwrap();
    assert_eq!(refused(sql.try_record(&claim, "1").await).0, SqlState::UNIQUE_VIOLATION);
    sql.run("ROLLBACK").await;
    assert_eq!(sql.begin("twice").await.0, "execute");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_recorded_is_refused_with_advice() {
    let db = TestDatabase::new().await;
    let sql = SqlProgram::on(&db).await;
    for (arguments, message) in [
        ("'Orders', '', 'k'", "semel_begin: `Orders` cannot name a scope"),
        ("NULL, '', 'k'", "semel_begin: `<NULL>` cannot name a scope"),
        ("'orders', E'a\\tb', 'k'", "semel_begin: the caller is not valid"),
        ("'orders', NULL, 'k'", "semel_begin: the caller is not valid"),
        ("'orders', '', 'a b'", "semel_begin: the key is not valid"),
        ("'orders', '', 'ü'", "semel_begin: the key is not valid"),
        ("'orders', '', repeat('k', 256)", "semel_begin: the key is not valid"),
        ("'orders', '', 'k', 'short'", "semel_begin: the fingerprint is not a SHA-256"),
    ] {
        let begin = format!("SELECT semel_begin({arguments})");
        let error = sql.0.batch_execute(&begin).await.unwrap_err();
        let error = error.as_db_error().unwrap();
        assert_eq!((error.code(), error.message()), (&SqlState::INVALID_PARAMETER_VALUE, message));
        assert!(error.hint().is_some(), "{message}");
    }
    for (arguments, code) in [
        ("$1, '{'", SqlState::INVALID_TEXT_REPRESENTATION),
        ("$1, '1', 500", SqlState::INVALID_PARAMETER_VALUE),
        ("$1, '1', 200, '0 hours'", SqlState::INVALID_PARAMETER_VALUE),
        ("$1 || 'x', '1'", SqlState::INVALID_TEXT_REPRESENTATION),
    ] {
        sql.run("BEGIN").await;
        let claim = sql.claim("k").await;
        let record = format!("SELECT semel_record({arguments})");
        let error = sql.0.execute(&record, &[&claim]).await.unwrap_err();
        assert_eq!(error.code(), Some(&code), "{arguments}: {error:?}");
        sql.run("ROLLBACK").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn results_of_every_kind_are_replayed_until_their_retention_ends() {
    let db = TestDatabase::new().await;
    let (sql, rust) = (SqlProgram::on(&db).await, db.process(1));
    sql.run("BEGIN").await;
    let claim = sql.claim("declined").await;
    let decline = "SELECT semel_record($1, '\"no funds\"', status => 422)";
    sql.0.execute(decline, &[&claim]).await.unwrap();
    sql.run("COMMIT").await;
    let row = sql.try_begin("declined").await.unwrap();
    assert_eq!((row.get("status"), row.get("result")), (422, Some("\"no funds\"")));
    let outcome = rust.write("declined").await;
    assert!(matches!(outcome, Outcome::Refused(_)), "{outcome:?}");

    sql.run("BEGIN").await;
    let claim = sql.claim("large").await;
    sql.try_record(&claim, &format!("\"{}\"", "x".repeat(1 << 20))).await.unwrap();
    sql.run("COMMIT").await;
    assert_eq!(sql.begin("large").await, ("replay".to_owned(), None));
    let error = rust.try_to_write("large").await.unwrap_err();
    assert_eq!(error.kind(), OnceErrorKind::NotRetained);

    let another = "SELECT outcome FROM semel_begin('orders', 'shop-3', 'large', sha256('other'))";
    let row = sql.0.query_one(another, &[]).await.unwrap();
    assert_eq!(row.get::<_, &str>("outcome"), "key-reused");

    sql.run("BEGIN").await;
    let claim = sql.claim("short").await;
    let short = "SELECT semel_record($1, '1', retention => '1 millisecond')";
    sql.0.execute(short, &[&claim]).await.unwrap();
    sql.run("COMMIT; SELECT pg_sleep(0.01)").await;
    sql.write("short").await;
    assert_eq!(sql.begin("short").await.1.as_deref(), Some("\"short\""));
}

/// The layer records headers and trailers, and bodies longer than 127 bytes.
#[tokio::test(flavor = "multi_thread")]
async fn the_body_of_an_http_answer_is_found_behind_its_headers() {
    use semel::core::Answer;

    let db = TestDatabase::new().await;
    let sql = SqlProgram::on(&db).await;
    let (long, body) = ([b'h'; 300], b"{\"order\":7}");
    let headers: Vec<(&[u8], &[u8])> = vec![(b"location", &long), (b"etag", b"\"1\"")];
    for (key, headers, trailers) in
        [("none", &[][..], &[][..]), ("some", &headers[..], &headers[..1]), ("many", &headers, &[])]
    {
        sql.write(key).await;
        let answer = Answer::encode(201, headers, trailers, body);
        let change = "UPDATE semel_transactional SET answer = $1 WHERE key = $2";
        sql.0.execute(change, &[&&answer.as_bytes()[..], &key]).await.unwrap();
        let row = sql.try_begin(key).await.unwrap();
        assert_eq!((row.get("status"), row.get("result")), (201, Some("{\"order\":7}")), "{key}");
    }
}
