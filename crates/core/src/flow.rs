//! The state machine of one request, from its claim to its last write, without I/O and without a
//! clock.
//!
//! A driver performs the [`Action`] it is given and reports what happened with the `on_*` method
//! that fits; each returns the next [`Action`]. Time is a parameter, always the driver's own
//! monotonic clock. The driver also calls [`Flow::on_tick`] when [`Flow::next_tick`] is due. The
//! engine and the explorer are its two drivers; the HTTP layer and `once` make no decision.
//!
//! ```
//! use semel_core::*;
//! # let fingerprint = Fingerprint::try_from(&[1; 33][..]).unwrap();
//! let now = ProcessTime::from_millis(0);
//! let (mut flow, step) = Flow::begin(Plan::new(&Policy::default(), fingerprint), now);
//! assert_eq!(step, Action::Claim);
//!
//! let grant = Grant::new(Fence::new(1).unwrap(), 1);
//! let step = flow.on_claimed(Claimed::Granted(grant), now);
//! assert_eq!(step, Action::Execute(grant));
//!
//! let answer = Answer::not_retained(201);
//! let (verdict, reason) = (Verdict::Completed, Reason::Answered(201));
//! let result = ExecutionResult::Answered { verdict, answer: answer.clone(), reason };
//! let step = flow.on_ended(result, now);
//! assert_eq!(step, Action::Record(grant.fence, Finish::complete(answer.clone())));
//!
//! // Only what is durable is acknowledged.
//! assert_eq!(flow.on_recorded(Fenced::Applied, now), Action::Reply(Reply::Ran(answer)));
//! assert!(flow.is_done());
//! ```

mod action;
mod claim;
mod former;

use std::time::Duration;

use crate::{
    Answer, Fence, Fenced, Fingerprint, Finish, Grant, Problem, ProcessTime, Reason, RecordAction,
    Release, Snapshot, StateView, StoreError, StoreErrorKind, Verdict,
};

pub use action::{Action, ExecutionResult, LEASE_MIN, Plan, Reply};
pub use former::would_begin;

/// One request. See the [module](self) for how to drive it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    plan: Plan,
    began_at: ProcessTime,
    next_tick: Option<ProcessTime>,
    /// The backoff before the next retry, or before the next read of the record; it doubles.
    backoff: Duration,
    phase: FlowPhase,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum FlowPhase {
    /// The claim was sent to the store at `requested_at`, from which the lease counts (law 8).
    /// `may_be_granted`: an earlier error left it unknown whether the claim was granted.
    Claiming {
        requested_at: ProcessTime,
        may_be_granted: bool,
        client: ClientState,
    },
    /// The record is held, perhaps because the claim of this request was granted and its lease
    /// expired before the reply came. The driver reads the fence of the record.
    FindingFence {
        client: ClientState,
    },
    /// Another process runs the operation.
    Waiting {
        until: ProcessTime,
    },
    /// Another request in this process runs the operation.
    Joined,
    /// This request runs the operation.
    Executing {
        grant: Grant,
        renewal_sent_at: Option<ProcessTime>,
    },
    /// This process runs the operation without a claim, and no claim of this request can have been
    /// granted.
    Unguarded,
    /// The execution ended at `since`; its result is being written.
    Recording {
        fence: Fence,
        finish: Finish,
        reply: Reply,
        since: ProcessTime,
        has_replied: bool,
    },
    /// The write was refused by the fence. The driver reads the record to choose the reply.
    ReadingRecord,
    Done,
}

/// State of the client while it is unknown whether its claim was granted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum ClientState {
    /// The client waits for a reply: a grant starts the operation.
    Waiting,
    /// The operation runs without a claim; a grant that arrives now guards it.
    Unguarded,
    /// The client has its reply: a grant is finished with this.
    Answered(Finish),
}

/// Minimum timeout of a claim attempt, also when less of `store_timeout` is left.
const CLAIM_TIMEOUT_MIN: Duration = Duration::from_millis(50);

const BACKOFF_MIN: Duration = Duration::from_millis(10);
const READ_BACKOFF_MAX: Duration = Duration::from_millis(250);

impl Flow {
    /// A request whose operation does not run in this process yet.
    pub fn begin(plan: Plan, now: ProcessTime) -> (Self, Action) {
        let phase = FlowPhase::Claiming {
            requested_at: now,
            may_be_granted: false,
            client: ClientState::Waiting,
        };
        let mut flow = Self { plan, began_at: now, next_tick: None, backoff: BACKOFF_MIN, phase };
        if plan.is_past_deadline(now) {
            let refused = flow.refuse(Problem::DeadlineExceeded);
            return (flow, refused);
        }
        (flow, Action::Claim)
    }

    /// Starts a flow that [releases](Self::unsettled) a claim that may have been granted and is not
    /// used.
    #[must_use]
    pub fn give_back(plan: Plan, now: ProcessTime) -> Self {
        let (mut flow, _) = Self::begin(plan, now);
        flow.leave_claim(ClientState::Answered(not_sent()), true, now);
        flow
    }

    /// A request that joins an execution in this process. `running_fingerprint` is the fingerprint
    /// of the request that it joins. Report [`Flow::on_joined`] when its owner has a reply. If the
    /// fingerprints differ, this request gets `key-reused` at once.
    pub fn join(plan: Plan, running_fingerprint: Fingerprint, now: ProcessTime) -> (Self, Action) {
        let next_tick = Some(plan.by_deadline(now.after(plan.wait)));
        let mut flow =
            Self { plan, began_at: now, next_tick, backoff: BACKOFF_MIN, phase: FlowPhase::Joined };
        let step = if plan.is_past_deadline(now) {
            flow.refuse(Problem::DeadlineExceeded)
        } else if running_fingerprint == plan.fingerprint {
            Action::Sleep
        } else {
            flow.refuse(Problem::KeyReused)
        };
        (flow, step)
    }

    /// When to call [`Flow::on_tick`].
    #[must_use]
    pub const fn next_tick(&self) -> Option<ProcessTime> {
        self.next_tick
    }

    /// Whether nothing is left to do.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.phase == FlowPhase::Done
    }

    /// Whether it waits for an owner in another process. Such a request has written nothing, owns
    /// nothing, and may be dropped at any time.
    #[must_use]
    pub const fn is_waiting(&self) -> bool {
        matches!(self.phase, FlowPhase::Waiting { .. })
    }

    /// The finish to write if the claim was granted, while the client already has its reply and the
    /// result of the claim is unknown. The claim is retried until the store answers, so that no
    /// record is held for an operation that has ended or never began.
    #[must_use]
    pub const fn unsettled(&self) -> Option<&Finish> {
        if let FlowPhase::Claiming { client: ClientState::Answered(finish), .. }
        | FlowPhase::FindingFence { client: ClientState::Answered(finish) } = &self.phase
        {
            Some(finish)
        } else {
            None
        }
    }

    /// The timeout of the current claim attempt: a client that waits for it waits no longer than
    /// the route's `store_timeout` in all.
    #[must_use]
    pub fn claim_timeout(&self, now: ProcessTime) -> Duration {
        let waits = matches!(self.phase, FlowPhase::Claiming { client: ClientState::Waiting, .. });
        let left = self.plan.by_deadline(self.began_at.after(self.plan.store_timeout)).since(now);
        let timeout = if waits { left } else { self.plan.store_timeout };
        timeout.max(CLAIM_TIMEOUT_MIN)
    }

    // === the execution ===

    /// The store answered a renewal (`None`: it failed to).
    ///
    /// A lost lease does not stop a running operation; the fence decides whether its result is
    /// recorded.
    pub fn on_renewed(&mut self, renewed: Option<Fenced>, now: ProcessTime) -> Action {
        let FlowPhase::Executing { renewal_sent_at, .. } = &mut self.phase else {
            return Action::Sleep;
        };
        let sent_at = renewal_sent_at.take().unwrap_or(now);
        self.next_tick = match renewed {
            Some(Fenced::Applied) => Some(sent_at.after(self.plan.lease / 3).max(now)),
            Some(Fenced::Lost) => None,
            None => Some(now.after((self.plan.lease / 10).max(BACKOFF_MIN))),
        };
        Action::Sleep
    }

    /// The execution ended, guarded or not.
    pub fn on_ended(&mut self, result: ExecutionResult, now: ProcessTime) -> Action {
        if let FlowPhase::Executing { grant, .. } = self.phase {
            let (finish, reply) = self.finish_and_reply(result, Reply::Ran);
            return self.record(grant.fence, finish, reply, now);
        }
        let (finish, reply) = self.finish_and_reply(result, Reply::Unguarded);
        match &mut self.phase {
            FlowPhase::Unguarded => self.reply(reply),
            FlowPhase::Claiming { client: client @ ClientState::Unguarded, .. } => {
                *client = ClientState::Answered(finish);
                Action::Reply(reply)
            }
            FlowPhase::Claiming { .. }
            | FlowPhase::FindingFence { .. }
            | FlowPhase::Waiting { .. }
            | FlowPhase::Joined
            | FlowPhase::Executing { .. }
            | FlowPhase::Recording { .. }
            | FlowPhase::ReadingRecord
            | FlowPhase::Done => Action::Sleep,
        }
    }

    fn record(&mut self, fence: Fence, finish: Finish, reply: Reply, now: ProcessTime) -> Action {
        // Under `fail` the owner and its joiners get the one answer that every repeat will get.
        let failed = finish.action == RecordAction::Complete(Answer::failed());
        let reply = if failed { Reply::Problem(Problem::OperationFailed) } else { reply };
        self.next_tick = None;
        self.backoff = BACKOFF_MIN;
        let (kept, has_replied) = (finish.clone(), false);
        self.phase = FlowPhase::Recording { fence, finish: kept, reply, since: now, has_replied };
        Action::Record(fence, finish)
    }

    /// The finish to write for a result, and the reply to the client.
    fn finish_and_reply(
        &self,
        result: ExecutionResult,
        ran: impl Fn(Answer) -> Reply,
    ) -> (Finish, Reply) {
        let unknown = |reason| Finish::unknown(self.plan.on_unknown, reason);
        match result {
            ExecutionResult::NeverReached => {
                (not_sent(), Reply::Problem(Problem::UpstreamUnreachable))
            }
            ExecutionResult::Answered { verdict, answer, reason } => {
                let reply = ran(answer.clone());
                let finish = match verdict {
                    Verdict::Completed => Finish::complete(answer),
                    Verdict::Retry => Finish::release(Release::Refused, reason),
                    Verdict::Forget => Finish::forget(reason),
                    Verdict::Unknown => unknown(reason),
                };
                (finish, reply)
            }
            ExecutionResult::Broken(reason) => {
                (unknown(reason), Reply::Problem(Problem::UpstreamTimeout))
            }
        }
    }

    /// The store replied to the write of the outcome.
    pub fn on_recorded(&mut self, fenced: Fenced, _now: ProcessTime) -> Action {
        let FlowPhase::Recording { finish, reply, has_replied, .. } = &self.phase else {
            return Action::Sleep;
        };
        if *has_replied {
            return self.done(Action::Done);
        }
        // Nothing happened in our execution, whichever owner the record has now.
        let nothing_ran = matches!(
            finish.action,
            RecordAction::Forget | RecordAction::Release(Release::NotSent | Release::Refused)
        );
        if fenced == Fenced::Applied || nothing_ran {
            let reply = reply.clone();
            self.reply(reply)
        } else {
            self.phase = FlowPhase::ReadingRecord;
            Action::Look
        }
    }

    /// The write of the outcome failed. It is retried until the store replies; after
    /// `record_timeout` the client gets its reply, with an error instead of an answer that is not
    /// durable.
    pub fn on_record_failed(&mut self, error: &StoreError, now: ProcessTime) -> Action {
        let timeout = self.plan.record_timeout();
        let FlowPhase::Recording { fence, finish, reply, since, has_replied } = &mut self.phase
        else {
            return Action::Sleep;
        };
        if let (StoreErrorKind::TooLarge, Some(smaller)) = (error.kind(), finish.without_body()) {
            *finish = smaller.clone();
            return Action::Record(*fence, smaller);
        }
        if *has_replied || now.since(*since) < timeout {
            return self.back_off(now);
        }
        *has_replied = true;
        // A completion that is not durable is not acknowledged, `operation-failed` included.
        let reply = match &finish.action {
            RecordAction::Complete(_) => Reply::Problem(Problem::OutcomeUnrecorded),
            RecordAction::Release(_) | RecordAction::Hold | RecordAction::Forget => reply.clone(),
        };
        let _ = self.back_off(now);
        Action::Reply(reply)
    }

    // === waiting ===

    /// The driver has read the record.
    pub fn on_seen(&mut self, seen: Option<&Snapshot>, now: ProcessTime) -> Action {
        let (until, vanished) = if let FlowPhase::Waiting { until } = self.phase {
            (Some(until), Problem::InProgress)
        } else if self.phase == FlowPhase::ReadingRecord {
            (None, Problem::OutcomeUnrecorded)
        } else if let FlowPhase::FindingFence { client } = &self.phase {
            let client = client.clone();
            return self.on_held_seen(seen, client, now);
        } else {
            return Action::Sleep;
        };
        let Some(seen) = seen else { return self.refuse(vanished) };
        if seen.fingerprint.is_some_and(|theirs| theirs != self.plan.fingerprint) {
            let problem = if until.is_some() { Problem::KeyReused } else { vanished };
            return self.refuse(problem);
        }
        match (&seen.state, until) {
            (StateView::Completed { answer, .. }, _) => self.reply(Reply::Replayed(answer.clone())),
            (StateView::Held, _) => self.refuse(Problem::OutcomeUnknown),
            (StateView::InFlight { lease_left }, Some(until)) if !lease_left.is_zero() => {
                self.sleep_until_next_read(until, now)
            }
            (StateView::InFlight { .. }, _) => self.refuse(Problem::InProgress),
            // A waiter never executes. Otherwise all waiters of a failed operation would run it one
            // after the other (thundering herd).
            (StateView::Released { .. }, _) => self.refuse(vanished),
        }
    }

    /// The record could not be read.
    pub fn on_look_failed(&mut self, now: ProcessTime) -> Action {
        if let FlowPhase::Waiting { until } = self.phase {
            self.sleep_until_next_read(until, now)
        } else if self.phase == FlowPhase::ReadingRecord {
            self.refuse(Problem::OutcomeUnrecorded)
        } else if let FlowPhase::FindingFence { client } = &self.phase {
            let client = client.clone();
            self.phase = FlowPhase::Claiming { requested_at: now, may_be_granted: true, client };
            let away = StoreError::new(StoreErrorKind::Unavailable, "the record could not be read");
            self.on_claim_failed(&away, now)
        } else {
            Action::Sleep
        }
    }

    /// The owner of the execution that was joined has this reply.
    pub fn on_joined(&mut self, reply: Reply) -> Action {
        if self.phase != FlowPhase::Joined {
            return Action::Sleep;
        }
        self.reply(match reply {
            Reply::Ran(answer) => Reply::Joined(answer),
            // The deadline of the owner is not that of this request.
            Reply::Problem(Problem::DeadlineExceeded) => Reply::Problem(Problem::InProgress),
            Reply::Joined(_)
            | Reply::Unguarded(_)
            | Reply::Replayed(_)
            | Reply::Limited(_)
            | Reply::Problem(_) => reply,
        })
    }

    /// The joined request waits for another process. This one then waits for that process, for the
    /// rest of `wait`.
    pub fn on_elsewhere(&mut self, now: ProcessTime) -> Action {
        if self.phase == FlowPhase::Joined { self.wait(now) } else { Action::Sleep }
    }

    /// The time of `next_tick` has come, or the record that this request waits for may have
    /// changed.
    pub fn on_tick(&mut self, now: ProcessTime) -> Action {
        match self.next_tick {
            Some(next_tick) if next_tick <= now => self.next_tick = None,
            _ if matches!(self.phase, FlowPhase::Waiting { .. }) => self.next_tick = None,
            _ => return Action::Sleep,
        }
        match &mut self.phase {
            FlowPhase::Claiming { requested_at, .. } => {
                *requested_at = now;
                Action::Claim
            }
            FlowPhase::Waiting { until } if *until <= now => self.stop_waiting(now),
            FlowPhase::Waiting { .. }
            | FlowPhase::ReadingRecord
            | FlowPhase::FindingFence { .. } => Action::Look,
            FlowPhase::Joined => self.stop_waiting(now),
            FlowPhase::Executing { grant, renewal_sent_at } => {
                *renewal_sent_at = Some(now);
                Action::Renew(grant.fence)
            }
            FlowPhase::Recording { fence, finish, .. } => Action::Record(*fence, finish.clone()),
            FlowPhase::Unguarded => Action::Sleep,
            FlowPhase::Done => Action::Done,
        }
    }

    // === parts ===

    fn wait(&mut self, now: ProcessTime) -> Action {
        if self.plan.wait.is_zero() {
            return self.refuse(Problem::InProgress);
        }
        let until = self.plan.by_deadline(self.began_at.after(self.plan.wait));
        self.phase = FlowPhase::Waiting { until };
        self.sleep_until_next_read(until, now)
    }

    /// The answer of another request did not come in time.
    fn stop_waiting(&mut self, now: ProcessTime) -> Action {
        self.refuse(if self.plan.is_past_deadline(now) {
            Problem::DeadlineExceededInFlight
        } else {
            Problem::InProgress
        })
    }

    fn reply(&mut self, reply: Reply) -> Action {
        self.done(Action::Reply(reply))
    }

    fn refuse(&mut self, problem: Problem) -> Action {
        self.reply(Reply::Problem(problem))
    }

    fn done(&mut self, step: Action) -> Action {
        self.next_tick = None;
        self.phase = FlowPhase::Done;
        step
    }

    fn back_off(&mut self, now: ProcessTime) -> Action {
        let longest = self.plan.backoff_max().max(BACKOFF_MIN);
        self.next_tick = Some(now.after(self.backoff));
        self.backoff = self.backoff.saturating_mul(2).min(longest);
        Action::Sleep
    }

    fn sleep_until_next_read(&mut self, until: ProcessTime, now: ProcessTime) -> Action {
        let next_read = if self.plan.watched { until } else { now.after(self.backoff).min(until) };
        self.next_tick = Some(next_read);
        self.backoff = self.backoff.saturating_mul(2).min(READ_BACKOFF_MAX);
        Action::Sleep
    }
}

/// The finish of a grant under which no request was sent.
const fn not_sent() -> Finish {
    Finish::release(Release::NotSent, Reason::NotSent)
}
