//! All records of one caller: deleted or exported.

use std::{fs, os::unix::fs::PermissionsExt as _};

use semel::core::{Reason, RecordId};
use serde_json::Value;

use crate::harness::{HOUR, Harness, id};

/// Records of `shop-7` in two scopes, one of them in flight, and one of another caller.
fn records(harness: &Harness) -> [RecordId; 5] {
    let ids = [
        id("payments", "shop-7", "done"),
        id("signup", "shop-7", "also-done"),
        id("payments", "shop-7", "stuck"),
        id("payments", "shop-7", "running"),
        id("payments", "shop-8", "done"),
    ];
    for at in [0, 1, 4] {
        harness.completed(&ids[at], HOUR);
    }
    let store = harness.store();
    harness.held_on(&*store, &ids[2], Reason::Answered(503));
    harness.claim(&*store, &Harness::to_claim(&ids[3]));
    ids
}

#[test]
fn all_records_of_a_caller_are_deleted_but_for_those_in_flight() {
    let harness = Harness::new();
    let ids = records(&harness);
    let delete = ["delete", "--caller", "shop-7", "--why", "the account was closed"];
    let preview = harness.run(&[&delete[..], &["--dry-run"]].concat());
    assert!(preview.assert_exit(0).stdout.contains("4 records match:"), "{preview:?}");
    assert!(preview.stdout.contains("payments  in_flight"), "{preview:?}");
    harness.run(&delete).assert_exit(1);
    assert!(ids.iter().all(|id| harness.seen(id).is_some()), "nothing is deleted without a yes");

    let done = harness.run(&[&delete[..], &["--yes", "--json"]].concat()).assert_exit(4).json();
    let expected = serde_json::json!({ "matched": 4, "deleted": 3, "in_flight": 1, "stale": 0 });
    assert_eq!(done, [expected]);
    let left: Vec<bool> = ids.iter().map(|id| harness.seen(id).is_some()).collect();
    assert_eq!(left, [false, false, false, true, true]);
    let audit = harness.audit();
    assert_eq!(audit.len(), 6);
    for line in &audit {
        assert_eq!((&line["act"], &line["caller"]), (&"delete".into(), &"shop-7".into()));
        assert_eq!(line["why"], "the account was closed");
    }
}

#[test]
fn a_deletion_needs_a_key_or_a_caller() {
    let harness = Harness::new();
    for words in [
        &["delete", "--why", "x", "--yes"][..],
        &["delete", "--why", "x", "--yes", "--scope", "payments"],
        &["delete", "k", "--why", "x", "--yes", "--since", "1h"],
        &["delete", "k", "--why", "x", "--dry-run"],
    ] {
        harness.run(words).assert_exit(2);
    }
    harness.run(&["delete", "--caller", "unknown", "--why", "x", "--yes"]).assert_exit(3);
}

#[test]
fn an_export_has_the_records_of_one_caller_with_their_answers() {
    let harness = Harness::new();
    records(&harness);
    let export = ["export", "shop-7.jsonl", "--caller", "shop-7", "--why", "the user asks"];
    let done = harness.run(&export);
    assert!(done.assert_exit(0).stdout.contains("shop-7.jsonl, 4 records"), "{done:?}");
    let file = harness.folder.path().join("shop-7.jsonl");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let text = fs::read_to_string(&file).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 4);
    assert!(lines.iter().all(|line| line["caller"] == "shop-7"), "{text}");
    let answers: Vec<&Value> = lines.iter().filter(|line| line["answer"].is_object()).collect();
    assert_eq!(answers.len(), 2, "{text}");
    assert!(answers.iter().all(|line| line["answer"]["body"].is_string()), "{text}");
    let audit = harness.audit();
    let results: Vec<&Value> = audit.iter().map(|line| &line["result"]).collect();
    assert_eq!(results, ["intended", "exported 4"]);
    assert_eq!((&audit[0]["act"], &audit[0]["why"]), (&"export".into(), &"the user asks".into()));
    assert!(audit[0]["to"].as_str().unwrap().contains("\"shop-7\""), "{audit:?}");

    let again = harness.run(&export);
    assert!(again.assert_exit(1).stderr.contains("cannot be created"), "{again:?}");
    assert_eq!(fs::read_to_string(&file).unwrap(), text, "an existing file is not changed");
}
