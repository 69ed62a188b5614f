//! What callers ask of the lanes, and how far it has come.

use std::time::Duration;

use semel_core::{
    Claim, Claimant, Claimed, Fenced, Finish, RecordAction, Snapshot, StoreError, StoreErrorKind,
};
use tokio::{sync::oneshot, time::Instant};

use crate::digest::Digest;

/// How often a question may meet a race before the store gives up.
pub(crate) const TRIES_MAX: u8 = 50;

/// How many new connections of no use a question may meet before whoever asks is told why.
const NEW_MAX: u8 = 2;

/// What is asked.
#[derive(Debug)]
pub(crate) enum Ask {
    Claim(Box<Claim>),
    Renew(Claimant, Duration),
    Finish(Claimant, Finish),
    Get,
    Watch,
}

impl Ask {
    pub(crate) fn bytes(&self) -> usize {
        if let Self::Finish(_, Finish { action: RecordAction::Complete(answer), .. }) = self {
            answer.as_bytes().len()
        } else {
            0
        }
    }

    pub(crate) const fn line(&self) -> Line {
        match self {
            Self::Claim(_) | Self::Get | Self::Watch => Line::Claims,
            Self::Renew(..) | Self::Finish(..) => Line::Endings,
        }
    }
}

/// Where a question waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Line {
    #[default]
    Endings,
    /// Also those who only read. It meets back-pressure.
    Claims,
}

impl Line {
    pub(crate) const ALL: [Self; 2] = [Self::Endings, Self::Claims];

    pub(crate) const fn other(self) -> Self {
        match self {
            Self::Endings => Self::Claims,
            Self::Claims => Self::Endings,
        }
    }
}

/// What was found or done.
#[derive(Debug)]
pub(crate) enum Told {
    Claimed(Claimed),
    Fenced(Fenced),
    Got(Option<Box<Snapshot>>),
    Watched,
}

/// How far a question has come: most end with their first statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The statement for its usual case, if it has one and comes alone.
    Alone,
    /// The statement of its own verb.
    First,
    /// A claim that is there already, by the same owner.
    Again,
    /// A claim of a record that may run again.
    Take,
    /// A claim of a record whose lease has lapsed and that may not run again.
    Settle,
    /// A write with a fence that changed nothing.
    Check,
}

/// What becomes of a question after a statement.
#[derive(Debug)]
pub(crate) enum Outcome {
    Told(Result<Told, StoreError>),
    /// Another statement has to be sent.
    Next(Step),
}

/// Where the answer to a question is waited for, and where it is given.
pub(crate) type Awaited = oneshot::Receiver<Result<Told, StoreError>>;
type Reply = oneshot::Sender<Result<Told, StoreError>>;

/// A question on its way.
#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) digest: Digest,
    pub(crate) ask: Ask,
    pub(crate) step: Step,
    tries: u8,
    /// The connections of no use that it has met.
    pub(crate) unfit: Option<Unfit>,
    reply: Reply,
}

/// Connections of no use that a question has met.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unfit {
    since: Instant,
    /// How many of them were made after the first: those that were there before may all have been
    /// left behind by what spoiled that one.
    new: u8,
}

impl Unfit {
    /// One more, which was opened then.
    pub(crate) fn met(before: Option<Self>, opened: Instant) -> Self {
        let Some(Self { since, new }) = before else {
            return Self { since: Instant::now(), new: 0 };
        };
        Self { since, new: new.saturating_add(u8::from(opened > since)) }
    }

    /// Whether the next will hardly be better.
    pub(crate) const fn is_enough(self) -> bool {
        self.new >= NEW_MAX
    }
}

impl Question {
    /// A question, and where its answer will be.
    pub(crate) fn new(digest: Digest, ask: Ask, step: Step) -> (Self, Awaited) {
        let (reply, awaited) = oneshot::channel();
        (Self { digest, ask, step, tries: 0, unfit: None, reply }, awaited)
    }

    /// An asker that has gone away is no reason to stop: what was asked is done all the same.
    pub(crate) fn answer(self, told: Result<Told, StoreError>) {
        let _ = self.reply.send(told);
    }

    /// Whether it may have changed something, if nobody knows what became of its batch.
    pub(crate) const fn writes(&self) -> bool {
        !matches!(self.ask, Ask::Get)
    }

    pub(crate) const fn watches(&self) -> bool {
        matches!(self.ask, Ask::Watch)
    }

    /// Goes on with the next step; whoever meets race after race is told so. A claim that has come
    /// to nothing so far is not gone on with for somebody who has left, and may have come back.
    pub(crate) fn on_to(mut self, step: Step) -> Option<Self> {
        if matches!(self.ask, Ask::Claim(_)) && self.reply.is_closed() {
            return None;
        }
        self.step = step;
        self.tries += 1;
        if self.tries < TRIES_MAX {
            return Some(self);
        }
        let message = "the record changes faster than it can be claimed: try again later";
        self.answer(Err(StoreError::new(StoreErrorKind::Unavailable, message)));
        None
    }
}
