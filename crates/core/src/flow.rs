//! The request machine: one request from its claim to its last write, without I/O and without a
//! clock.
//!
//! A driver performs the [`Step`] it is given and reports what happened with the `on_*` method that
//! fits; each returns the next step. Time is a parameter, always the driver's own monotonic clock.
//! Besides, the driver calls [`Flow::on_tick`] when [`Flow::alarm`] is due. The engine and the
//! simulator are its two drivers; fronts decide nothing.
//!
//! ```
//! use semel_core::*;
//! # let fingerprint = Fingerprint::try_from(&[1; 33][..]).unwrap();
//! let now = ProcessTime::from_millis(0);
//! let (mut flow, step) = Flow::begin(Plan::new(&Policy::default(), fingerprint), now);
//! assert_eq!(step, Step::Claim);
//!
//! let grant = Grant::new(Fence::new(1).unwrap(), 1);
//! let step = flow.on_claimed(Claimed::Granted(grant), now);
//! assert_eq!(step, Step::Execute(grant));
//!
//! let answer = Answer::not_retained(201);
//! let (verdict, reason) = (Verdict::Completed, Reason::Answered(201));
//! let result = ExecutionResult::Answered { verdict, answer: answer.clone(), reason };
//! let step = flow.on_ended(result, now);
//! assert_eq!(step, Step::Record(grant.fence, Finish::complete(answer.clone())));
//!
//! // Only what is durable is acknowledged.
//! assert_eq!(flow.on_recorded(Fenced::Applied, now), Step::Reply(Reply::Ran(answer)));
//! assert!(flow.is_done());
//! ```

mod step;

use std::time::Duration;

use crate::{
    Answer, Claimed, Content, Effect, Fence, Fenced, Fingerprint, Finish, Grant, Occupied,
    OnStoreDown, OnUnknown, Problem, ProcessTime, Reason, RecordAction, Release, Snapshot,
    Standing, StoreError, StoreErrorKind, Verdict,
};

pub use step::{ExecutionResult, LEASE_MIN, Plan, Reply, Step};

/// One request. See the [module](self) for how to drive it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    plan: Plan,
    began: ProcessTime,
    alarm: Option<ProcessTime>,
    /// The backoff before the next try of what failed, or before the next look; it doubles.
    backoff: Duration,
    phase: Phase,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// The claim is asked. `asked` is when, for law 8. `perhaps_ours`: an error left open whether
    /// it was granted. `unused`: it was granted with this fence, too late to begin. `told`: the
    /// client has its reply, and only a grant nobody uses is to be released.
    Claiming {
        asked: ProcessTime,
        perhaps_ours: bool,
        unused: Option<Fence>,
        told: bool,
    },
    /// The record is held, perhaps because our claim was granted and its lease expired before we
    /// heard of it: with which fence?
    FindingFence {
        told: bool,
    },
    /// Somebody elsewhere runs it.
    Waiting {
        until: ProcessTime,
    },
    /// Somebody in this process runs it.
    Joined,
    /// We run it.
    Executing {
        grant: Grant,
        renewing: Option<ProcessTime>,
    },
    /// It ended at `since`, and that is being written.
    Recording {
        fence: Fence,
        finish: Finish,
        reply: Reply,
        since: ProcessTime,
        told: bool,
    },
    /// Our fence was lost; what does the record say?
    Looking,
    Done,
}

const BACKOFF_MIN: Duration = Duration::from_millis(10);
const LOOK_BACKOFF_MAX: Duration = Duration::from_millis(250);

impl Flow {
    /// A request that nobody in this process runs yet.
    pub fn begin(plan: Plan, now: ProcessTime) -> (Self, Step) {
        let phase = Phase::Claiming { asked: now, perhaps_ours: false, unused: None, told: false };
        (Self { plan, began: now, alarm: None, backoff: BACKOFF_MIN, phase }, Step::Claim)
    }

    /// A request that joins an execution in this process, whose request has the fingerprint
    /// `theirs`. Report [`Flow::on_joined`] when its owner has a reply. If the two mean different
    /// things, this one waits for nothing and is told `key-reused` at once.
    pub fn join(plan: Plan, theirs: Fingerprint, now: ProcessTime) -> (Self, Step) {
        let alarm = Some(now.after(plan.wait));
        let mut flow = Self { plan, began: now, alarm, backoff: BACKOFF_MIN, phase: Phase::Joined };
        let step =
            if theirs == plan.fingerprint { Step::Sleep } else { flow.refuse(Problem::KeyReused) };
        (flow, step)
    }

    /// When to call [`Flow::on_tick`].
    #[must_use]
    pub const fn alarm(&self) -> Option<ProcessTime> {
        self.alarm
    }

    /// Whether nothing is left to do.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.phase == Phase::Done
    }

    /// Whether it waits for somebody elsewhere. Such a request has written nothing and owns
    /// nothing: it may be forgotten at any time.
    #[must_use]
    pub const fn is_waiting(&self) -> bool {
        matches!(self.phase, Phase::Waiting { .. })
    }

    // === the claim ===

    /// The store answered the claim.
    pub fn on_claimed(&mut self, claimed: Claimed, now: ProcessTime) -> Step {
        let Phase::Claiming { asked, perhaps_ours, unused, told } = self.phase else {
            return Step::Sleep;
        };
        match claimed {
            Claimed::Granted(grant) if told => self.give_back(grant.fence, told, now),
            Claimed::Granted(grant) => self.granted(grant, asked, now),
            // It was held because we were not heard of; but we know that we never began.
            Claimed::Occupied(Occupied::Held) if let Some(fence) = unused => {
                self.give_back(fence, told, now)
            }
            Claimed::Occupied(Occupied::Held)
                if perhaps_ours && self.may_have_lapsed(told, now) =>
            {
                self.phase = Phase::FindingFence { told };
                Step::Look
            }
            Claimed::Occupied(_) if told => self.done(Step::Done),
            Claimed::Occupied(occupied) => self.occupied(occupied, now),
        }
    }

    /// Whether a claim of ours may have been granted, never used, and held since its lease expired.
    /// Whoever passed the store by has run the operation.
    fn may_have_lapsed(&self, told: bool, now: ProcessTime) -> bool {
        let passed = told && self.plan.on_store_down == OnStoreDown::Pass;
        !passed && now.since(self.began) >= self.plan.lease_relied_on()
    }

    fn granted(&mut self, grant: Grant, asked: ProcessTime, now: ProcessTime) -> Step {
        if now < asked.after(self.plan.lease_relied_on()) {
            self.alarm = Some(asked.after(self.plan.lease / 3));
            self.phase = Phase::Executing { grant, renewing: None };
            return Step::Execute(grant);
        }
        // The reply took longer than the lease: somebody else may own the record by now. The owner
        // token finds out (laws 7 and 8).
        if now.since(self.began) < self.plan.store_timeout.max(self.plan.lease.saturating_mul(2)) {
            let unused = Some(grant.fence);
            self.phase = Phase::Claiming { asked: now, perhaps_ours: true, unused, told: false };
            return Step::Claim;
        }
        let _ = self.give_back(grant.fence, true, now);
        self.alarm = Some(now);
        self.store_down()
    }

    fn occupied(&mut self, occupied: Occupied, now: ProcessTime) -> Step {
        match occupied {
            Occupied::FingerprintMismatch => self.refuse(Problem::KeyReused),
            // Nothing of ours runs: an operator released the record while we asked.
            Occupied::Ended => self.refuse(Problem::InProgress),
            Occupied::Held => self.refuse(Problem::OutcomeUnknown),
            Occupied::Completed { answer, .. } => self.reply(Reply::Replayed(answer)),
            Occupied::InFlight { .. } => self.wait(now),
        }
    }

    fn wait(&mut self, now: ProcessTime) -> Step {
        if self.plan.wait.is_zero() {
            return self.refuse(Problem::InProgress);
        }
        let until = self.began.after(self.plan.wait);
        self.phase = Phase::Waiting { until };
        self.sleep_until_a_look(until, now)
    }

    /// The store failed to answer the claim.
    pub fn on_claim_failed(&mut self, error: &StoreError, now: ProcessTime) -> Step {
        let Phase::Claiming { perhaps_ours, unused, told, .. } = &mut self.phase else {
            return Step::Sleep;
        };
        *perhaps_ours |= error.effect() == Effect::Unknown;
        let (perhaps_ours, unused, told) = (*perhaps_ours, *unused, *told);
        let waited = now.since(self.began);
        if told {
            // The lease nobody uses lapses in the end; then the route's `on_unknown` applies.
            let give_up = waited > self.plan.lease.saturating_mul(10);
            return if give_up { self.done(Step::Done) } else { self.back_off(now) };
        }
        let busy = error.kind() == StoreErrorKind::Busy;
        let may_pass_by = perhaps_ours || error.kind() == StoreErrorKind::Unavailable;
        if may_pass_by && waited < self.plan.store_timeout {
            let _ = self.back_off(now);
            // The last try begins when the timeout ends, not a whole backoff after it.
            let end = self.began.after(self.plan.store_timeout);
            self.alarm = self.alarm.map(|alarm| alarm.min(end));
            return Step::Sleep;
        }
        if perhaps_ours {
            self.phase = Phase::Claiming { asked: now, perhaps_ours, unused, told: true };
            let _ = self.back_off(now);
        } else {
            let _ = self.done(Step::Done);
        }
        if busy {
            return Step::Reply(Reply::Problem(Problem::TooManyInFlight));
        }
        self.store_down()
    }

    /// What the record says that was held when we claimed it. Its fence with our owner token names
    /// our claim, or nothing (law 5).
    fn on_held_seen(&mut self, seen: Option<&Snapshot>, told: bool, now: ProcessTime) -> Step {
        match seen {
            Some(seen) if seen.standing == Standing::Held => self.give_back(seen.fence, told, now),
            _ if told => self.done(Step::Done),
            _ => self.refuse(Problem::OutcomeUnknown),
        }
    }

    fn store_down(&self) -> Step {
        match self.plan.on_store_down {
            OnStoreDown::Reject => Step::Reply(Reply::Problem(Problem::StoreUnavailable)),
            OnStoreDown::Pass => Step::Pass,
        }
    }

    /// Releases a grant that was never used. A client that was not told yet learns that nothing was
    /// done; one that passed the store by has left traces, which count.
    fn give_back(&mut self, fence: Fence, told: bool, now: ProcessTime) -> Step {
        let finish = match self.plan.on_store_down {
            OnStoreDown::Pass if told => Finish::release(Release::Rerun, Reason::Unguarded),
            OnStoreDown::Pass | OnStoreDown::Reject => {
                Finish::release(Release::NotSent, Reason::NotSent)
            }
        };
        let reply = Reply::Problem(Problem::StoreUnavailable);
        self.alarm = None;
        self.phase = Phase::Recording { fence, finish: finish.clone(), reply, since: now, told };
        Step::Record(fence, finish)
    }

    // === the execution ===

    /// The store answered a renewal (`None`: it failed to).
    ///
    /// A lost lease does not stop what was begun; the fence decides when it is recorded.
    pub fn on_renewed(&mut self, renewed: Option<Fenced>, now: ProcessTime) -> Step {
        let Phase::Executing { renewing, .. } = &mut self.phase else { return Step::Sleep };
        let asked = renewing.take().unwrap_or(now);
        self.alarm = match renewed {
            Some(Fenced::Applied) => Some(asked.after(self.plan.lease / 3).max(now)),
            Some(Fenced::Lost) => None,
            None => Some(now.after((self.plan.lease / 10).max(BACKOFF_MIN))),
        };
        Step::Sleep
    }

    /// The execution ended.
    pub fn on_ended(&mut self, result: ExecutionResult, now: ProcessTime) -> Step {
        let Phase::Executing { grant, .. } = self.phase else { return Step::Sleep };
        let (finish, reply) = match result {
            ExecutionResult::NeverReached => (
                Finish::release(Release::NotSent, Reason::NotSent),
                Reply::Problem(Problem::UpstreamUnreachable),
            ),
            ExecutionResult::Answered { verdict, answer, reason } => {
                let reply = Reply::Ran(answer.clone());
                match verdict {
                    Verdict::Completed => (Finish::complete(answer), reply),
                    Verdict::Retry => (Finish::release(Release::Refused, reason), reply),
                    Verdict::Forget => (Finish::forget(reason), reply),
                    Verdict::Unknown => self.unknown(reason, reply),
                }
            }
            ExecutionResult::Broken(reason) => {
                self.unknown(reason, Reply::Problem(Problem::UpstreamTimeout))
            }
        };
        let fence = grant.fence;
        self.alarm = None;
        self.backoff = BACKOFF_MIN;
        self.phase =
            Phase::Recording { fence, finish: finish.clone(), reply, since: now, told: false };
        Step::Record(fence, finish)
    }

    /// What to write and to reply when the outcome is unknown. Under `fail` everybody gets the one
    /// answer that every repeat will get.
    fn unknown(&self, reason: Reason, reply: Reply) -> (Finish, Reply) {
        let reply = match self.plan.on_unknown {
            OnUnknown::Fail => Reply::Problem(Problem::OperationFailed),
            OnUnknown::Hold | OnUnknown::Rerun => reply,
        };
        (Finish::unknown(self.plan.on_unknown, reason), reply)
    }

    /// The store answered how the outcome was taken.
    pub fn on_recorded(&mut self, fenced: Fenced, _now: ProcessTime) -> Step {
        let Phase::Recording { finish, reply, told, .. } = &self.phase else { return Step::Sleep };
        if *told {
            return self.done(Step::Done);
        }
        // Nothing happened in our execution, whoever owns the record now.
        let nothing_ran = matches!(
            finish.action,
            RecordAction::Forget | RecordAction::Release(Release::NotSent | Release::Refused)
        );
        if fenced == Fenced::Applied || nothing_ran {
            let reply = reply.clone();
            self.reply(reply)
        } else {
            self.phase = Phase::Looking;
            Step::Look
        }
    }

    /// The store failed to take the outcome. It is tried on for as long as the fence is ours; the
    /// client is told after a while, and never that something holds which is not durable.
    pub fn on_record_failed(&mut self, error: &StoreError, now: ProcessTime) -> Step {
        let timeout = self.plan.record_timeout();
        let Phase::Recording { fence, finish, reply, since, told } = &mut self.phase else {
            return Step::Sleep;
        };
        if let (StoreErrorKind::TooLarge, Some(smaller)) = (error.kind(), without_body(finish)) {
            *finish = smaller.clone();
            return Step::Record(*fence, smaller);
        }
        if *told || now.since(*since) < timeout {
            return self.back_off(now);
        }
        *told = true;
        // A completion that is not durable is not acknowledged, `operation-failed` included.
        let reply = match &finish.action {
            RecordAction::Complete(_) => Reply::Problem(Problem::OutcomeUnrecorded),
            RecordAction::Release(_) | RecordAction::Hold | RecordAction::Forget => reply.clone(),
        };
        let _ = self.back_off(now);
        Step::Reply(reply)
    }

    // === waiting ===

    /// What the record says now.
    pub fn on_seen(&mut self, seen: Option<&Snapshot>, now: ProcessTime) -> Step {
        let (until, vanished) = if let Phase::Waiting { until } = self.phase {
            (Some(until), Problem::InProgress)
        } else if self.phase == Phase::Looking {
            (None, Problem::OutcomeUnrecorded)
        } else if let Phase::FindingFence { told } = self.phase {
            return self.on_held_seen(seen, told, now);
        } else {
            return Step::Sleep;
        };
        let Some(seen) = seen else { return self.refuse(vanished) };
        if seen.fingerprint.is_some_and(|theirs| theirs != self.plan.fingerprint) {
            let problem = if until.is_some() { Problem::KeyReused } else { vanished };
            return self.refuse(problem);
        }
        match (&seen.standing, until) {
            (Standing::Completed { answer, .. }, _) => self.reply(Reply::Replayed(answer.clone())),
            (Standing::Held, _) => self.refuse(Problem::OutcomeUnknown),
            (Standing::InFlight { lease_left }, Some(until)) if !lease_left.is_zero() => {
                self.sleep_until_a_look(until, now)
            }
            (Standing::InFlight { .. }, _) => self.refuse(Problem::InProgress),
            // A waiter never becomes an executor: a stampede whose leader failed does not turn into
            // fifty tries in a row.
            (Standing::Released { .. }, _) => self.refuse(vanished),
        }
    }

    /// The record could not be read.
    pub fn on_look_failed(&mut self, now: ProcessTime) -> Step {
        if let Phase::Waiting { until } = self.phase {
            self.sleep_until_a_look(until, now)
        } else if self.phase == Phase::Looking {
            self.refuse(Problem::OutcomeUnrecorded)
        } else if let Phase::FindingFence { told } = self.phase {
            self.phase = Phase::Claiming { asked: now, perhaps_ours: true, unused: None, told };
            let away = StoreError::new(StoreErrorKind::Unavailable, "the record could not be read");
            self.on_claim_failed(&away, now)
        } else {
            Step::Sleep
        }
    }

    /// The owner of the execution that was joined has this reply.
    pub fn on_joined(&mut self, reply: Reply) -> Step {
        if self.phase != Phase::Joined {
            return Step::Sleep;
        }
        self.reply(match reply {
            Reply::Ran(answer) => Reply::Joined(answer),
            same @ (Reply::Joined(_) | Reply::Replayed(_) | Reply::Problem(_)) => same,
        })
    }

    /// The request that was joined does not run it either: somebody elsewhere does. Wait for that
    /// one, as long as was left.
    pub fn on_elsewhere(&mut self, now: ProcessTime) -> Step {
        if self.phase == Phase::Joined { self.wait(now) } else { Step::Sleep }
    }

    /// Time has passed.
    pub fn on_tick(&mut self, now: ProcessTime) -> Step {
        match self.alarm {
            Some(alarm) if alarm <= now => self.alarm = None,
            _ if matches!(self.phase, Phase::Waiting { .. }) => self.alarm = None,
            _ => return Step::Sleep,
        }
        match &mut self.phase {
            Phase::Claiming { asked, .. } => {
                *asked = now;
                Step::Claim
            }
            Phase::Waiting { until } if *until <= now => self.refuse(Problem::InProgress),
            Phase::Waiting { .. } | Phase::Looking | Phase::FindingFence { .. } => Step::Look,
            Phase::Joined => self.refuse(Problem::InProgress),
            Phase::Executing { grant, renewing } => {
                *renewing = Some(now);
                Step::Renew(grant.fence)
            }
            Phase::Recording { fence, finish, .. } => Step::Record(*fence, finish.clone()),
            Phase::Done => Step::Done,
        }
    }

    // === parts ===

    fn reply(&mut self, reply: Reply) -> Step {
        self.done(Step::Reply(reply))
    }

    fn refuse(&mut self, problem: Problem) -> Step {
        self.reply(Reply::Problem(problem))
    }

    fn done(&mut self, step: Step) -> Step {
        self.alarm = None;
        self.phase = Phase::Done;
        step
    }

    fn back_off(&mut self, now: ProcessTime) -> Step {
        let longest = self.plan.backoff_max().max(BACKOFF_MIN);
        self.alarm = Some(now.after(self.backoff));
        self.backoff = self.backoff.saturating_mul(2).min(longest);
        Step::Sleep
    }

    fn sleep_until_a_look(&mut self, until: ProcessTime, now: ProcessTime) -> Step {
        let next_look = if self.plan.watched { until } else { now.after(self.backoff).min(until) };
        self.alarm = Some(next_look);
        self.backoff = self.backoff.saturating_mul(2).min(LOOK_BACKOFF_MAX);
        Step::Sleep
    }
}

/// The completion with an answer that is too large for the store: that it happened, without its
/// body.
fn without_body(finish: &Finish) -> Option<Finish> {
    let RecordAction::Complete(answer) = &finish.action else { return None };
    match answer.read() {
        Ok(Content::Response(response)) => {
            Some(Finish::complete(Answer::not_retained(response.status)))
        }
        Ok(Content::NotRetained { .. } | Content::Failed) | Err(_) => None,
    }
}
