//! On a store.

use std::{fs, os::unix::fs::PermissionsExt as _, time::Duration};

use semel::core::{Answer, Content, Field, Standing, StoredResponse, Tried};
use serde_json::Value;

use crate::bench::{Bench, HOUR, id, said, until};

#[test]
fn records_are_listed_by_state_scope_key_and_age() {
    let bench = Bench::new();
    bench.held(&id("payments", "shop-7", "a"));
    bench.completed(&id("payments", "shop-7", "b"), 24 * HOUR);
    bench.completed(&id("signup", "", "b"), 24 * HOUR);
    let keys = |words: &[&str]| -> Vec<String> {
        let said = bench.run(&[&["list", "--json"], words].concat());
        let name = |line: &Value| format!("{}/{}", line["scope"], line["key"]).replace('"', "");
        said.is(0).json().iter().map(name).collect()
    };
    assert_eq!(keys(&[]).len(), 3);
    assert_eq!(keys(&["--state", "held"]), ["payments/a"]);
    assert_eq!(keys(&["--scope", "signup"]), ["signup/b"]);
    assert_eq!(keys(&["--key", "b"]).len(), 2);
    assert_eq!(keys(&["--older-than", "1h"]).len(), 0);
    assert_eq!(keys(&["--limit", "2"]).len(), 2);

    let table = bench.run(&["list"]).is(0).out.clone();
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 4, "{table}");
    assert!(lines[0].starts_with("STATE      KEY  SCOPE     CALLER"), "{table}");
    assert!(table.contains("completed  b    signup    (anonymous)"), "{table}");
    assert!(!table.contains('\x1b'), "no colours without a terminal");
    assert!(bench.run(&["list", "--limit", "1"]).out.contains("there may be more"));
    assert!(bench.run(&["list", "--state", "released"]).is(0).out.contains("no such records"));
    assert!(bench.run(&["list", "--state", "gone"]).is(2).err.contains("in_flight"));
    assert!(bench.run(&["list", "--older-than", "5"]).is(2).err.contains("the unit is missing"));
}

#[test]
fn inspecting_shows_everything_and_json_even_more() {
    let bench = Bench::new();
    bench.completed(&id("payments", "shop-7", "k"), 24 * HOUR);
    let said = bench.run(&["inspect", "k"]);
    for expected in [
        "k of shop-7 in payments",
        "state        completed: every retry gets its answer",
        "attempt      1",
        "on unknown   hold",
        "expires in   23h 59m",
        "answer       201, 13 bytes",
        "content-type: application/json",
        "{\"id\":\"ch_1\"}",
    ] {
        assert!(said.is(0).out.contains(expected), "{expected}: {}", said.out);
    }
    let json = bench.run(&["inspect", "k", "--json"]).is(0).json();
    assert_eq!(json.len(), 1);
    assert_eq!(json[0]["answer"]["body"], "{\"id\":\"ch_1\"}");
    assert_eq!(json[0]["answer"]["headers"][0][1], "application/json");
    assert_eq!(json[0]["fingerprint"].as_str().unwrap().len(), 66);
    assert_eq!((&json[0]["state"], &json[0]["caller"]), (&"completed".into(), &"shop-7".into()));
}

#[test]
fn a_key_is_found_in_all_scopes_and_of_all_callers() {
    let bench = Bench::new();
    bench.held(&id("payments", "shop-7", "k"));
    bench.held(&id("payments", "", "k"));
    bench.held(&id("signup", "shop-7", "k"));
    let count = |words: &[&str]| {
        bench.run(&[&["inspect", "--json", "k"], words].concat()).is(0).json().len()
    };
    assert_eq!(count(&[]), 3);
    assert_eq!(count(&["--scope", "payments"]), 2);
    assert_eq!(count(&["--caller", ""]), 1);
    assert_eq!(count(&["--scope", "signup", "--caller", "shop-7"]), 1);
    let said = bench.run(&["resolve", "k", "--released", "--why", "x", "--yes"]);
    assert!(said.is(1).err.contains("say --scope and --caller"), "{said:?}");
    assert!(said.err.contains("held   k    payments  (anonymous)"), "{said:?}");
    assert!(bench.audit().is_empty());
    bench.run(&["inspect", "other"]).is(3);
    bench.run(&["inspect", "k", "--scope", "signup", "--caller", "nobody"]).is(3);
}

#[test]
fn the_commands_that_inspecting_a_held_key_proposes_work() {
    for (proposal, state) in [("--completed", "completed"), ("--released", "released")] {
        let bench = Bench::new();
        let record = id("payments", "it's $HOME", "-k'\"$(x)`");
        bench.held(&record);
        let shown = bench.run(&["inspect", "--", record.key.as_str()]).is(0).out.clone();
        let command = shown.lines().find(|line| line.contains(proposal)).unwrap().trim();
        fs::write(bench.folder.path().join("answer"), b"\xFFbytes").unwrap();
        let command = command.replace("TEXT", "'the bank says so' --yes").replace("FILE", "answer");
        let command = command.replacen("semel", env!("CARGO_BIN_EXE_semel"), 1);
        said(bench.command("sh").args(["-c", &command]).output().unwrap()).is(0);
        let seen = bench.seen(&record).unwrap();
        assert_eq!(seen.standing.name().as_str(), state);
        if let Standing::Completed { answer, .. } = seen.standing {
            let Content::Response(response) = answer.read().unwrap() else { panic!("{answer:?}") };
            assert_eq!((response.status, &*response.body), (201, &b"\xFFbytes"[..]));
        }
    }
}

#[test]
fn resolving_records_the_answer_and_who_did_it_and_why() {
    let bench = Bench::new();
    let record = id("payments", "shop-7", "k");
    let fence = bench.held(&record);
    let words = [
        "resolve",
        "k",
        "--completed",
        "--status",
        "201",
        "--header",
        "Content-Type: text/plain",
        "--header",
        "Link: </a>",
        "--body",
        "paid",
        "--why",
        "bank statement 42",
    ];
    let refused = bench.run(&words);
    assert!(refused.is(1).err.contains("say --yes"), "{refused:?}");
    assert!(refused.err.contains("every retry gets this answer"), "{refused:?}");
    assert_eq!(bench.seen(&record).unwrap().standing, Standing::Held);
    assert!(bench.audit().is_empty());

    let done = bench.run(&[&words[..], &["--yes"]].concat());
    assert!(done.is(0).out.contains("201, 2 headers, paid"), "{done:?}");
    assert_eq!(done.err, format!("written to the audit log {}\n", bench.audit_name()));
    let seen = bench.seen(&record).unwrap();
    assert!(seen.fence > fence, "an operator's act raises the fence");
    let Standing::Completed { answer, .. } = seen.standing else { panic!("{seen:?}") };
    let expected = StoredResponse {
        status: 201,
        headers: vec![Field::new("content-type", "text/plain"), Field::new("link", "</a>")],
        body: "paid".into(),
        trailers: vec![],
    };
    assert_eq!(answer, Answer::response(&expected));

    let audit = bench.audit();
    assert_eq!(audit.len(), 2);
    for (line, result) in audit.iter().zip(["intended", "applied"]) {
        assert_eq!(line["result"], result);
        assert!(line["who"].as_str().unwrap().starts_with("zoe (on the store, uid "), "{line}");
        assert_eq!((&line["act"], &line["why"]), (&"resolve".into(), &"bank statement 42".into()));
        assert_eq!((&line["scope"], &line["key"]), (&"payments".into(), &"k".into()));
        assert_eq!(line["seen"]["state"], "held");
        assert_eq!(line["seen"]["fence"], fence.get());
        assert_eq!(line["to"], "completed with status 201");
        assert!(line["at"].as_str().unwrap().ends_with('Z'));
    }
    let mode = fs::metadata(bench.folder.path().join(bench.audit_name())).unwrap();
    assert_eq!(mode.permissions().mode() & 0o777, 0o600);

    let again = bench.run(&[&words[..], &["--yes"]].concat());
    assert!(again.is(4).err.contains("only a held one can be resolved"), "{again:?}");
}

#[test]
fn words_that_contradict_each_other_are_refused() {
    let bench = Bench::new();
    let record = id("payments", "shop-7", "k");
    bench.held(&record);
    for words in [
        &["--why", "x"][..],
        &["--completed", "--released", "--status", "200", "--why", "x"],
        &["--completed", "--why", "x"],
        &["--completed", "--status", "99", "--why", "x"],
        &["--released", "--status", "200", "--why", "x"],
        &["--released"],
        &["--released", "--why", ""],
        &["--completed", "--status", "200", "--body", "a", "--body-file", "b", "--why", "x"],
        &["--completed", "--status", "200", "--header", "none", "--why", "x"],
    ] {
        bench.run(&[&["resolve", "k", "--yes"], words].concat()).is(2);
    }
    let smuggled = "X: a\r\nSet-Cookie: b";
    let words = ["--completed", "--status", "200", "--header", smuggled, "--why", "x", "--yes"];
    bench.run(&[&["resolve", "k"], &words[..]].concat()).is(1);
    assert_eq!(bench.seen(&record).unwrap().standing, Standing::Held);
    assert!(bench.audit().is_empty());
}

#[test]
fn an_act_that_cannot_be_written_down_is_not_done() {
    let bench = Bench::new();
    let record = id("payments", "shop-7", "k");
    bench.held(&record);
    fs::create_dir(bench.folder.path().join(bench.audit_name())).unwrap();
    let said = bench.run(&["resolve", "k", "--released", "--why", "x", "--yes"]);
    assert!(said.is(1).err.contains("nothing was done"), "{said:?}");
    assert_eq!(bench.seen(&record).unwrap().standing, Standing::Held);
}

#[test]
fn forgetting_lets_a_key_run_again() {
    let bench = Bench::new();
    let record = id("payments", "shop-7", "k");
    bench.completed(&record, 24 * HOUR);
    let words = ["forget", "k", "--why", "a test account"];
    assert!(bench.run(&words).is(1).err.contains("carried out AGAIN"));
    assert!(bench.seen(&record).is_some());
    let done = bench.run(&[&words[..], &["--yes", "--json"]].concat());
    assert_eq!(done.is(0).json(), [serde_json::json!({ "result": "applied" })]);
    assert_eq!(bench.seen(&record), None);
    let audit = bench.audit();
    assert_eq!((&audit[1]["act"], &audit[1]["to"]), (&"forget".into(), &"absent".into()));
    assert_eq!(audit[1]["seen"]["state"], "completed");
    bench.run(&[&words[..], &["--yes"]].concat()).is(3);

    bench.claim(&*bench.store(), &record, HOUR);
    let running = bench.run(&[&words[..], &["--yes"]].concat());
    assert!(running.is(4).err.contains("somebody may be running it"), "{running:?}");
    assert!(bench.seen(&record).is_some());
}

#[test]
fn a_released_record_says_so() {
    let bench = Bench::new();
    let (store, record) = (bench.store(), id("payments", "shop-7", "k"));
    let fence = bench.claim(&*store, &record, HOUR);
    bench.runtime.block_on(store.release(&record, fence, Tried::Counted)).unwrap();
    let said = bench.run(&["inspect", "k"]);
    assert!(said.is(0).out.contains("released: the next retry runs it again"), "{said:?}");
}

#[test]
fn sweeping_deletes_what_retention_has_passed() {
    let bench = Bench::new();
    for number in 0..20 {
        bench.completed(&id("s", "c", &format!("old-{number}")), Duration::from_millis(1));
    }
    bench.completed(&id("s", "c", "new"), 24 * HOUR);
    until("retention passes", || bench.run(&["list", "--json"]).json().len() == 1);
    assert!(bench.run(&["sweep"]).is(1).err.contains("say --yes"));
    let said = bench.run(&["sweep", "--yes", "--json"]);
    assert_eq!(said.is(0).json(), [serde_json::json!({ "deleted": 20, "more": false })]);
    assert_eq!(bench.run(&["sweep", "--yes"]).is(0).out, "done: 0 deleted\n");
    assert_eq!(bench.run(&["list", "--json"]).json().len(), 1);
    assert_eq!(bench.audit()[1]["result"], "deleted 20");
}

#[test]
fn a_store_that_is_not_there_is_not_made() {
    let bench = Bench::new();
    for words in [&["list"][..], &["inspect", "k"], &["sweep", "--yes"]] {
        let said = bench.run(&[words, &["--store", "sqlite:other.db"]].concat());
        assert!(said.is(1).err.contains("there is no store at other.db"), "{said:?}");
    }
    assert!(!bench.folder.path().join("other.db").exists());
    assert!(bench.run(&["list", "--store", "memory:"]).is(1).err.contains("--server"));
    assert!(bench.run(&["list", "--store", "x"]).is(1).err.contains("sqlite:PATH"));
    fs::write(bench.folder.path().join("notes"), "not a store".repeat(1000)).unwrap();
    let said = bench.run(&["list", "--store", "sqlite:notes"]);
    assert!(said.is(1).err.contains("not a SQLite database"), "{said:?}");
}

#[test]
fn a_program_gets_every_record_and_a_person_is_told_that_there_is_more() {
    let bench = Bench::new();
    for number in 0..60 {
        bench.held(&id("payments", "shop-7", &format!("k{number}")));
    }
    assert_eq!(bench.run(&["list", "--json"]).is(0).json().len(), 60);
    assert_eq!(bench.run(&["list", "--json", "--limit", "5"]).is(0).json().len(), 5);
    let said = bench.run(&["list"]);
    assert!(said.is(0).out.contains("there may be more"), "{said:?}");
    assert_eq!(said.out.lines().count(), 52);
}

#[test]
fn with_json_a_failure_is_json_too() {
    let bench = Bench::new();
    bench.completed(&id("payments", "shop-7", "k"), 24 * HOUR);
    let resolve = ["resolve", "k", "--json", "--released", "--why", "x", "--yes"];
    let cases: [(&[&str], i32); 3] = [
        (&["inspect", "absent", "--json"], 3),
        (&resolve, 4),
        (&["list", "--json", "--store", "sqlite:none.db"], 1),
    ];
    for (words, code) in cases {
        let said = bench.run(words);
        let error: Value = serde_json::from_str(&said.is(code).err).unwrap();
        assert_eq!(error["exit_code"], code);
        assert!(error["error"].as_str().is_some_and(|words| !words.is_empty()), "{said:?}");
    }
    for words in [&["--help"][..], &["resolve", "--help"]] {
        let help = bench.run(words).is(0).out.clone();
        assert!(help.contains("  3  there is no such record") && help.contains("130"), "{help}");
    }
}
