//! Many records at once.

use semel::core::{Captured, Finish, Reason, RecordId, StateView};
use serde_json::Value;

use crate::{
    harness::{Harness, answer, id},
    served::{Server, TOKEN, route},
    terminal::Asking,
};

#[test]
fn a_key_is_found_among_many_without_looking_at_them() {
    let harness = Harness::new();
    outage(&harness);
    let store = harness.store();
    for (scope, caller) in [("signup", "shop-7"), ("payments", ""), ("payments", "shop-8")] {
        harness.held_on(&*store, &id(scope, caller, "order-7"), Reason::Answered(503));
    }
    let found = harness.run(&["inspect", "order-7", "--json"]).assert_exit(0).json();
    assert_eq!(found.len(), 4);
    let server = Server::start(&harness, &route("payments", "/charges"));
    let answer = server.get("/v1/records?key=order-7");
    let page = answer.json();
    assert_eq!(page["records"].as_array().unwrap().len(), 4, "{page}");
    assert!(page["examined"].as_u64().unwrap() < 10, "{page}");
    assert_eq!(page.get("next"), None, "{page}");
}

/// An outage left these: 300 charges of `payments` without an answer, and some others.
fn outage(harness: &Harness) -> Vec<RecordId> {
    let store = harness.store();
    let charges: Vec<RecordId> =
        (0..300).map(|number| id("payments", "shop-7", &format!("order-{number}"))).collect();
    for charge in &charges {
        harness.held_on(&*store, charge, Reason::Answered(503));
    }
    for (other, reason) in others() {
        harness.held_on(&*store, &other, reason);
    }
    charges
}

/// What no filter of these tests matches.
fn others() -> [(RecordId, Reason); 3] {
    [
        (id("payments", "shop-7", "timed-out"), Reason::TimedOut(60_000)),
        (id("payments", "", "other-caller"), Reason::Answered(503)),
        (id("signup", "shop-7", "other-scope"), Reason::Answered(503)),
    ]
}

const RELEASE: [&str; 10] = [
    "resolve",
    "--released",
    "--scope",
    "payments",
    "--caller",
    "shop-7",
    "--reason",
    "upstream answered 503",
    "--why",
    "rolled back",
];

fn states(harness: &Harness, records: &[RecordId]) -> [usize; 3] {
    let store = harness.store();
    let mut counts = [0; 3];
    for record in records {
        let seen = harness.runtime.block_on(store.get(record)).unwrap().unwrap();
        let place = match seen.state {
            StateView::Held => 0,
            StateView::Released { .. } => 1,
            StateView::Completed { .. } => 2,
            StateView::InFlight { .. } => panic!("{seen:?}"),
        };
        counts[place] += 1;
    }
    counts
}

fn results(audit: &[Value]) -> [usize; 3] {
    let count = |start: &str| {
        let is = |line: &&Value| line["result"].as_str().unwrap().starts_with(start);
        audit.iter().filter(is).count()
    };
    [count("intended"), count("applied"), count("failed: stale")]
}

#[test]
fn an_outage_is_resolved_at_once_but_for_what_changed_since_the_preview() {
    let harness = Harness::new();
    let charges = outage(&harness);
    let place = harness.records.arguments();
    let words: Vec<&str> = RELEASE.into_iter().chain(place.iter().map(String::as_str)).collect();
    let asking = Asking::start(&harness, &words, None);
    assert!(asking.asked().contains("300 records become released"), "{}", asking.asked());
    assert!(asking.asked().contains("happens TWICE"), "{}", asking.asked());
    assert_eq!(states(&harness, &charges), [300, 0, 0], "nothing is done before the answer");

    // Meanwhile the answer of one of them comes late, and another request is held.
    let store = harness.store();
    let late = harness.seen(&charges[7]).unwrap().fence;
    let late = Harness::to_claim(&charges[7]).claimant(late);
    harness.finish(&*store, &charges[7], late, &Finish::complete(answer()));
    let new = id("payments", "shop-7", "after-the-preview");
    harness.held_on(&*store, &new, Reason::Answered(503));

    let output = asking.answer("y");
    assert!(output.assert_exit(4).stdout.contains("300 held records match:"), "{output:?}");
    assert!(output.stdout.contains("  300  payments  upstream answered 503  2"), "{output:?}");
    assert!(output.stdout.contains("done: 299 records became released"), "{output:?}");
    assert!(
        output.stdout.contains("not modified, because they changed after the preview: 1"),
        "{output:?}"
    );
    assert!(output.stdout.contains("  order-7 of shop-7 in payments"), "{output:?}");
    assert_eq!(states(&harness, &charges), [0, 299, 1]);
    let untouched: Vec<RecordId> = others().into_iter().map(|(id, _)| id).chain([new]).collect();
    assert_eq!(states(&harness, &untouched), [4, 0, 0]);
    let audit = harness.audit();
    assert_eq!(results(&audit), [300, 299, 1]);
    for line in &audit {
        assert_eq!((&line["act"], &line["why"]), (&"resolve".into(), &"rolled back".into()));
        assert_eq!((&line["to"], &line["scope"]), (&"released".into(), &"payments".into()));
    }
}

#[test]
fn a_no_changes_nothing() {
    let harness = Harness::new();
    let charge = id("payments", "shop-7", "k");
    harness.held(&charge);
    let place = harness.records.arguments();
    let words: Vec<&str> = RELEASE.into_iter().chain(place.iter().map(String::as_str)).collect();
    let output = Asking::start(&harness, &words, None).answer("n");
    assert!(output.assert_exit(1).stderr.contains("nothing was changed"), "{output:?}");
    assert_eq!(states(&harness, &[charge]), [1, 0, 0]);
    assert!(harness.audit().is_empty());
}

#[test]
fn without_a_terminal_it_needs_a_yes_and_a_dry_run_needs_none() {
    let harness = Harness::new();
    let charges = [id("payments", "shop-7", "a"), id("payments", "shop-7", "b")];
    for charge in &charges {
        harness.held(charge);
    }
    let refused = harness.run(&RELEASE);
    assert!(
        refused.assert_exit(1).stderr.contains("use --yes. 2 records become released"),
        "{refused:?}"
    );
    assert!(refused.stdout.contains("2 held records match:"), "{refused:?}");

    let dry = [&RELEASE[..], &["--dry-run"]].concat();
    assert!(harness.run(&dry).assert_exit(0).stdout.contains("POST api.example.com/v1/charges"));
    let json = harness.run(&[&dry[..], &["--json"]].concat()).assert_exit(0).json();
    assert_eq!((&json[0]["matched"], &json[0]["more"]), (&2.into(), &false.into()));
    let group = &json[0]["groups"][0];
    assert_eq!((&group["count"], &group["scope"]), (&2.into(), &"payments".into()));
    assert_eq!(group["reason"], "upstream answered 503");
    assert!(group["oldest"].as_str() <= group["newest"].as_str(), "{group}");
    assert_eq!(json[0]["examples"].as_array().unwrap().len(), 2);
    assert_eq!(states(&harness, &charges), [2, 0, 0]);
    assert!(harness.audit().is_empty());

    let done = harness.run(&[&RELEASE[..], &["--yes", "--json"]].concat()).assert_exit(0).json();
    assert_eq!(
        done[0],
        serde_json::json!({
            "matched": 2, "processed": 2, "applied": 2, "stale": [],
        })
    );
    harness.run(&[&RELEASE[..], &["--yes"]].concat()).assert_exit(3);
}

#[test]
fn many_are_completed_with_one_answer() {
    let harness = Harness::new();
    let charges = [id("payments", "shop-7", "a"), id("payments", "shop-7", "b")];
    for charge in &charges {
        harness.held(charge);
    }
    let words = ["resolve", "--completed", "--status", "200", "--body", "{}", "--since", "1h"];
    let output = harness.run(&[&words[..], &["--why", "the ledger has them", "--yes"]].concat());
    assert_eq!(
        output.assert_exit(0).stdout.lines().last(),
        Some("done: 2 records became completed")
    );
    assert_eq!(states(&harness, &charges), [0, 0, 2]);
    let late = ["resolve", "--released", "--until", "1h", "--why", "x", "--yes"];
    harness.run(&late).assert_exit(3);
}

#[test]
fn resolve_requires_a_key_or_a_filter() {
    let harness = Harness::new();
    harness.held(&id("payments", "shop-7", "k"));
    for words in [
        &["resolve", "--released", "--why", "x", "--yes"][..],
        &["resolve", "k", "--released", "--why", "x", "--yes", "--reason", "answered"],
        &["resolve", "k", "--released", "--why", "x", "--yes", "--since", "1h"],
        &["resolve", "k", "--released", "--why", "x", "--dry-run"],
        &["resolve", "--released", "--why", "x", "--yes", "--reason", ""],
    ] {
        harness.run(words).assert_exit(2);
    }
    assert!(harness.audit().is_empty());
}

#[test]
fn an_outage_is_resolved_through_a_server() {
    let harness = Harness::new();
    let charges = outage(&harness);
    let server = Server::start(&harness, &route("payments", "/charges"));
    let words: Vec<&str> = RELEASE.into_iter().chain(["--server", &server.api]).collect();
    let asking = Asking::start(&harness, &words, Some(TOKEN));
    let store = harness.store();
    let late = harness.seen(&charges[250]).unwrap().fence;
    let late = Harness::to_claim(&charges[250]).claimant(late);
    harness.finish(&*store, &charges[250], late, &Finish::complete(answer()));
    let output = asking.answer("y");
    assert!(
        output.assert_exit(4).stdout.contains("done: 299 records became released"),
        "{output:?}"
    );
    assert_eq!(states(&harness, &charges), [0, 299, 1]);
    let audit = harness.audit();
    assert_eq!(results(&audit), [300, 299, 1]);
    assert_eq!(audit[0]["who"], "zoe (by operator token, from 127.0.0.1)");
}

/// The export of a provider: one row for `a`, two for `b`, another amount for `c`, none for `d`.
const EXPORT: &str = "Idempotency Key;Charge;Amount\n\
                      a;ch_1;49.90\nb;ch_2;49.90\nb;ch_3;49.90\nc;ch_4;1.00\nother;ch_5;2\n";

fn exported(harness: &Harness) {
    let store = harness.store();
    for key in ["a", "b", "c", "d"] {
        let id = id("payments", "shop-7", key);
        let mut claim = Harness::to_claim(&id);
        claim.captured = Captured::new([("amount", "49.9"), ("order", "o-1")]);
        let by = harness.claim(&*store, &claim);
        harness.finish(&*store, &id, by, &Finish::hold(Reason::Answered(503)));
    }
    std::fs::write(harness.folder.path().join("charges.csv"), EXPORT).unwrap();
}

const FROM: [&str; 10] = [
    "resolve",
    "--from",
    "charges.csv",
    "--names-are-global",
    "--completed",
    "--status",
    "201",
    "--agree",
    "amount=Amount",
    "--why",
];

#[test]
fn an_export_resolves_the_records_that_exactly_one_row_names() {
    let harness = Harness::new();
    exported(&harness);
    let is_held = |key: &str| {
        let seen = harness.seen(&id("payments", "shop-7", key)).unwrap();
        seen.state == StateView::Held
    };
    let preview = harness.run(&[&FROM[..], &["export", "--dry-run"]].concat());
    let shown = &preview.assert_exit(0).stdout;
    for line in [
        "1 records: one row names each of them",
        "1 records: stay held: more than one row",
        "1 records: stay held: the row does not agree",
        "1 records: stay held: no row names them",
        "\"Charge\":\"ch_1\"",
    ] {
        assert!(shown.contains(line), "no {line:?} in {shown}");
    }
    assert!(["a", "b", "c", "d"].into_iter().all(is_held), "a preview changes nothing");
    let done = harness.run(&[&FROM[..], &["export", "--yes", "--json"]].concat());
    let summary = &done.assert_exit(0).json()[0];
    assert_eq!((&summary["applied"], &summary["ambiguous"]), (&1.into(), &1.into()), "{summary}");
    assert!(!is_held("a") && ["b", "c", "d"].into_iter().all(is_held));
    let seen = harness.run(&["inspect", "a", "--json"]).assert_exit(0).json();
    assert_eq!(seen[0]["answer"]["status"], 201, "{seen:?}");
    let body = r#"{"Amount":"49.90","Charge":"ch_1","Idempotency Key":"a"}"#;
    assert_eq!(seen[0]["answer"]["body"], body);
    assert_eq!(harness.audit().len(), 2);
}

#[test]
fn one_row_does_not_resolve_two_records() {
    let harness = Harness::new();
    exported(&harness);
    std::fs::write(harness.folder.path().join("charges.csv"), "order,id\no-1,ch_1\n").unwrap();
    let from = ["resolve", "--from", "charges.csv", "--by", "order", "--completed"];
    let more = ["--status", "201", "--why", "export", "--yes", "--json"];
    let refused = harness.run(&[&from[..], &more].concat());
    assert!(refused.assert_exit(1).stderr.contains("--names-are-global"), "{}", refused.stderr);
    let more = [&more[..], &["--names-are-global"]].concat();
    let done = harness.run(&[&from[..], &more].concat());
    assert_eq!(done.assert_exit(0).json()[0]["found"], 0);
    assert!(harness.audit().is_empty());
}
