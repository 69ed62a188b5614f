//! The life of a store: created, lost, refused, backed up and restored.

use std::{fs, path::Path, process::Output};

use serde_json::Value;

use crate::common::{
    Gateway, ORDER, Setup, Upstream, charge, local, on_sqlite, semel_command, send,
};

/// Runs the program beside the gateways of a setup.
fn semel(setup: &Setup, words: &[&str]) -> Output {
    let mut command = semel_command();
    command.current_dir(setup.database().parent().unwrap()).args(words).output().unwrap()
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Removes a database, its log and its shared memory, and nothing else.
fn remove(database: &Path) {
    for suffix in ["", "-wal", "-shm"] {
        let mut name = database.as_os_str().to_owned();
        name.push(suffix);
        let _ = fs::remove_file(name);
    }
    assert!(!database.exists());
}

async fn age(gateway: &Gateway) -> u64 {
    let metrics = String::from_utf8(send(gateway.api(), local("/metrics")).await.body.to_vec());
    let metrics = metrics.unwrap();
    let line = metrics.lines().find_map(|line| line.strip_prefix("semel_store_age_seconds "));
    line.unwrap_or_else(|| panic!("{metrics}")).parse().unwrap()
}

#[tokio::test]
async fn a_new_store_is_logged_once_and_its_age_is_a_metric() {
    if !on_sqlite() {
        return;
    }
    let upstream = Upstream::plain().await;
    let setup = Setup::new(&upstream.url());
    for created in [1, 0] {
        let gateway = setup.start().await;
        assert!(age(&gateway).await < 3600);
        let logged = gateway.log_lines();
        let logged = logged.iter().filter(|line| line.contains("created a new store"));
        assert_eq!(logged.clone().count(), created);
        assert!(logged.clone().all(|line| line.contains("WARN") && line.contains("store_id=")));
        gateway.assert_clean_shutdown().await;
    }
}

#[tokio::test]
async fn a_lost_store_is_made_again_only_by_the_command_that_is_named() {
    if !on_sqlite() {
        return;
    }
    let upstream = Upstream::plain().await;
    let setup = Setup::new(&upstream.url());
    let gateway = setup.start().await;
    gateway.send(charge("k", ORDER)).await;
    gateway.assert_clean_shutdown().await;
    remove(&setup.database());
    let refused = setup.spawn();
    assert_eq!(refused.wait_for_exit().await.code(), Some(1));
    refused.wait_for_log("--new-store").await;
    let log = refused.log_lines().join("\n");
    assert!(log.contains("semel.db.secret (a secret that Semel wrote)"), "{log}");
    assert!(!setup.database().exists());
    let (_, command) = log.split_once("an empty store instead: semel ").unwrap();
    let words: Vec<&str> = command.split_whitespace().collect();
    let made = semel(&setup, &words);
    assert!(made.status.success(), "{made:?}");
    assert!(String::from_utf8(made.stdout).unwrap().contains("store_id = \""));
    let again = semel(&setup, &words);
    assert!(String::from_utf8(again.stderr).unwrap().contains("already"), "{:?}", again.status);
    let gateway = setup.start().await;
    gateway.send(charge("k", ORDER)).await;
    let fences: Vec<u64> = upstream.requests_with_key("k").iter().map(|run| run.fence()).collect();
    assert!(fences.len() == 2 && fences[1] > fences[0], "{fences:?}");
    gateway.assert_clean_shutdown().await;
    let audit = setup.database().with_file_name("semel.db.audit.jsonl");
    assert!(fs::read_to_string(audit).unwrap().contains("\"act\":\"new-store\""));
}

#[tokio::test]
async fn another_store_than_the_one_that_is_named_is_refused() {
    if !on_sqlite() {
        return;
    }
    let upstream = Upstream::plain().await;
    let setup = Setup::new(&upstream.url());
    setup.start().await.assert_clean_shutdown().await;
    let doctor = semel(&setup, &["doctor"]);
    let log = String::from_utf8(doctor.stdout).unwrap();
    let (_, id) = log.split_once("store_id = \"").unwrap();
    let (id, _) = id.split_once('"').unwrap();
    let head = |id: &str| format!("store = \"sqlite:semel.db\"\nstore_id = \"{id}\"");
    setup.clone().head(&head(id)).start().await.assert_clean_shutdown().await;
    let other = setup.clone().head(&head("00000000000000000000000000000000")).spawn();
    assert_eq!(other.wait_for_exit().await.code(), Some(1));
    other.wait_for_log("another store than the configuration says").await;
    // A volume that is not mounted.
    let empty = Setup::new(&upstream.url()).head(&head(id));
    let refused = empty.spawn();
    assert_eq!(refused.wait_for_exit().await.code(), Some(1));
    refused.wait_for_log("in the configuration").await;
    assert!(!empty.database().exists());
}

#[tokio::test]
async fn a_backup_is_taken_while_the_gateway_serves_and_restored() {
    if !on_sqlite() {
        return;
    }
    let upstream = Upstream::plain().await;
    let setup = Setup::new(&upstream.url());
    let gateway = setup.start().await;
    let first = gateway.send(charge("before", ORDER)).await;
    let taken = json(&semel(&setup, &["backup", "copy.db", "--json"]));
    assert!(taken["bytes"].as_u64() > Some(0), "{taken}");
    let again = semel(&setup, &["backup", "copy.db"]);
    assert!(String::from_utf8(again.stderr).unwrap().contains("exists already"));
    gateway.send(charge("lost", ORDER)).await;
    gateway.assert_clean_shutdown().await;

    remove(&setup.database());
    fs::copy(setup.database().with_file_name("copy.db"), setup.database()).unwrap();
    let refused = setup.spawn();
    assert_eq!(refused.wait_for_exit().await.code(), Some(1));
    refused.wait_for_log("semel migrate --after-restore").await;
    let words = ["migrate", "--after-restore", "--store", "sqlite:semel.db", "--json"];
    let restored = json(&semel(&setup, &words));
    assert_eq!(restored["store_id"], taken["store_id"]);
    let gateway = setup.start().await;
    gateway.send(charge("before", ORDER)).await.assert_replay_of(&first);
    gateway.send(charge("lost", ORDER)).await;
    let fences: Vec<u64> =
        upstream.requests_with_key("lost").iter().map(|run| run.fence()).collect();
    assert!(fences.len() == 2 && fences[1] > fences[0], "{fences:?}");
    assert!(Some(fences[1]) > restored["fence_after"].as_u64());
    gateway.assert_clean_shutdown().await;
}
