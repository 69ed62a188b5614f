//! What an operator may do.

use semel_core::{
    Claimed, Fenced, Finish, Occupied, OnUnknown, Reason, Record, Resolution, Resolved, State,
    StateName,
    rules::{self, Change},
};

use super::*;

fn stale() -> (Resolved, Change) {
    (Resolved::Stale, Change::Keep)
}

fn acts() -> [Resolution; 3] {
    let delete = Resolution::Deleted(StateName::Completed);
    [Resolution::Completed(answer("resolved")), Resolution::Released, delete]
}

#[test]
fn only_a_held_record_is_resolved_as_completed_or_released() {
    let [completed, released, _] = acts();
    for (act, state) in
        [(completed, State::Completed(answer("resolved"))), (released, State::Released)]
    {
        let holds = |record| {
            let resolved = ended(record, state.clone(), NOW, Reason::Resolved);
            let raised = changed(resolved, |record| record.fence = fence(9));
            (Resolved::Applied, Change::Put(raised))
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
                stale(),
                holds(held()),
                holds(held_too_long()),
            ],
        );
    }
}

#[test]
fn a_record_is_deleted_when_it_is_not_running_and_is_as_it_was_seen() {
    let names = [StateName::InFlight, StateName::Completed, StateName::Released, StateName::Held];
    for (name, found) in columns() {
        let running = name == "running";
        let shows = rules::view(found.as_ref(), NOW).map(|seen| seen.state.name());
        for seen in names {
            let act = Resolution::Deleted(seen);
            let result = rules::resolve(found.as_ref(), fence(7), &act, fence(9), NOW);
            let takes = shows == Some(seen) && !running;
            let wanted = if takes { (Resolved::Applied, Change::Delete) } else { stale() };
            assert_eq!(result, wanted, "{name}, seen {seen}");
        }
    }
}

#[test]
fn an_act_on_another_fence_is_stale_in_any_state() {
    for (name, found) in columns() {
        for act in acts() {
            let result = rules::resolve(found.as_ref(), fence(6), &act, fence(9), NOW);
            assert_eq!(result, stale(), "{name}, {act:?}");
        }
    }
}

#[test]
fn a_resolution_after_half_the_retention_restarts_retention() {
    let old = changed(record(State::Held, RETENTION * 7), |record| record.hold_for = None);
    let (result, change) =
        rules::resolve(Some(&old), fence(7), &Resolution::Released, fence(9), NOW);
    let restarted = changed(ended(old, State::Released, NOW, Reason::Resolved), |record| {
        record.fence = fence(9);
        record.expires_at = NOW.after(RETENTION);
    });
    assert_eq!((result, change), (Resolved::Applied, Change::Put(restarted)));
}

#[test]
fn an_operator_may_act_for_as_long_as_a_look_shows_the_record_as_held() {
    let lapsed = lapsed(OnUnknown::Hold);
    let act = Resolution::Completed(answer("resolved"));
    // Neither a reaper nor a claim has written the failure that `hold_for` requires.
    let late = NOW.after(HOLD_FOR * 2);
    for found in [lapsed, held(), held_too_long()] {
        let seen = rules::view(Some(&found), late).map(|seen| seen.state.name());
        assert_eq!(seen, Some(StateName::Held));
        let (result, change) = rules::resolve(Some(&found), fence(7), &act, fence(9), late);
        assert_eq!(result, Resolved::Applied);
        let Change::Put(resolved) = change else { unreachable!("the answer is written") };
        assert_eq!(resolved.state, State::Completed(answer("resolved")));
    }

    // Once it is written, it is the answer.
    let failed = failed(held_too_long(), Reason::HoldExpired);
    assert_eq!(rules::resolve(Some(&failed), fence(7), &act, fence(9), late), stale());
}

#[test]
fn the_late_owner_of_a_resolved_record_has_lost() {
    for act in [Resolution::Completed(answer("resolved")), Resolution::Released] {
        let (_, Change::Put(resolved)) =
            rules::resolve(Some(&held()), fence(7), &act, fence(9), NOW)
        else {
            unreachable!("a held record is resolved")
        };
        assert_eq!(resolved.owner, by().owner, "the token stays");
        let late = Finish::complete(answer("late"));
        let (result, change) = rules::finish(Some(&resolved), by(), &late, NOW);
        assert_eq!((result, change), (Fenced::Lost, Change::Keep));
    }
}

#[test]
fn a_claim_of_the_owner_whose_record_was_released_meanwhile_has_ended() {
    let act = Resolution::Released;
    let (_, Change::Put(resolved)) = rules::resolve(Some(&held()), fence(7), &act, fence(9), NOW)
    else {
        unreachable!("a held record is resolved")
    };
    let mut again = claim();
    again.owner = by().owner;
    let (result, change) = rules::claim(Some(&resolved), &again, fence(10), NOW);
    let ended = Claimed::Occupied(Occupied::Ended);
    assert_eq!((result, change), (ended, Change::Keep));
}

/// The record keeps what the claim said of itself, whatever is done to it.
#[test]
fn a_resolution_keeps_what_the_record_is_about() {
    let (_, Change::Put(after)) =
        rules::resolve(Some(&held()), fence(7), &Resolution::Released, fence(9), NOW)
    else {
        unreachable!("a held record is resolved")
    };
    let of = |record: &Record| (record.about.clone(), record.node.clone(), record.captured.clone());
    assert_eq!(of(&after), of(&held()));
}
