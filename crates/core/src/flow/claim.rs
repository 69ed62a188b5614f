//! The claim of a request: from the first attempt until the owner of the record is known, also
//! after the client has its reply.

use crate::{
    Claimed, Effect, Fence, Finish, Grant, Occupied, OnStoreDown, Problem, ProcessTime, Reply,
    Snapshot, StateView, StoreError, StoreErrorKind,
};

use super::{Action, ClientState, Flow, FlowPhase, not_sent};

impl Flow {
    /// The store answered the claim.
    pub fn on_claimed(&mut self, claimed: Claimed, now: ProcessTime) -> Action {
        let FlowPhase::Claiming { requested_at, may_be_granted, client } = &self.phase else {
            return Action::Sleep;
        };
        let (requested_at, client) = (*requested_at, client.clone());
        // Our claim may have been granted, and held since its lease expired.
        let lapsed = *may_be_granted && now.since(self.began_at) >= self.plan.lease_relied_on();
        match (claimed, client) {
            (Claimed::Granted(grant), ClientState::Waiting) => {
                self.granted(grant, requested_at, now)
            }
            (Claimed::Granted(grant), ClientState::Unguarded) => {
                self.next_tick = Some(requested_at.after(self.plan.lease / 3).max(now));
                self.phase = FlowPhase::Executing { grant, renewal_sent_at: None };
                Action::Guard(grant)
            }
            (Claimed::Granted(grant), ClientState::Answered(finish)) => {
                self.settle(grant.fence, finish, true, now)
            }
            // While it runs there is nothing to write. A held record waits.
            (Claimed::Occupied(Occupied::Held), ClientState::Unguarded) if lapsed => {
                self.back_off(now)
            }
            (Claimed::Occupied(Occupied::Held), client) if lapsed => {
                self.phase = FlowPhase::FindingFence { client };
                Action::Look
            }
            (Claimed::Occupied(occupied), ClientState::Waiting) => self.occupied(occupied, now),
            (Claimed::Occupied(_), client) => self.drop_claim(&client),
        }
    }

    fn granted(&mut self, grant: Grant, requested_at: ProcessTime, now: ProcessTime) -> Action {
        if self.plan.is_past_deadline(now) {
            let reply = Reply::Problem(Problem::DeadlineExceeded);
            return self.record(grant.fence, not_sent(), reply, now);
        }
        // The record was absent or forgotten, or its retention passed after the driver read it.
        if self.plan.known_key_only && grant.attempt == 1 {
            let reply = Reply::Problem(Problem::TokenInvalid);
            return self.record(grant.fence, not_sent(), reply, now);
        }
        if now < requested_at.after(self.plan.lease_relied_on()) {
            self.next_tick = Some(requested_at.after(self.plan.lease / 3));
            self.phase = FlowPhase::Executing { grant, renewal_sent_at: None };
            return Action::Execute(grant);
        }
        // The reply took longer than the lease: another request may own the record. The owner
        // token finds out (laws 7 and 8).
        if now.since(self.began_at) < self.plan.store_timeout.max(self.plan.lease.saturating_mul(2))
        {
            let client = ClientState::Waiting;
            self.phase = FlowPhase::Claiming { requested_at: now, may_be_granted: true, client };
            return Action::Claim;
        }
        self.give_up(true, now)
    }

    /// No claim of ours was granted, or that cannot be determined.
    fn drop_claim(&mut self, client: &ClientState) -> Action {
        if *client != ClientState::Unguarded {
            return self.done(Action::Done);
        }
        self.next_tick = None;
        self.phase = FlowPhase::Unguarded;
        Action::Sleep
    }

    fn occupied(&mut self, occupied: Occupied, now: ProcessTime) -> Action {
        match occupied {
            Occupied::FingerprintMismatch => self.refuse(Problem::KeyReused),
            // Nothing of ours runs: an operator released the record during the claim.
            Occupied::Ended => self.refuse(Problem::InProgress),
            Occupied::Held => self.refuse(Problem::OutcomeUnknown),
            Occupied::Completed { answer, .. } => self.reply(Reply::Replayed(answer)),
            Occupied::InFlight { .. } => self.wait(now),
        }
    }

    /// The store failed to answer the claim.
    pub fn on_claim_failed(&mut self, error: &StoreError, now: ProcessTime) -> Action {
        let FlowPhase::Claiming { may_be_granted, client, .. } = &mut self.phase else {
            return Action::Sleep;
        };
        let kind = error.kind();
        *may_be_granted |= error.effect() == Effect::Unknown;
        let (may_be_granted, client) = (*may_be_granted, client.clone());
        if client != ClientState::Waiting {
            // Damage does not pass by.
            let lasting = [StoreErrorKind::Corrupt, StoreErrorKind::Newer];
            return if lasting.contains(&kind) {
                self.drop_claim(&client)
            } else {
                self.back_off(now)
            };
        }
        let may_pass_by = may_be_granted || kind == StoreErrorKind::Unavailable;
        // The last try begins when the timeout ends, not a whole backoff after it.
        let end = self.plan.by_deadline(self.began_at.after(self.plan.store_timeout));
        if may_pass_by && now < end {
            let _ = self.back_off(now);
            self.next_tick = self.next_tick.map(|tick| tick.min(end));
            return Action::Sleep;
        }
        if kind == StoreErrorKind::Busy && !self.plan.is_past_deadline(now) {
            let reply = Reply::Problem(Problem::TooManyInFlight);
            return self.answer_unclaimed(reply, may_be_granted, now);
        }
        self.give_up(may_be_granted, now)
    }

    /// The store is known to be away: the claim was not sent. A client does not wait for it.
    pub fn on_store_away(&mut self, now: ProcessTime) -> Action {
        let FlowPhase::Claiming { may_be_granted, ref client, .. } = self.phase else {
            return Action::Sleep;
        };
        match client {
            ClientState::Waiting => self.give_up(may_be_granted, now),
            ClientState::Unguarded | ClientState::Answered(_) => self.back_off(now),
        }
    }

    /// The driver knows the reply without a claim, from its memory or from a record under which the
    /// operation was remembered before. `failed` is how the claim failed, if it was sent.
    pub fn on_known(
        &mut self,
        reply: Reply,
        failed: Option<&StoreError>,
        now: ProcessTime,
    ) -> Action {
        let FlowPhase::Claiming { may_be_granted, ref client, .. } = self.phase else {
            return Action::Sleep;
        };
        if *client != ClientState::Waiting {
            // The reply is for a client that waits. This claim is still to be settled.
            return self.back_off(now);
        }
        let open = failed.is_some_and(|error| error.effect() == Effect::Unknown);
        self.answer_unclaimed(reply, may_be_granted || open, now)
    }

    /// The client waits no longer for its claim.
    fn give_up(&mut self, may_be_granted: bool, now: ProcessTime) -> Action {
        if self.plan.is_past_deadline(now) {
            let reply = Reply::Problem(Problem::DeadlineExceeded);
            return self.answer_unclaimed(reply, may_be_granted, now);
        }
        match self.plan.on_store_down {
            // Without the store nothing proves an earlier use of the key.
            OnStoreDown::Pass if self.plan.known_key_only => {
                let reply = Reply::Problem(Problem::StoreUnavailable);
                self.answer_unclaimed(reply, may_be_granted, now)
            }
            OnStoreDown::Reject => {
                let reply = Reply::Problem(Problem::StoreUnavailable);
                self.answer_unclaimed(reply, may_be_granted, now)
            }
            OnStoreDown::Pass => {
                self.leave_claim(ClientState::Unguarded, may_be_granted, now);
                Action::Pass
            }
        }
    }

    /// The client gets its reply, and nothing runs.
    fn answer_unclaimed(&mut self, reply: Reply, may_be_granted: bool, now: ProcessTime) -> Action {
        self.leave_claim(ClientState::Answered(not_sent()), may_be_granted, now);
        Action::Reply(reply)
    }

    /// Keeps retrying a claim that may have been granted.
    pub(super) fn leave_claim(
        &mut self,
        client: ClientState,
        may_be_granted: bool,
        now: ProcessTime,
    ) {
        let _ = if may_be_granted {
            self.phase = FlowPhase::Claiming { requested_at: now, may_be_granted, client };
            self.back_off(now)
        } else {
            self.drop_claim(&client)
        };
    }

    /// What the record says that was held when we claimed it. Its fence with our owner token names
    /// our claim, or nothing (law 5).
    pub(super) fn on_held_seen(
        &mut self,
        seen: Option<&Snapshot>,
        client: ClientState,
        now: ProcessTime,
    ) -> Action {
        let held = seen.filter(|seen| seen.state == StateView::Held);
        match (held, client) {
            (Some(seen), ClientState::Answered(finish)) => {
                self.settle(seen.fence, finish, true, now)
            }
            (Some(seen), _) => self.settle(seen.fence, not_sent(), false, now),
            (None, ClientState::Answered(_)) => self.done(Action::Done),
            (None, _) => self.refuse(Problem::OutcomeUnknown),
        }
    }

    /// Ends a grant that was not used when it was given. A client that has no reply yet learns that
    /// nothing was done.
    fn settle(
        &mut self,
        fence: Fence,
        finish: Finish,
        has_replied: bool,
        now: ProcessTime,
    ) -> Action {
        let reply = Reply::Problem(Problem::StoreUnavailable);
        self.next_tick = None;
        self.phase =
            FlowPhase::Recording { fence, finish: finish.clone(), reply, since: now, has_replied };
        Action::Record(fence, finish)
    }
}
