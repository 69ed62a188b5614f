//! `semel doctor` on real servers, healthy and misconfigured.

use semel_testkit::servers::{self, PgBouncer, Postgres, Redis};
use serde_json::Value;

use crate::harness::{CommandOutput, made, on, semel};

/// The finding of one check: the level, the text, the suggested commands.
fn finding(output: &CommandOutput, what: &str) -> (String, String, Vec<String>) {
    let found = output.json().into_iter().find(|line| line["about"] == what);
    let found = found.unwrap_or_else(|| panic!("no finding about {what}: {output:?}"));
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let change = found["change"].as_array().map(|list| list.iter().map(text).collect());
    (text(&found["level"]), text(&found["found"]), change.unwrap_or_default())
}

fn level(output: &CommandOutput, what: &str) -> String {
    finding(output, what).0
}

#[test]
fn a_role_without_a_grant_gets_the_command_that_gives_it() {
    let (_, schema) = made();
    let server = servers::postgres();
    let sql = |sql: &str| server.sql("postgres", sql);
    sql(&format!("CREATE ROLE tenant LOGIN; GRANT USAGE ON SCHEMA {schema} TO tenant"));
    let url = format!("{}?schema={schema}&migrate=off", server.url_as("tenant", "postgres"));
    let output = on(&url, &["doctor", "--json"]);
    let (level, _, commands) = finding(output.assert_exit(5), "grants");
    assert_eq!((level.as_str(), commands.len()), ("error", 12), "{commands:?}");
    commands.iter().for_each(|command| drop(sql(command)));
    let well = on(&url, &["doctor", "--json"]);
    assert!(well.assert_exit(0).json().iter().all(|line| line["level"] == "fine"), "{well:?}");
    assert_eq!(finding(&well, "role").1, "tenant");

    sql(&format!("REVOKE USAGE ON SCHEMA {schema} FROM tenant"));
    let output = on(&url, &["doctor", "--json"]);
    let (_, _, commands) = finding(output.assert_exit(5), "grants");
    assert_eq!(commands, [format!("GRANT USAGE ON SCHEMA \"{schema}\" TO \"tenant\";")]);
}

#[test]
fn the_report_shows_the_command_that_fixes_a_finding() {
    let (url, schema) = made();
    let table = format!("{schema}.semel_records");
    servers::postgres()
        .sql("postgres", &format!("ALTER TABLE {table} SET (autovacuum_enabled = off)"));
    let output = on(&url, &["doctor"]);
    let upkeep = output.assert_exit(5).stdout.lines().skip_while(|line| !line.contains(" upkeep "));
    let upkeep: Vec<&str> = upkeep.take(2).map(str::trim).collect();
    assert!(upkeep[0].starts_with("error    upkeep       autovacuum is off"), "{output:?}");
    servers::postgres().sql("postgres", upkeep[1]);
    assert_eq!(level(&on(&url, &["doctor", "--json"]), "upkeep"), "fine");
    assert!(output.stdout.contains("postgres is a superuser"), "{output:?}");
    for what in ["version", "durability", "commit", "clock", "schema", "size", "open"] {
        assert_eq!(level(&on(&url, &["doctor", "--json"]), what), "fine", "{what}");
    }
}

#[test]
fn a_server_that_can_lose_commits_is_an_error() {
    let server = Postgres::start(&[("fsync", "off"), ("synchronous_commit", "off")]);
    let url = server.url("postgres");
    let none = on(&url, &["doctor", "--json"]);
    assert_eq!(level(none.assert_exit(5), "schema"), "error", "there is no store yet");
    assert_eq!(level(&none, "durability"), "error");
    let (level_of_commit, found, _) = finding(&none, "commit");
    assert_eq!(level_of_commit, "fine", "the store sets it");
    assert!(found.contains("is off"), "{found}");

    server.sql("postgres", "ALTER SYSTEM SET synchronous_standby_names = 'absent'");
    server.sql("postgres", "SELECT pg_reload_conf()");
    server.wait_for("SELECT 1 WHERE current_setting('synchronous_standby_names') <> ''");
    let waits = on(&url, &["doctor", "--json"]);
    let (level, found, _) = finding(waits.assert_exit(5), "standby");
    assert!(level == "error" && found.contains("every write hangs"), "{found}");

    let pooler = PgBouncer::start(&server);
    let refused = on(&pooler.url("postgres"), &["doctor", "--json"]);
    assert!(refused.assert_exit(1).stderr.contains("SET synchronous_commit = on"), "{refused:?}");
}

#[test]
fn an_asynchronous_standby_is_a_warning_and_a_synchronous_one_is_fine() {
    let server = Postgres::start(&[]);
    let standby = server.asynchronous_standby();
    let url = server.url("postgres");
    on(&url, &["migrate"]).assert_exit(0);
    assert_eq!(finding(&on(&url, &["doctor", "--json"]), "standby").0, "warning", "asynchronous");
    server.sql("postgres", "ALTER SYSTEM SET synchronous_standby_names = '*'");
    server.sql("postgres", "SELECT pg_reload_conf()");
    server.wait_for("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'");
    let (level, found, _) = finding(&on(&url, &["doctor", "--json"]), "standby");
    assert!(level == "fine" && found.starts_with("synchronous"), "{found}");
    let refused = on(&standby.url("postgres"), &["doctor"]);
    assert!(refused.assert_exit(1).stderr.contains("does not allow writes"), "{refused:?}");
}

#[test]
fn a_pooler_is_detected() {
    let (url, schema) = made();
    let pooler = PgBouncer::start(servers::postgres());
    let pooled = format!("{}?schema={schema}", pooler.url("postgres"));
    let direct = finding(&on(&url, &["doctor", "--json"]), "connection").1;
    let through = finding(&on(&pooled, &["doctor", "--json"]), "connection").1;
    assert!(direct.starts_with("direct"), "{direct}");
    assert!(through.starts_with("through a pooler"), "{through}");
}

#[test]
fn the_cache_is_checked_too() {
    let (url, _) = made();
    let mut redis = Redis::start();
    let check = |redis: &Redis| on(&url, &["doctor", "--json", "--cache", &redis.url()]);
    let output = check(&redis);
    assert_eq!(level(output.assert_exit(5), "cache"), "fine");
    let (level_of_memory, _, commands) = finding(&output, "memory");
    assert_eq!(level_of_memory, "warning");
    commands.iter().for_each(|command| drop(redis.command(command)));
    assert_eq!(level(&check(&redis), "memory"), "fine");
    redis.kill();
    let (level, found, _) = finding(&check(&redis), "cache");
    assert!(level == "warning" && found.contains("work without it"), "{found}");
}

#[test]
fn a_store_that_cannot_be_opened_is_a_failure() {
    let output = on("postgres://semel@127.0.0.1:1/none", &["doctor", "--json"]);
    assert!(output.assert_exit(1).stderr.contains("cannot be checked"), "{output:?}");
    assert!(
        semel(&["doctor", "--store", "sqlite:none.db"], &[])
            .assert_exit(1)
            .stderr
            .contains("no store")
    );
    assert!(
        semel(&["doctor", "--store", "memory:"], &[]).assert_exit(1).stderr.contains("in memory")
    );
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("semel.db");
    drop(semel_sqlite::SqliteStore::open(&file).unwrap());
    let output = on(&format!("sqlite:{}", file.display()), &["doctor"]);
    assert!(output.assert_exit(0).stdout.contains("semel.db opens"), "{output:?}");
}
