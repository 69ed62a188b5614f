//! A world: one record, the requests that meet at it, and what is under way between them.

use semel_core::{
    Answer, Claim, Claimed, Fence, Fenced, Fingerprint, Finish, Flow, OnStoreDown, OwnerToken,
    Plan, Policy, ProcessTime, RecordId, Reply, Snapshot, StateName, StoreTime,
};

use super::{
    model_store::ModelStore,
    setup::{LEASE, RETENTION, STORE_TIMEOUT, Setup, TICK, WAIT},
};

/// What stays the same in all worlds of one exploration.
pub(super) struct Exploration {
    pub(super) setup: Setup,
    pub(super) plan: Plan,
    /// The claim of each request; they differ in the owner token only.
    pub(super) claims: Vec<Claim>,
}

impl Exploration {
    pub(super) fn new(setup: Setup) -> Self {
        let fingerprint = Fingerprint::try_from(&[1; 33][..]).expect("a version byte and a hash");
        let policy = Policy {
            lease: LEASE,
            wait: WAIT,
            retention: RETENTION,
            on_unknown: setup.on_unknown,
            on_store_down: if setup.passes { OnStoreDown::Pass } else { OnStoreDown::Reject },
            store_timeout: STORE_TIMEOUT,
            ..Policy::default()
        };
        let id = RecordId::new(
            semel_core::Scope::new("payments").expect("a scope"),
            semel_core::Caller::anonymous(),
            semel_core::Key::new("k").expect("a key"),
        );
        let claim = |request| Claim::by_policy(id.clone(), fingerprint, token(request), &policy);
        let claims = (0..setup.requests).map(claim).collect();
        Self { setup, plan: Plan::new(&policy, fingerprint), claims }
    }
}

/// The owner token number `number`.
pub(super) fn token(number: usize) -> OwnerToken {
    OwnerToken::from_bytes([u8::try_from(number).unwrap_or(u8::MAX); 16])
}

/// The answer that the run of this request gives.
pub(super) fn answer_of(request: usize) -> Answer {
    Answer::not_retained(201 + u16::try_from(request).unwrap_or(0))
}

#[derive(Clone, Hash)]
pub(super) struct World {
    pub(super) ticks: u64,
    pub(super) store: ModelStore,
    pub(super) actors: Vec<Actor>,
    /// What the operator saw, and has not acted on yet.
    pub(super) seen: Option<(Fence, StateName)>,
    /// What of the bounds is left.
    pub(super) left: RemainingBounds,
    pub(super) ghost: Ghost,
}

/// One request and the process that serves it.
#[derive(Clone, Hash, Default)]
pub(super) struct Actor {
    pub(super) life: RequestPhase,
    pub(super) flow: Option<Flow>,
    /// What the machine waits to hear from the store.
    pub(super) call: Option<Call>,
    /// The renewal under way while it runs.
    pub(super) renewal: Option<Call>,
    /// What was given up on, and may reach the store all the same.
    pub(super) late: Vec<StoreRequest>,
    pub(super) run: Option<ExploredRun>,
    /// Whose execution it joined.
    pub(super) joined: Option<usize>,
    /// What the client got, and how many times it got something.
    pub(super) reply: Option<Reply>,
    pub(super) replies: u8,

    // What the invariants remember about it.
    /// It waits, or joined.
    pub(super) waits: bool,
    /// The newest fence that the store granted it, whether or not it has heard, and until when the
    /// store promised to keep others away.
    pub(super) granted: Option<(Fence, StoreTime)>,
    /// That grant went to a claim which it had given up on.
    pub(super) granted_late: bool,
    /// It has begun to run.
    pub(super) ran: bool,
}

/// How far a request has come. What it leaves behind when it is done or crashed is cleared, so that
/// worlds which differ only in the past are one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum RequestPhase {
    #[default]
    NotArrived,
    Active,
    Done,
    Crashed,
}

/// A request to the store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum StoreRequest {
    Claim,
    Renew(Fence),
    Record(Fence, Finish),
    Look,
}

/// What the store said.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum StoreReply {
    Claimed(Claimed),
    Fenced(Fenced),
    Seen(Option<Snapshot>),
}

/// A request to the store whose reply is awaited.
#[derive(Clone, Hash)]
pub(super) struct Call {
    pub(super) request: StoreRequest,
    pub(super) way: CallState,
}

/// How far a call has come.
#[derive(Clone, Hash)]
#[expect(clippy::large_enum_variant, reason = "a box would allocate in every world with a reply")]
pub(super) enum CallState {
    Going,
    /// Only where a takeover takes two steps: the store has read that this fence's lease lapsed.
    ReadLapsed(Fence),
    /// The store has answered and the reply is slow; `true` while the generation of the record in
    /// which it answered lasts.
    Coming(StoreReply, bool),
}

/// One execution.
#[derive(Clone, Copy, Hash)]
pub(super) struct ExploredRun {
    pub(super) state: RunState,
    /// Whether it took effect: the money moved.
    pub(super) effect: bool,
    /// Whether an effect counts: not once an owner or operator has denied it, see
    /// [`Ghost::effects`].
    pub(super) counts: bool,
}

#[derive(Clone, Copy, Hash, PartialEq, Eq)]
pub(super) enum RunState {
    Going,
    /// It answered, or was never reached: it takes no effect any more.
    Over,
    /// It broke: whether it will still take effect is unknown.
    Broken,
}

/// What is left of the [bounds](super::Bounds).
#[derive(Clone, Copy, Hash)]
pub(super) struct RemainingBounds {
    pub(super) crashes: u8,
    pub(super) losses: u8,
    pub(super) slow: u8,
    pub(super) late: u8,
    pub(super) acts: u8,
}

/// What no process knows, but the invariants ask.
#[derive(Clone, Default, Hash)]
pub(super) struct Ghost {
    /// The highest fence ever issued.
    pub(super) fence: u64,
    /// How many effects there were since another became legitimate: the owner said that nothing
    /// happened, an operator said so, or the record expired.
    pub(super) effects: u8,
    /// The expiry of this record has been counted.
    pub(super) expired: bool,
    /// The answer that was acknowledged to a client. It may be forgotten, and a new generation
    /// begins, when the record expires or an operator forgets it.
    pub(super) acknowledged: Option<Answer>,
    /// How many claims were asked; counted only where it matters.
    pub(super) claims: usize,
}

impl World {
    pub(super) fn new(setup: &Setup) -> Self {
        let bounds = setup.bounds;
        Self {
            ticks: 0,
            store: ModelStore::default(),
            actors: vec![Actor::default(); setup.requests],
            seen: None,
            left: RemainingBounds {
                crashes: bounds.crashes,
                losses: bounds.losses,
                slow: bounds.slow,
                late: bounds.late,
                acts: bounds.acts,
            },
            ghost: Ghost::default(),
        }
    }

    pub(super) fn store_time(&self) -> StoreTime {
        StoreTime::from_millis(self.millis())
    }

    /// The clocks of processes have origins of their own.
    pub(super) fn process_time(&self, actor: usize) -> ProcessTime {
        let origin = 1000 * (1 + u64::try_from(actor).unwrap_or(0));
        ProcessTime::from_millis(origin + self.millis())
    }

    fn millis(&self) -> u64 {
        self.ticks * semel_core::time::millis(TICK)
    }
}

impl Actor {
    pub(super) fn has_crashed(&self) -> bool {
        self.life == RequestPhase::Crashed
    }

    pub(super) fn is_done(&self) -> bool {
        self.life == RequestPhase::Done
    }

    pub(super) fn is_running(&self) -> bool {
        self.run.is_some_and(|run| run.state == RunState::Going)
    }

    pub(super) fn slot(&mut self, slot: CallSlot) -> &mut Option<Call> {
        match slot {
            CallSlot::Main => &mut self.call,
            CallSlot::Renewal => &mut self.renewal,
        }
    }
}

/// Which of a request's calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallSlot {
    Main,
    Renewal,
}
