//! `semel migrate`, and what happens without it.

use semel_testkit::servers;

use crate::harness::{made, on, semel};

#[test]
fn a_store_is_made_once() {
    let server = servers::postgres();
    let url = format!("{}?schema=money", server.url(&server.fresh_database()));
    assert_eq!(on(&url, &["migrate"]).is(0).out, "done: the store is made, version 2\n");
    let again = on(&url, &["migrate"]);
    assert_eq!(again.is(0).out, "nothing to do: the store has version 2\n");
    let json = on(&url, &["migrate", "--json"]).is(0).json();
    assert_eq!(json, [serde_json::json!({ "from": 2, "to": 2 })]);
}

#[test]
fn the_printed_sql_makes_a_store_when_another_role_runs_it() {
    let server = servers::postgres();
    let database = server.fresh_database();
    let url = format!("{}?schema=money", server.url(&database));
    let sql = on(&url, &["migrate", "--print"]).is(0).out.clone();
    assert!(on(&url, &["list"]).is(1).err.contains("semel migrate"), "nothing was made yet");
    server.sql(&database, &sql);
    assert_eq!(on(&url, &["list"]).is(0).out, "no such records\n");
    assert!(on(&url, &["migrate"]).is(0).out.starts_with("nothing to do"));
}

#[test]
fn printing_needs_no_server() {
    let said = on("postgres://unknown@127.0.0.1:1/none?schema=money", &["migrate", "--print"]);
    assert!(said.is(0).out.contains("CREATE TABLE \"money\".\"semel_records\""), "{}", said.out);
}

#[test]
fn an_operators_command_makes_no_store() {
    let url = servers::postgres().fresh_schema_url();
    let (_, schema) = url.split_once("?schema=").unwrap();
    for words in [&["list"][..], &["inspect", "k"], &["sweep", "--yes"]] {
        let said = on(&url, words);
        assert!(said.is(1).err.contains("run `semel migrate`"), "{said:?}");
    }
    let tables = format!("SELECT count(*) FROM pg_tables WHERE schemaname = '{schema}'");
    assert_eq!(servers::postgres().sql("postgres", &tables), "0");
}

#[test]
fn only_a_server_is_migrated_and_its_url_is_read_with_care() {
    assert!(on("sqlite:semel.db", &["migrate"]).is(1).err.contains("when it is opened"));
    let said = semel(&["migrate", "--store", "postgres://a/b?shema=x"], &[]);
    assert!(said.is(1).err.contains("did you mean `schema`?"), "{said:?}");
    let said = semel(&["list", "--store", "postgres://u:hunter2@a/b"], &[]);
    assert!(said.is(1).err.contains("PGPASSWORD") && !said.err.contains("hunter2"), "{said:?}");
    semel(&["migrate"], &[]).is(2);
}

#[test]
fn the_operators_commands_lead_to_each_other() {
    let (url, _) = made();
    let held = on(&url, &["list", "--state", "held", "--json"]);
    assert_eq!((held.is(0).out.as_str(), held.err.as_str()), ("", ""));
    on(&url, &["inspect", "k"]).is(3);
    assert_eq!(on(&url, &["sweep", "--yes"]).is(0).out, "done: 0 deleted\n");
}
