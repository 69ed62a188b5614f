//! On a store.

use std::{fs, os::unix::fs::PermissionsExt as _, process::Command, time::Duration};

use semel::core::{
    Answer, Content, Field, Finish, OnUnknown, Reason, Release, StateView, StoredResponse,
};
use serde_json::Value;

use crate::{
    common::semel_command,
    harness::{CommandOutput, HOUR, Harness, id, wait_until},
};

#[test]
fn records_are_listed_by_every_filter() {
    let harness = Harness::new();
    harness.held(&id("payments", "shop-7", "a"));
    harness.completed(&id("payments", "shop-7", "b"), 24 * HOUR);
    harness.completed(&id("signup", "", "b"), 24 * HOUR);
    let mut lapsed = Harness::to_claim(&id("inbox", "shop-7", "c"));
    (lapsed.lease, lapsed.on_unknown) = (Duration::from_millis(1), OnUnknown::Rerun);
    harness.claim(&*harness.store(), &lapsed);
    let keys = |words: &[&str]| -> Vec<String> {
        let output = harness.run(&[&["list", "--json"], words].concat());
        let name = |line: &Value| format!("{}/{}", line["scope"], line["key"]).replace('"', "");
        let mut names: Vec<String> = output.assert_exit(0).json().iter().map(name).collect();
        names.sort_unstable();
        names
    };
    assert_eq!(keys(&[]).len(), 4);
    assert_eq!(keys(&["--state", "held"]), ["payments/a"]);
    assert_eq!(keys(&["--scope", "signup"]), ["signup/b"]);
    assert_eq!(keys(&["--caller", ""]), ["signup/b"]);
    assert_eq!(keys(&["--caller", "shop-7", "--scope", "payments"]), ["payments/a", "payments/b"]);
    assert_eq!(keys(&["--key", "b"]), ["payments/b", "signup/b"]);
    assert_eq!(keys(&["--reason", "answered"]), ["payments/a"]);
    assert_eq!(keys(&["--reason", "upstream answered 5"]), ["payments/a"]);
    assert_eq!(keys(&["--reason", "lease-expired"]), [""; 0]);
    wait_until("the lease expires", || keys(&["--lapsed"]) == ["inbox/c"]);
    assert_eq!(keys(&["--until", "1h"]).len(), 0);
    assert_eq!(keys(&["--since", "1h"]).len(), 4);
    assert_eq!(keys(&["--since", "2020-01-01T00:00:00Z"]).len(), 4);
    assert_eq!(keys(&["--until", "2020-01-01T00:00:00+01:00"]).len(), 0);
    let backwards = harness.run(&["list", "--since", "1h", "--until", "2h"]);
    assert!(backwards.assert_exit(1).stderr.contains("no record can match"), "{backwards:?}");
    assert!(
        harness
            .run(&["list", "--state", "released"])
            .assert_exit(0)
            .stdout
            .contains("no record matches")
    );
    assert!(harness.run(&["list", "--state", "gone"]).assert_exit(2).stderr.contains("in_flight"));
    assert!(
        harness
            .run(&["list", "--since", "5"])
            .assert_exit(2)
            .stderr
            .contains("the unit is missing")
    );
}

#[test]
fn a_listing_is_a_table_and_says_where_to_go_on() {
    let harness = Harness::new();
    harness.held(&id("payments", "shop-7", "a"));
    harness.completed(&id("payments", "shop-7", "b"), 24 * HOUR);
    harness.completed(&id("signup", "", "b"), 24 * HOUR);
    let table = harness.run(&["list"]).assert_exit(0).stdout.clone();
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 4, "{table}");
    assert!(lines[0].starts_with("STATE      KEY  SCOPE     CALLER"), "{table}");
    assert!(lines[0].ends_with("NODE       REASON                 ABOUT"), "{table}");
    assert!(table.contains("completed  b    signup    (anonymous)"), "{table}");
    let held = lines.iter().find(|line| line.starts_with("held")).unwrap();
    let about = "gateway-1  upstream answered 503  POST api.example.com/v1/charges";
    assert!(held.ends_with(about), "{table}");
    assert!(!table.contains('\x1b'), "no colours without a terminal");
    let coloured = harness.run(&["list", "--color", "always"]).assert_exit(0).stdout.clone();
    assert!(coloured.contains("\x1b[31mheld"), "{coloured}");

    let (mut words, mut found) = (vec!["list".to_owned(), "--limit".into(), "1".into()], 0);
    for _ in 0..10 {
        let output = harness.run(&words.iter().map(String::as_str).collect::<Vec<_>>());
        found +=
            output.assert_exit(0).stdout.lines().filter(|line| line.contains("gateway-1")).count();
        let Some((_, next)) = output.stdout.split_once("there may be more: continue with --after ")
        else {
            break;
        };
        let next = next.split(',').next().unwrap();
        words = ["list", "--limit", "1", "--after", next].map(str::to_owned).to_vec();
    }
    assert_eq!(found, 3, "each is listed once");
    let output = harness.run(&["list", "--json", "--limit", "2"]);
    assert_eq!(output.assert_exit(0).json().len(), 2);
    let more: Value = serde_json::from_str(&output.stderr).unwrap();
    assert!(more["next"].is_string() && more["examined"].is_u64(), "{output:?}");
}

#[test]
fn inspecting_shows_everything_and_json_even_more() {
    let harness = Harness::new();
    harness.completed(&id("payments", "shop-7", "k"), 24 * HOUR);
    let output = harness.run(&["inspect", "k"]);
    for expected in [
        "k of shop-7 in payments",
        "state        completed: every retry gets its answer",
        "about        POST api.example.com/v1/charges",
        "captured     order = o-1",
        "ago, by gateway-1",
        "attempt      1",
        "on unknown   hold",
        "expires in   23h 59m",
        "answer       201, 13 bytes",
        "content-type: application/json",
        "{\"id\":\"ch_1\"}",
    ] {
        assert!(output.assert_exit(0).stdout.contains(expected), "{expected}: {}", output.stdout);
    }
    let json = harness.run(&["inspect", "k", "--json"]).assert_exit(0).json();
    assert_eq!(json.len(), 1);
    assert_eq!(json[0]["answer"]["body"], "{\"id\":\"ch_1\"}");
    assert_eq!(json[0]["answer"]["headers"][0][1], "application/json");
    assert_eq!(json[0]["fingerprint"].as_str().unwrap().len(), 66);
    assert_eq!(json[0]["captured"]["order"], "o-1");
    let fence = harness.seen(&id("payments", "shop-7", "k")).unwrap().fence;
    assert_eq!(json[0]["fence"].as_u64(), Some(fence.get()));
    assert!(fence.get() > 1_000_000_000_000_000, "microseconds since 1970: {fence}");
    for (time, age) in [("claimed_at", "age_ms"), ("ended_at", "ended_ago_ms")] {
        let at: jiff::Timestamp = json[0][time].as_str().unwrap().parse().unwrap();
        let past = jiff::Timestamp::now().duration_since(at);
        assert!((0..60).contains(&past.as_secs()), "{time}: {at}");
        assert!(json[0][age].as_u64().unwrap() < 60_000, "{json:?}");
    }
    assert_eq!((&json[0]["state"], &json[0]["caller"]), (&"completed".into(), &"shop-7".into()));
}

#[test]
fn a_key_is_found_in_all_scopes_and_of_all_callers() {
    let harness = Harness::new();
    harness.held(&id("payments", "shop-7", "k"));
    harness.held(&id("payments", "", "k"));
    harness.held(&id("signup", "shop-7", "k"));
    let count = |words: &[&str]| {
        harness.run(&[&["inspect", "--json", "k"], words].concat()).assert_exit(0).json().len()
    };
    assert_eq!(count(&[]), 3);
    assert_eq!(count(&["--scope", "payments"]), 2);
    assert_eq!(count(&["--caller", ""]), 1);
    assert_eq!(count(&["--scope", "signup", "--caller", "shop-7"]), 1);
    let output = harness.run(&["resolve", "k", "--released", "--why", "x", "--yes"]);
    assert!(output.assert_exit(1).stderr.contains("add --scope and --caller"), "{output:?}");
    assert!(output.stderr.contains("held   k    payments  (anonymous)"), "{output:?}");
    assert!(harness.audit().is_empty());
    harness.run(&["inspect", "other"]).assert_exit(3);
    harness.run(&["inspect", "k", "--scope", "signup", "--caller", "unknown"]).assert_exit(3);
}

#[test]
fn the_commands_that_inspecting_a_held_key_proposes_work() {
    for (proposal, state) in [("--completed", "completed"), ("--released", "released")] {
        let harness = Harness::new();
        let record = id("payments", "it's $HOME", "-k'\"$(x)`");
        harness.held(&record);
        let shown =
            harness.run(&["inspect", "--", record.key.as_str()]).assert_exit(0).stdout.clone();
        let command = shown.lines().find(|line| line.contains(proposal)).unwrap().trim();
        fs::write(harness.folder.path().join("answer"), b"\xFFbytes").unwrap();
        let command = command.replace("TEXT", "'the bank says so' --yes").replace("FILE", "answer");
        let command = command.replacen("semel", semel_command().get_program().to_str().unwrap(), 1);
        let mut shell = harness.prepare(Command::new("sh"));
        CommandOutput::of(shell.args(["-c", &command])).assert_exit(0);
        let seen = harness.seen(&record).unwrap();
        assert_eq!(seen.state.name().as_str(), state);
        if let StateView::Completed { answer, .. } = seen.state {
            let Content::Response(response) = answer.read().unwrap() else { panic!("{answer:?}") };
            assert_eq!((response.status, &*response.body), (201, &b"\xFFbytes"[..]));
        }
    }
}

#[test]
fn resolving_records_the_answer_and_who_did_it_and_why() {
    let harness = Harness::new();
    let record = id("payments", "shop-7", "k");
    let fence = harness.held(&record);
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
    let refused = harness.run(&words);
    assert!(refused.assert_exit(1).stderr.contains("use --yes"), "{refused:?}");
    assert!(refused.stderr.contains("every retry gets this answer"), "{refused:?}");
    assert_eq!(harness.seen(&record).unwrap().state, StateView::Held);
    assert!(harness.audit().is_empty());

    let done = harness.run(&[&words[..], &["--yes"]].concat());
    assert!(done.assert_exit(0).stdout.contains("201, 2 headers, paid"), "{done:?}");
    assert_eq!(done.stderr, format!("written to the audit log {}\n", harness.audit_name()));
    let seen = harness.seen(&record).unwrap();
    assert!(seen.fence > fence, "an operator's act raises the fence");
    let StateView::Completed { answer, .. } = seen.state else { panic!("{seen:?}") };
    let expected = StoredResponse {
        status: 201,
        headers: vec![Field::new("content-type", "text/plain"), Field::new("link", "</a>")],
        body: "paid".into(),
        trailers: vec![],
    };
    assert_eq!(answer, Answer::response(&expected));

    let audit = harness.audit();
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
    let mode = fs::metadata(harness.folder.path().join(harness.audit_name())).unwrap();
    assert_eq!(mode.permissions().mode() & 0o777, 0o600);

    let again = harness.run(&[&words[..], &["--yes"]].concat());
    assert!(again.assert_exit(4).stderr.contains("only a held one can be resolved"), "{again:?}");
}

#[test]
fn words_that_contradict_each_other_are_refused() {
    let harness = Harness::new();
    let record = id("payments", "shop-7", "k");
    harness.held(&record);
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
        harness.run(&[&["resolve", "k", "--yes"], words].concat()).assert_exit(2);
    }
    let smuggled = "X: a\r\nSet-Cookie: b";
    let words = ["--completed", "--status", "200", "--header", smuggled, "--why", "x", "--yes"];
    harness.run(&[&["resolve", "k"], &words[..]].concat()).assert_exit(1);
    assert_eq!(harness.seen(&record).unwrap().state, StateView::Held);
    assert!(harness.audit().is_empty());
}

#[test]
fn an_act_that_cannot_be_written_down_is_not_done() {
    let harness = Harness::new();
    let record = id("payments", "shop-7", "k");
    harness.held(&record);
    fs::create_dir(harness.folder.path().join(harness.audit_name())).unwrap();
    let output = harness.run(&["resolve", "k", "--released", "--why", "x", "--yes"]);
    assert!(output.assert_exit(1).stderr.contains("nothing was done"), "{output:?}");
    assert_eq!(harness.seen(&record).unwrap().state, StateView::Held);
}

#[test]
fn deleting_lets_a_key_run_again() {
    let harness = Harness::new();
    let record = id("payments", "shop-7", "k");
    harness.completed(&record, 24 * HOUR);
    let words = ["delete", "k", "--why", "a test account"];
    assert!(harness.run(&words).assert_exit(1).stderr.contains("runs it AGAIN"));
    assert!(harness.seen(&record).is_some());
    let done = harness.run(&[&words[..], &["--yes", "--json"]].concat());
    assert_eq!(done.assert_exit(0).json(), [serde_json::json!({ "result": "applied" })]);
    assert_eq!(harness.seen(&record), None);
    let audit = harness.audit();
    assert_eq!((&audit[1]["act"], &audit[1]["to"]), (&"delete".into(), &"absent".into()));
    assert_eq!(audit[1]["seen"]["state"], "completed");
    harness.run(&[&words[..], &["--yes"]].concat()).assert_exit(3);

    harness.claim(&*harness.store(), &Harness::to_claim(&record));
    let running = harness.run(&[&words[..], &["--yes"]].concat());
    assert!(running.assert_exit(4).stderr.contains("it may still be running"), "{running:?}");
    assert!(harness.seen(&record).is_some());
}

#[test]
fn a_released_record_says_who_may_take_it() {
    let harness = Harness::new();
    let (store, record) = (harness.store(), id("payments", "shop-7", "k"));
    let refused = Finish::release(Release::Refused, Reason::Answered(429));
    harness.finish(&*store, &record, harness.claim(&*store, &Harness::to_claim(&record)), &refused);
    let output = harness.run(&["inspect", "k"]);
    assert!(
        output.assert_exit(0).stdout.contains("released: the next retry will run it again"),
        "{output:?}"
    );
    assert!(output.stdout.contains("reason       upstream answered 429"), "{output:?}");

    let record = id("payments", "shop-7", "forgotten");
    let forgotten = Finish::forget(Reason::Answered(307));
    harness.finish(
        &*store,
        &record,
        harness.claim(&*store, &Harness::to_claim(&record)),
        &forgotten,
    );
    let output = harness.run(&["inspect", "forgotten"]);
    assert!(
        output.assert_exit(0).stdout.contains("released: any request may take the key"),
        "{output:?}"
    );
    let json = harness.run(&["inspect", "forgotten", "--json"]).assert_exit(0).json();
    assert_eq!((&json[0]["state"], json[0].get("fingerprint")), (&"released".into(), None));
}

#[test]
fn an_act_names_its_operator() {
    let harness = Harness::new();
    let who = ["--who", "Zoë of the night shift"];
    harness.held(&id("payments", "shop-7", "k"));
    let resolve = ["resolve", "k", "--released", "--why", "x", "--yes"];
    harness.run(&[&resolve[..], &who].concat()).assert_exit(0);
    harness.run(&[&["delete", "k", "--why", "x", "--yes"][..], &who].concat()).assert_exit(0);
    harness.run(&[&["sweep", "--yes"][..], &who].concat()).assert_exit(0);
    let audit = harness.audit();
    assert_eq!(audit.len(), 6);
    for line in audit {
        let name = line["who"].as_str().unwrap();
        assert!(name.starts_with("Zoë of the night shift (on the store"), "{line}");
    }
    for command in ["resolve", "delete", "sweep", "reload"] {
        let help = harness.run(&[command, "--help"]).assert_exit(0).stdout.clone();
        assert!(help.contains("--who <NAME>") && help.contains("$USER"), "{command}: {help}");
    }
}

#[test]
fn sweeping_deletes_what_retention_has_passed() {
    let harness = Harness::new();
    for number in 0..20 {
        harness.completed(&id("s", "c", &format!("old-{number}")), Duration::from_millis(1));
    }
    harness.completed(&id("s", "c", "new"), 24 * HOUR);
    wait_until("retention passes", || harness.run(&["list", "--json"]).json().len() == 1);
    assert!(harness.run(&["sweep"]).assert_exit(1).stderr.contains("use --yes"));
    let output = harness.run(&["sweep", "--yes", "--json"]);
    assert_eq!(output.assert_exit(0).json(), [serde_json::json!({ "deleted": 20, "more": false })]);
    assert_eq!(harness.run(&["sweep", "--yes"]).assert_exit(0).stdout, "done: 0 deleted\n");
    assert_eq!(harness.run(&["list", "--json"]).json().len(), 1);
    assert_eq!(harness.audit()[1]["result"], "deleted 20");
}

#[test]
fn a_store_that_is_not_there_is_not_made() {
    let harness = Harness::new();
    for words in [&["list"][..], &["inspect", "k"], &["sweep", "--yes"]] {
        let output = harness.run(&[words, &["--store", "sqlite:other.db"]].concat());
        assert!(
            output.assert_exit(1).stderr.contains("there is no store at other.db"),
            "{output:?}"
        );
    }
    assert!(!harness.folder.path().join("other.db").exists());
    assert!(
        harness.run(&["list", "--store", "memory:"]).assert_exit(1).stderr.contains("--server")
    );
    assert!(harness.run(&["list", "--store", "x"]).assert_exit(1).stderr.contains("sqlite:PATH"));
    fs::write(harness.folder.path().join("notes"), "not a store".repeat(1000)).unwrap();
    let output = harness.run(&["list", "--store", "sqlite:notes"]);
    assert!(output.assert_exit(1).stderr.contains("not a SQLite database"), "{output:?}");
}

#[test]
fn a_program_gets_every_record_and_a_person_a_hint_that_there_are_more() {
    let harness = Harness::new();
    for number in 0..60 {
        harness.held(&id("payments", "shop-7", &format!("k{number}")));
    }
    assert_eq!(harness.run(&["list", "--json"]).assert_exit(0).json().len(), 60);
    assert_eq!(harness.run(&["list", "--json", "--limit", "5"]).assert_exit(0).json().len(), 5);
    let output = harness.run(&["list"]);
    assert!(output.assert_exit(0).stdout.contains("there may be more"), "{output:?}");
    assert_eq!(output.stdout.lines().count(), 52);
}

#[test]
fn with_json_a_failure_is_json_too() {
    let harness = Harness::new();
    harness.completed(&id("payments", "shop-7", "k"), 24 * HOUR);
    let resolve = ["resolve", "k", "--json", "--released", "--why", "x", "--yes"];
    let cases: [(&[&str], i32); 3] = [
        (&["inspect", "absent", "--json"], 3),
        (&resolve, 4),
        (&["list", "--json", "--store", "sqlite:none.db"], 1),
    ];
    for (words, code) in cases {
        let output = harness.run(words);
        let error: Value = serde_json::from_str(&output.assert_exit(code).stderr).unwrap();
        assert_eq!(error["exit_code"], code);
        assert!(error["error"].as_str().is_some_and(|words| !words.is_empty()), "{output:?}");
    }
    for words in [&["--help"][..], &["resolve", "--help"]] {
        let help = harness.run(words).assert_exit(0).stdout.clone();
        assert!(help.contains("  3  no such record") && help.contains("130"), "{help}");
    }
}
