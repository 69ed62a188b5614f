//! The deadline of a request bounds its claim, its wait and its begin, and never its execution.

use semel_core::{Finish, Reason, Release};

use super::*;

const DEADLINE: u64 = 1000;

fn plan_until(policy: &Policy, deadline: u64) -> Plan {
    plan(policy).with_deadline(Some(at(deadline)))
}

fn asking_until(policy: &Policy, deadline: u64) -> Flow {
    let (flow, step) = Flow::begin(plan_until(policy, deadline), at(0));
    assert_eq!(step, Action::Claim);
    flow
}

fn not_sent() -> Finish {
    Finish::release(Release::NotSent, Reason::NotSent)
}

#[test]
fn a_request_that_arrives_after_its_deadline_claims_nothing() {
    for now in [DEADLINE, DEADLINE + 1] {
        let (flow, step) = Flow::begin(plan_until(&policy(), DEADLINE), at(now));
        assert_eq!(step, problem(Problem::DeadlineExceeded));
        assert!(flow.is_done());
        let (_, step) = Flow::join(plan_until(&policy(), DEADLINE), fingerprint(1), at(now));
        assert_eq!(step, problem(Problem::DeadlineExceeded));
    }
}

#[test]
fn a_claim_that_is_granted_after_the_deadline_is_released_unused() {
    let mut flow = asking_until(&policy(), DEADLINE);
    let step = flow.on_claimed(Claimed::Granted(GRANT), at(DEADLINE));
    assert_eq!(step, Action::Record(GRANT.fence, not_sent()));
    let step = flow.on_recorded(semel_core::Fenced::Applied, at(DEADLINE));
    assert_eq!(step, problem(Problem::DeadlineExceeded));
    let mut flow = asking_until(&policy(), DEADLINE);
    let step = flow.on_claimed(Claimed::Granted(GRANT), at(DEADLINE - 1));
    assert_eq!(step, Action::Execute(GRANT));
}

#[test]
fn an_operation_that_has_begun_is_not_bounded() {
    let mut flow = asking_until(&policy(), DEADLINE);
    let _ = flow.on_claimed(Claimed::Granted(GRANT), at(0));
    assert_eq!(flow.on_tick(at(LEASE.as_millis() as u64 / 3)), Action::Renew(GRANT.fence));
    let _ = flow.on_renewed(Some(semel_core::Fenced::Applied), at(10_100));
    let step = flow.on_ended(answered(Verdict::Completed), at(20_000));
    assert_eq!(step, Action::Record(GRANT.fence, Finish::complete(answer())));
    let step = flow.on_recorded(semel_core::Fenced::Applied, at(20_001));
    assert_eq!(step, Action::Reply(Reply::Ran(answer())));
}

#[test]
fn a_wait_ends_at_the_deadline_and_says_that_the_operation_runs_on() {
    let mut flow = asking_until(&policy(), DEADLINE);
    assert_eq!(flow.on_claimed(in_flight(), at(0)), Action::Sleep);
    while flow.next_tick() < Some(at(DEADLINE)) {
        let now = flow.next_tick().unwrap();
        assert_eq!(flow.on_tick(now), Action::Look);
        assert_eq!(flow.on_look_failed(now), Action::Sleep);
    }
    assert_eq!(flow.on_tick(at(DEADLINE)), problem(Problem::DeadlineExceededInFlight));

    let (mut flow, _) = Flow::join(plan_until(&policy(), DEADLINE), fingerprint(1), at(0));
    assert_eq!(flow.next_tick(), Some(at(DEADLINE)));
    assert_eq!(flow.on_tick(at(DEADLINE)), problem(Problem::DeadlineExceededInFlight));
}

#[test]
fn a_deadline_beyond_the_wait_changes_nothing() {
    let wait = WAIT.as_millis() as u64;
    let (mut flow, _) = Flow::join(plan_until(&policy(), wait + 1), fingerprint(1), at(0));
    assert_eq!(flow.on_tick(at(wait)), problem(Problem::InProgress));
}

#[test]
fn a_store_that_fails_is_not_asked_beyond_the_deadline() {
    for on_store_down in [OnStoreDown::Reject, OnStoreDown::Pass] {
        let policy = Policy { on_store_down, ..policy() };
        let mut flow = asking_until(&policy, DEADLINE);
        let mut now = at(0);
        let step = loop {
            let step = flow.on_claim_failed(&unavailable(), now);
            if step != Action::Sleep {
                break step;
            }
            now = flow.next_tick().unwrap();
            assert!(now <= at(DEADLINE));
            assert_eq!(flow.on_tick(now), Action::Claim);
        };
        assert_eq!((step, now), (problem(Problem::DeadlineExceeded), at(DEADLINE)));
        let mut flow = asking_until(&policy, DEADLINE);
        let step = flow.on_store_away(at(DEADLINE));
        assert_eq!(step, problem(Problem::DeadlineExceeded), "it does not begin unguarded");
    }
}

#[test]
fn a_joiner_does_not_get_the_deadline_of_its_owner() {
    let (mut flow, _) = Flow::join(plan(&policy()), fingerprint(1), at(0));
    let step = flow.on_joined(Reply::Problem(Problem::DeadlineExceeded));
    assert_eq!(step, problem(Problem::InProgress));
}

/// A generator of numbers that are the same at every run.
struct Lcg(u64);

impl Lcg {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % limit
    }
}

/// Stores that are slow, fail and recover, and clocks that jump between two events.
#[test]
fn none_of_a_hundred_thousand_requests_begins_after_its_deadline() {
    let mut random = Lcg(7);
    let (mut begun, mut refused) = (0, 0);
    for _ in 0..100_000 {
        let on_store_down =
            if random.below(2) == 0 { OnStoreDown::Pass } else { OnStoreDown::Reject };
        let policy = Policy { on_store_down, ..policy() };
        let deadline = random.below(3000);
        let mut now = random.below(100);
        let (mut flow, mut step) = Flow::begin(plan_until(&policy, deadline), at(now));
        loop {
            step = match step.clone() {
                Action::Claim => {
                    now += random.below(1500);
                    match random.below(4) {
                        0 => flow.on_claim_failed(&unavailable(), at(now)),
                        1 => flow.on_claim_failed(&unavailable().effect_unknown(), at(now)),
                        2 => flow.on_store_away(at(now)),
                        _ => flow.on_claimed(Claimed::Granted(GRANT), at(now)),
                    }
                }
                Action::Sleep => {
                    let alarm = flow.next_tick().map_or(0, |alarm| alarm.since(at(0)).as_millis());
                    now = now.max(u64::try_from(alarm).unwrap()) + random.below(50);
                    flow.on_tick(at(now))
                }
                Action::Execute(_) | Action::Pass => {
                    assert!(now < deadline, "begun at {now}, deadline {deadline}");
                    begun += 1;
                    break;
                }
                Action::Reply(Reply::Problem(Problem::DeadlineExceeded)) => {
                    assert!(now >= deadline, "refused at {now}, deadline {deadline}");
                    refused += 1;
                    break;
                }
                Action::Record(..) => flow.on_recorded(semel_core::Fenced::Applied, at(now)),
                Action::Reply(Reply::Problem(Problem::StoreUnavailable)) => break,
                Action::Guard(_)
                | Action::Renew(_)
                | Action::Look
                | Action::Reply(_)
                | Action::Done => panic!("{step:?}"),
            };
        }
    }
    assert!(begun > 20_000 && refused > 20_000, "{begun} begun, {refused} refused");
}
