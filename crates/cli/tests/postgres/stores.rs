//! Creation, backup and restore of a store in PostgreSQL.

use std::{fs, time::Duration};

use semel_testkit::servers;

use crate::{
    common::{ORDER, Records, Setup, Upstream, charge, send, wait_until},
    harness::{on, semel},
};

fn setup(url: &str, upstream: &Upstream) -> Setup {
    Setup::on_store(Records::Postgres(url.to_owned()), &upstream.url())
}

#[tokio::test]
async fn a_mistyped_schema_does_not_create_a_new_store() {
    let (upstream, server) = (Upstream::plain().await, servers::postgres());
    let database = server.fresh_database();
    let url = |schema: &str| format!("{}?schema={schema}", server.url(&database));
    let gateway = setup(&url("money"), &upstream).start().await;
    gateway.wait_for_log("created a new store").await;
    gateway.send(charge("k", ORDER)).await;
    gateway.assert_clean_shutdown().await;
    let again = setup(&url("money"), &upstream).start().await;
    assert!(!again.log_lines().iter().any(|line| line.contains("created a new store")));
    again.assert_clean_shutdown().await;

    let refused = setup(&url("mony"), &upstream).spawn();
    assert_eq!(refused.wait_for_exit().await.code(), Some(1));
    refused.wait_for_log("the table money.semel_meta of another store").await;
    let log = refused.log_lines().join("\n");
    let (_, command) = log.split_once("an empty store instead: semel ").unwrap();
    assert_eq!(command, format!("migrate --new-store --store '{}'", url("mony")));
    let plain = on(&url("mony"), &["migrate"]);
    assert!(plain.assert_exit(1).stderr.contains("--new-store"), "{plain:?}");
    let schemas = "SELECT count(*) FROM pg_namespace WHERE nspname = 'mony'";
    assert_eq!(server.sql(&database, schemas), "0", "no schema was created");

    let made = on(&url("mony"), &["migrate", "--new-store", "--json"]).assert_exit(0).json();
    assert_eq!(made[0]["store_id"].as_str().unwrap().len(), 32);
    let there = on(&url("mony"), &["migrate", "--new-store"]);
    assert!(there.assert_exit(1).stderr.contains("already"), "{there:?}");
    setup(&url("mony"), &upstream).start().await.assert_clean_shutdown().await;
}

/// A request on a route that the store does not remember could run again after the next start.
#[tokio::test]
async fn a_request_waits_until_the_store_has_recorded_the_routes() {
    let (upstream, server) = (Upstream::plain().await, servers::postgres());
    let database = server.fresh_database();
    let setup = setup(&server.url(&database), &upstream);
    setup.start().await.assert_clean_shutdown().await;
    // An address of this test's own: on 127.0.0.1 another process may take the port meanwhile.
    let free = std::net::TcpListener::bind("127.77.0.1:0").unwrap().local_addr().unwrap();
    let (mut admin, connection) =
        tokio_postgres::connect(&server.url(&database), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let lock = admin.transaction().await.unwrap();
    lock.batch_execute("LOCK TABLE semel_metadata IN EXCLUSIVE MODE").await.unwrap();

    // Another retention, so that the store has something to remember.
    let setup = setup.defaults("retention = \"2h\"").argument("--listen");
    let setup = setup.argument(&free.to_string());
    let gateway = setup.spawn();
    let blocked = "SELECT 1 FROM pg_locks WHERE NOT granted AND relation = \
                   'semel_metadata'::regclass";
    let is_blocked = || !server.sql(&database, blocked).is_empty();
    wait_until(is_blocked).await;
    // The address is bound, so the client is connected and waits.
    let sending = tokio::spawn(send(free, charge("k", ORDER)));
    // Real time must pass: a request that is forwarded too early has arrived by then.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!((upstream.request_count(), is_blocked()), (0, true));
    lock.rollback().await.unwrap();
    assert_eq!(sending.await.unwrap().status, 201);
    gateway.signal("TERM");
    assert!(gateway.wait_for_exit().await.success());
}

#[tokio::test]
async fn a_store_with_another_id_than_the_configuration_is_refused() {
    let (upstream, server) = (Upstream::plain().await, servers::postgres());
    let url = |database: &str| format!("{}?schema=money", server.url(database));
    let (one, other) = (url(&server.fresh_database()), url(&server.fresh_database()));
    let id = on(&one, &["migrate", "--new-store", "--json"]).assert_exit(0).json()[0]["store_id"]
        .clone();
    let id = id.as_str().unwrap();
    let output = on(&one, &["doctor"]).stdout;
    assert!(output.contains(&format!("store_id = \"{id}\"")), "{output}");
    let head = format!("secret_env = \"SEMEL_SECRET\"\nstore_id = \"{id}\"");
    setup(&one, &upstream).head(&head).start().await.assert_clean_shutdown().await;
    let refused = setup(&other, &upstream).head(&head).spawn();
    assert_eq!(refused.wait_for_exit().await.code(), Some(1));
    refused.wait_for_log("in the configuration").await;
    on(&other, &["migrate"]).assert_exit(0);
    let refused = setup(&other, &upstream).head(&head).spawn();
    assert_eq!(refused.wait_for_exit().await.code(), Some(1));
    refused.wait_for_log("another store than the configuration says").await;
}

#[tokio::test]
async fn a_store_is_backed_up_and_prepared_after_a_restore() {
    let (upstream, server) = (Upstream::plain().await, servers::postgres());
    let url = format!("{}?schema=money", server.url(&server.fresh_database()));
    let gateway = setup(&url, &upstream).start().await;
    gateway.send(charge("k", ORDER)).await;
    gateway.assert_clean_shutdown().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("money.dump");
    let words = ["backup", file.to_str().unwrap(), "--store", &url, "--json"];
    let installed = [("PATH", "/usr/local/bin:/usr/bin:/bin")];
    let taken = semel(&words, &installed);
    assert_eq!(taken.assert_exit(0).json()[0]["bytes"], fs::metadata(&file).unwrap().len());
    assert!(!semel(&words, &installed).assert_exit(1).stderr.is_empty(), "the file exists already");
    let without = file.with_extension("other");
    let nowhere = [("PATH", "/nowhere")];
    let output = semel(&["backup", without.to_str().unwrap(), "--store", &url], &nowhere);
    assert!(
        output.assert_exit(1).stderr.contains("on a machine that has it: pg_dump "),
        "{output:?}"
    );
    let restored = on(&url, &["migrate", "--after-restore", "--json"]).assert_exit(0).json();
    assert!(restored[0]["fence_after"].as_u64() > restored[0]["fence_before"].as_u64());
    assert!(restored[0]["epoch_after"].as_u64() > restored[0]["epoch_before"].as_u64());
    let gateway = setup(&url, &upstream).start().await;
    gateway.send(charge("l", ORDER)).await;
    assert!(
        upstream.requests_with_key("l")[0].fence() > upstream.requests_with_key("k")[0].fence()
    );
    gateway.assert_clean_shutdown().await;
}
