//! `semel migrate`, and what happens without it.

use semel_testkit::servers;

use crate::harness::{made, on, semel};

#[test]
fn a_store_is_made_once() {
    let server = servers::postgres();
    let url = format!("{}?schema=money", server.url(&server.fresh_database()));
    assert_eq!(
        on(&url, &["migrate"]).assert_exit(0).stdout,
        "done: the store is made, version 3\n"
    );
    let again = on(&url, &["migrate"]);
    assert_eq!(again.assert_exit(0).stdout, "nothing to do: the store has version 3\n");
    let json = on(&url, &["migrate", "--json"]).assert_exit(0).json();
    assert_eq!(json, [serde_json::json!({ "from": 3, "to": 3 })]);
}

#[test]
fn the_printed_sql_makes_a_store_when_another_role_runs_it() {
    let server = servers::postgres();
    let database = server.fresh_database();
    let url = format!("{}?schema=money", server.url(&database));
    let sql = on(&url, &["migrate", "--print"]).assert_exit(0).stdout.clone();
    assert!(
        on(&url, &["list"]).assert_exit(1).stderr.contains("semel migrate"),
        "nothing was made yet"
    );
    server.sql(&database, &sql);
    assert_eq!(on(&url, &["list"]).assert_exit(0).stdout, "no record matches\n");
    assert!(on(&url, &["migrate"]).assert_exit(0).stdout.starts_with("nothing to do"));
}

#[test]
fn printing_needs_no_server() {
    let output = on("postgres://unknown@127.0.0.1:1/none?schema=money", &["migrate", "--print"]);
    assert!(
        output.assert_exit(0).stdout.contains("CREATE TABLE \"money\".\"semel_records\""),
        "{}",
        output.stdout
    );
}

#[test]
fn the_functions_for_other_languages_need_no_store() {
    let server = servers::postgres();
    let database = server.fresh_database();
    let url = format!("{}?schema=shop", server.url(&database));
    let install = ["migrate", "--transactional"];
    for _ in 0..2 {
        let done = on(&url, &install);
        let expected = "done: semel_begin and semel_record are in the schema `shop`\n";
        assert_eq!(done.assert_exit(0).stdout, expected);
    }
    let printed = on(&url, &[&install[..], &["--print"]].concat());
    server.sql(&database, &printed.assert_exit(0).stdout);
    let begin = "SELECT outcome FROM shop.semel_begin('orders', 'shop-3', 'k-1')";
    assert_eq!(server.sql(&database, begin), "execute");
    let json = on(&url, &[&install[..], &["--json"]].concat()).assert_exit(0).json();
    assert_eq!(json, [serde_json::json!({ "schema": "shop" })]);
    // They are no trace of a store.
    let made = on(&url, &["migrate"]);
    assert_eq!(made.assert_exit(0).stdout, "done: the store is made, version 3\n");
    assert!(on("sqlite:semel.db", &install).assert_exit(1).stderr.contains("PostgreSQL only"));
    on(&url, &[&install[..], &["--new-store"]].concat()).assert_exit(2);
}

#[test]
fn an_operators_command_makes_no_store() {
    let url = servers::postgres().fresh_schema_url();
    let (_, schema) = url.split_once("?schema=").unwrap();
    for words in [&["list"][..], &["inspect", "k"], &["sweep", "--yes"]] {
        let output = on(&url, words);
        assert!(output.assert_exit(1).stderr.contains("run `semel migrate`"), "{output:?}");
    }
    let tables = format!("SELECT count(*) FROM pg_tables WHERE schemaname = '{schema}'");
    assert_eq!(servers::postgres().sql("postgres", &tables), "0");
}

#[test]
fn only_a_server_is_migrated_and_its_url_is_read_with_care() {
    assert!(
        on("sqlite:semel.db", &["migrate"]).assert_exit(1).stderr.contains("when it is opened")
    );
    let output = semel(&["migrate", "--store", "postgres://a/b?shema=x"], &[]);
    assert!(output.assert_exit(1).stderr.contains("did you mean `schema`?"), "{output:?}");
    let output = semel(&["list", "--store", "postgres://u:hunter2@a/b"], &[]);
    assert!(
        output.assert_exit(1).stderr.contains("PGPASSWORD") && !output.stderr.contains("hunter2"),
        "{output:?}"
    );
    semel(&["migrate"], &[]).assert_exit(2);
}

#[test]
fn the_operators_commands_lead_to_each_other() {
    let (url, _) = made();
    let held = on(&url, &["list", "--state", "held", "--json"]);
    assert_eq!((held.assert_exit(0).stdout.as_str(), held.stderr.as_str()), ("", ""));
    on(&url, &["inspect", "k"]).assert_exit(3);
    assert_eq!(on(&url, &["sweep", "--yes"]).assert_exit(0).stdout, "done: 0 deleted\n");
}
