//! `semel operations` and `semel migrate --steps`, with the real program on real databases.
#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

#[path = "common/command.rs"]
mod command;

use std::time::Duration;

use rusqlite::Connection;
use semel_steps::{
    OperationStore, PgOperations, SqliteOperations,
    store::{NewOperation, OperationEnd, OwnedOperation, StepPart, StepRow, StepState, StepWrite},
};
use semel_testkit::{program::CommandOutput, servers};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::command::semel_command;

/// Runs `semel` on a database, in a folder of its own.
fn semel(folder: &TempDir, args: &[&str]) -> CommandOutput {
    CommandOutput::of(semel_command().current_dir(folder.path()).env("USER", "ada").args(args))
}

/// Parks an operation whose second step has an unknown outcome.
async fn parked(store: &impl OperationStore) -> i64 {
    let lease = Duration::from_secs(60);
    let (name, key, input) = ("checkout", "order-17", r#"{"cents":9007199254740993}"#);
    let new = NewOperation { name, version: 1, key, input, owner: 1, lease };
    let started = store.start(&new).await.unwrap();
    let owned = OwnedOperation { id: started.id, fence: started.fence };
    for (position, name, state) in [(1, "charge", StepState::Done), (2, "mail", StepState::Begun)] {
        let result = (state == StepState::Done).then(|| "\"ch_1\"".to_owned());
        let name = name.to_owned();
        let own = StepRow { name, part: StepPart::Do, state, result, position };
        store.step(owned, &StepWrite { own, noted: Vec::new() }).await.unwrap();
    }
    let end = OperationEnd::Parked("`mail` is unknown".to_owned());
    store.finish(owned, &end).await.unwrap();
    started.id
}

/// What an operator does, from the list to the undo.
fn is_operated(folder: &TempDir, url: &str, id: i64) {
    let id = id.to_string();
    let on = |verb: &str, rest: &[&str]| {
        semel(folder, &[&["operations", verb, "--database", url], rest].concat())
    };
    let listed = on("list", &["--state", "parked"]);
    let line = &listed.assert_exit(0).stdout;
    assert!(line.contains("checkout 1  order-17  forward"), "{line}");
    assert!(line.contains("`mail` is unknown"), "{line}");
    let shown = on("list", &[&id, "--json"]).assert_exit(0).json();
    let steps = &shown[0]["steps"];
    assert_eq!(steps[0]["result"], "\"ch_1\"");
    assert_eq!(
        steps[1],
        json!({ "name": "mail", "part": "do", "state": "begun",
        "result": Value::Null, "position": 2 })
    );
    let input = shown[0]["operation"]["input"].as_str().unwrap();
    assert_eq!(input, r#"{"cents":9007199254740993}"#, "no number passes through a double");

    let wrong = on("resume", &[&id, "--step", "charge", "--absent"]);
    assert!(wrong.assert_exit(4).stderr.contains("no step `charge` whose outcome is unknown"));
    assert!(on("resume", &[&id, "--step", "mail", "--result", "{"]).stderr.contains("is JSON"));
    let resumed = on("resume", &[&id, "--step", "mail", "--result", "\"sent\"", "--why", "seen"]);
    assert_eq!(
        resumed.assert_exit(0).stdout,
        format!("done: operation {id} is running, forward\n")
    );
    let parked = on("park", &[&id, "--why", "wait for Monday", "--json"]).assert_exit(0).json();
    assert_eq!(parked[0]["operation"]["state"], "parked");
    assert_eq!(parked[0]["operation"]["reason"], "wait for Monday");
    on("park", &[&id]).assert_exit(4);
    let undone = on("undo", &[&id]);
    assert_eq!(
        undone.assert_exit(0).stdout,
        format!("done: operation {id} is running, backward\n")
    );
    on("undo", &["4711"]).assert_exit(3);
}

#[test]
fn operations_in_a_file_are_listed_resumed_parked_and_undone() {
    let folder = tempfile::tempdir().unwrap();
    let url = "sqlite:shop.db";
    let made = semel(&folder, &["migrate", "--steps", "--store", url]);
    assert_eq!(made.assert_exit(0).stdout, "done: semel_operation and semel_step are in shop.db\n");
    let missing = semel(&folder, &["operations", "list", "--database", "sqlite:missing.db"]);
    assert!(missing.assert_exit(1).stderr.contains("missing.db cannot be opened"));
    let file = Connection::open(folder.path().join("shop.db")).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let id = runtime.block_on(parked(&SqliteOperations::on(file).unwrap()));
    is_operated(&folder, url, id);
    let audit = std::fs::read_to_string(folder.path().join("shop.db.audit.jsonl"));
    let audit = audit.unwrap_or_else(|_| {
        panic!(
            "{:?}",
            std::fs::read_dir(folder.path())
                .unwrap()
                .map(|file| file.unwrap().file_name())
                .collect::<Vec<_>>()
        )
    });
    assert!(audit.contains("operation-settle") && audit.contains("seen"), "{audit}");
}

#[test]
fn operations_in_a_schema_of_postgres_are_listed_resumed_parked_and_undone() {
    let folder = tempfile::tempdir().unwrap();
    let server = servers::postgres();
    let url = format!("{}?schema=shop", server.url(&server.fresh_database()));
    for _ in 0..2 {
        let made = semel(&folder, &["migrate", "--steps", "--store", &url]);
        let expected = "done: semel_operation and semel_step are in the schema `shop`\n";
        assert_eq!(made.assert_exit(0).stdout, expected);
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let id = runtime.block_on(async {
        let pool = semel_postgres::Options::parse(&url).unwrap().pool(1).unwrap();
        parked(&PgOperations::new(pool)).await
    });
    is_operated(&folder, &url, id);
}
