//! What an operator may do.

use semel_core::{
    OnUnknown, Record, Resolution, Resolved, State, StateName,
    rules::{self, Change},
};

use super::*;

fn stale() -> (Resolved, Change) {
    (Resolved::Stale, Change::Keep)
}

fn acts() -> [Resolution; 3] {
    let forget = Resolution::Forgotten(StateName::Completed);
    [Resolution::Completed(answer("resolved")), Resolution::Released, forget]
}

#[test]
fn it_happened_or_it_did_not_is_said_of_held_records_only() {
    let [completed, released, _] = acts();
    for (act, state) in
        [(completed, State::Completed(answer("resolved"))), (released, State::Released)]
    {
        let holds = |record| {
            let raised = Record { fence: fence(9), ..record };
            (Resolved::Applied, put(raised, state.clone()))
        };
        check(
            |found| rules::resolve(found, fence(7), &act, fence(9), NOW),
            [
                stale(),
                stale(),
                holds(lapsed(OnUnknown::Hold)),
                stale(),
                stale(),
                stale(),
                stale(),
                stale(),
                stale(),
                holds(held()),
            ],
        );
    }
}

#[test]
fn a_record_is_forgotten_when_nobody_runs_it_and_it_is_as_it_was_seen() {
    let names = [StateName::InFlight, StateName::Completed, StateName::Released, StateName::Held];
    for (name, found) in columns() {
        let running = name == "running";
        let shows = rules::view(found.as_ref(), NOW).map(|seen| seen.standing.name());
        for seen in names {
            let act = Resolution::Forgotten(seen);
            let told = rules::resolve(found.as_ref(), fence(7), &act, fence(9), NOW);
            let takes = shows == Some(seen) && !running;
            let wanted = if takes { (Resolved::Applied, Change::Delete) } else { stale() };
            assert_eq!(told, wanted, "{name}, seen {seen}");
        }
    }
}

#[test]
fn an_act_on_another_fence_is_stale_in_any_state() {
    for (name, found) in columns() {
        for act in acts() {
            let told = rules::resolve(found.as_ref(), fence(6), &act, fence(9), NOW);
            assert_eq!(told, stale(), "{name}, {act:?}");
        }
    }
}

#[test]
fn a_resolution_after_half_the_retention_is_kept_anew() {
    let old = record(State::Held, RETENTION * 7);
    let (told, change) = rules::resolve(Some(&old), fence(7), &Resolution::Released, fence(9), NOW);
    let anew = Record { fence: fence(9), expires_at: NOW.after(RETENTION), ..old };
    assert_eq!((told, change), (Resolved::Applied, put(anew, State::Released)));
}
