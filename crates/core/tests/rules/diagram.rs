//! The state diagram in `ARCHITECTURE.md`, made from the rules.
//!
//! Every operation is applied to every column of the table of states. A change of state becomes an
//! arrow. `SEMEL_BLESS=1 cargo test -p semel-core --test rules diagram` writes the diagram.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path};

use semel_core::{
    Finish, Release, Resolution, StateName,
    rules::{self, Change},
};

use super::*;

const BEGIN: &str = "<!-- made from the rules by crates/core/tests/rules/diagram.rs -->\n";
const END: &str = "<!-- end -->";

#[test]
fn the_diagram_in_the_architecture_is_what_the_rules_do() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ARCHITECTURE.md");
    let page = fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(BEGIN).expect("the page has the first mark");
    let (written, after) = rest.split_once(END).expect("the page has the second mark");
    let diagram = diagram();
    if std::env::var_os("SEMEL_BLESS").is_some() {
        fs::write(&path, format!("{before}{BEGIN}{diagram}{END}{after}")).unwrap();
        return;
    }
    assert_eq!(written, diagram, "run this test with SEMEL_BLESS=1 to write the diagram");
}

fn diagram() -> String {
    let mut arrows: BTreeMap<(&str, &str), Vec<String>> = BTreeMap::new();
    for (operation, apply) in operations() {
        for (column, found) in columns() {
            let Some(after) = apply(found.as_ref()) else { continue };
            let Some(label) = label(column, operation) else { continue };
            let arrow = (state(found.as_ref()), state(after.as_ref()));
            let labels = arrows.entry(arrow).or_default();
            if !labels.contains(&label) {
                labels.push(label);
            }
        }
    }
    let mut text = "```mermaid\nstateDiagram-v2\n".to_owned();
    for ((from, to), labels) in arrows {
        let _ = writeln!(text, "    {from} --> {to}: {}", labels.join("<br>"));
    }
    text.push_str("```\n");
    text
}

/// What an arrow is called. A claim and a reaper find the same of a lease that has expired; what
/// else may happen to such a record is shown at the state that it counts as.
fn label(column: &str, operation: &str) -> Option<String> {
    let settles = ["claim", "reap"].contains(&operation);
    match column.split_once(", ") {
        Some(("lapsed", on_unknown)) => {
            settles.then(|| format!("lease expired, on_unknown = {on_unknown}"))
        }
        Some(("held", _)) => settles.then(|| "hold_for passed".to_owned()),
        Some((_, past)) => (operation != "delete").then(|| format!("{operation} {past}")),
        None => Some(operation.to_owned()),
    }
}

/// What an operation makes of a record: `None` if it changes nothing.
type Apply = Box<dyn Fn(Option<&Record>) -> Option<Option<Record>>>;

fn operations() -> Vec<(&'static str, Apply)> {
    let finish = |finish: Finish| -> Apply {
        Box::new(move |found| after(found, rules::finish(found, by(), &finish, NOW).1))
    };
    let resolve = |resolution: Resolution| -> Apply {
        Box::new(move |found| {
            after(found, rules::resolve(found, fence(7), &resolution, fence(9), NOW).1)
        })
    };
    let reap: Apply = Box::new(|found| after(found, rules::reap(found?, NOW)));
    let sweep: Apply = Box::new(|found| rules::past_retention(found?, NOW).then_some(None));
    let claim: Apply =
        Box::new(|found| after(found, rules::claim(found, &claim(), fence(8), NOW).1));
    vec![
        ("claim", claim),
        ("complete", finish(Finish::complete(answer("new")))),
        ("release", finish(Finish::release(Release::Refused, Reason::Answered(429)))),
        ("forget", finish(Finish::forget(Reason::NotSent))),
        ("hold", finish(Finish::hold(Reason::TimedOut(1)))),
        ("reap", reap),
        ("resolve as completed", resolve(Resolution::Completed(answer("said")))),
        ("resolve as released", resolve(Resolution::Released)),
        ("delete", resolve(Resolution::Deleted(StateName::Held))),
        ("delete", resolve(Resolution::Deleted(StateName::Completed))),
        ("delete", resolve(Resolution::Deleted(StateName::Released))),
        ("sweep", sweep),
    ]
}

fn after(found: Option<&Record>, change: Change) -> Option<Option<Record>> {
    match change {
        Change::Keep => None,
        Change::Put(record) => (found != Some(&record)).then_some(Some(record)),
        Change::Delete => Some(None),
    }
}

/// A forgotten record is a released one without a fingerprint.
fn state(record: Option<&Record>) -> &'static str {
    match record {
        None => "[*]",
        Some(record) if record.fingerprint.is_none() => "forgotten",
        Some(record) => match record.state {
            State::InFlight { .. } => "in_flight",
            State::Completed(_) => "completed",
            State::Released => "released",
            State::Held => "held",
        },
    }
}
