//! No message is lost, and the order of a key is the order of its commits: 64 writers whose
//! transactions commit out of the order of their numbers, three relays, and `kill -9` of relays,
//! service and database.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test reports by panicking")]
#![allow(clippy::print_stdout, reason = "counts are information, not assertions")]

mod harness;
mod planted;
mod relay_process;
mod service_process;

use harness::{RelayKind, Run};
use semel_outbox::postgres::SCHEMA;
use semel_testkit::torture;

fn messages() -> usize {
    if torture() { 1_000_000 } else { 100_000 }
}

#[test]
fn torture_loses_no_message_and_inverts_none() {
    let run = Run { relay: RelayKind::Semel, relays: 3, messages: messages(), kills: true };
    let verdict = run.execute(SCHEMA);
    assert!(verdict.is_clean(), "{verdict:?}");
}

#[test]
fn a_relay_that_reads_beyond_the_last_number_loses_messages() {
    let run = Run { relay: RelayKind::AfterLast, relays: 1, messages: 5_000, kills: false };
    let verdict = run.execute(SCHEMA);
    assert!(verdict.lost > 0, "{verdict:?}");
}

#[test]
fn relays_that_skip_locked_rows_invert_messages() {
    let run = Run { relay: RelayKind::SkipLocked, relays: 3, messages: 5_000, kills: false };
    let verdict = run.execute(SCHEMA);
    assert!(verdict.inverted > 0, "{verdict:?}");
}

#[test]
fn without_the_lock_of_the_key_messages_are_inverted() {
    let unlocked = SCHEMA.replace("PERFORM pg_advisory_xact_lock(1397050437, hash);", "");
    assert_ne!(unlocked, SCHEMA);
    let run = Run { relay: RelayKind::Semel, relays: 1, messages: 5_000, kills: false };
    let verdict = run.execute(&unlocked);
    assert_eq!(verdict.lost, 0);
    assert!(verdict.inverted > 0, "{verdict:?}");
}
