//! Commands of callers on one record, and how far each has come.

use std::time::Duration;

use semel_core::{
    Claim, Claimant, Claimed, Fenced, Finish, Occupied, RecordAction, Snapshot, StoreError,
    StoreErrorKind, StoreTime, limit::LimitKeys,
};
use tokio::{sync::oneshot, time::Instant};

use crate::digest::Digest;

/// How many races a command may lose before it fails.
pub(crate) const RACES_MAX: u8 = 50;

/// How many unusable new connections a command may meet before it fails.
const NEW_CONNECTIONS_MAX: u8 = 2;

/// What a caller asks of one record.
#[derive(Debug)]
pub(crate) enum RecordCommand {
    Claim(Box<Claim>),
    Renew(Claimant, Duration),
    Finish(Claimant, Finish),
    Get,
    Watch,
}

impl RecordCommand {
    /// The size of the answer to be stored, which bounds a batch.
    pub(crate) fn answer_bytes(&self) -> usize {
        if let Self::Finish(_, Finish { action: RecordAction::Complete(answer), .. }) = self {
            answer.as_bytes().len()
        } else {
            0
        }
    }

    pub(crate) const fn queue_kind(&self) -> QueueKind {
        match self {
            Self::Claim(_) | Self::Get | Self::Watch => QueueKind::Claims,
            Self::Renew(..) | Self::Finish(..) => QueueKind::Updates,
        }
    }
}

/// The queue in which a command waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum QueueKind {
    /// Renewals and finishes.
    #[default]
    Updates,
    /// Claims, and commands that only read. This queue has a length limit.
    Claims,
}

impl QueueKind {
    pub(crate) const ALL: [Self; 2] = [Self::Updates, Self::Claims];

    pub(crate) const fn other(self) -> Self {
        match self {
            Self::Updates => Self::Claims,
            Self::Claims => Self::Updates,
        }
    }
}

/// The result of a command.
#[derive(Debug)]
pub(crate) enum CommandReply {
    Claimed(Claimed),
    Fenced(Fenced),
    Got(Option<Box<Snapshot>>),
    Watched,
}

/// Which statement a command needs next. Most end with their first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StatementStage {
    /// The statement for the usual case of a single command, if there is one.
    Single,
    /// The batch statement of the command.
    First,
    /// A claim that the same owner already has.
    Reclaim,
    /// A claim of a record that may run again.
    TakeOver,
    /// A claim of a record whose lease has expired and that may not run again.
    Settle,
    /// A fenced write that changed nothing.
    Check,
}

/// The result of a statement for one command.
#[derive(Debug)]
pub(crate) enum StatementOutcome {
    Reply(Result<CommandReply, StoreError>),
    /// The command needs another statement.
    Next(StatementStage),
    /// The command needs another statement, which has to know something of the record.
    NextWith(StatementStage, Box<LimitHint>),
    /// A counter that is committed as full kept a claim from being granted. The reason is to be
    /// read.
    Blocked,
}

impl StatementOutcome {
    pub(crate) const fn claimed(occupied: Occupied) -> Self {
        Self::Reply(Ok(CommandReply::Claimed(Claimed::Occupied(occupied))))
    }
}

/// What an earlier statement found about the velocity limits of a record.
#[derive(Clone, Debug)]
pub(crate) struct LimitHint {
    /// Where the record has reserved a unit.
    pub(crate) reserved: LimitKeys,
    /// When it was claimed.
    pub(crate) claimed_at: StoreTime,
    /// Whether a claim is decided under the locks of its counters, full or not.
    pub(crate) is_locking: bool,
}

impl Default for LimitHint {
    fn default() -> Self {
        Self { reserved: LimitKeys::NONE, claimed_at: StoreTime::default(), is_locking: false }
    }
}

pub(crate) type CommandReceiver = oneshot::Receiver<Result<CommandReply, StoreError>>;
type CommandSender = oneshot::Sender<Result<CommandReply, StoreError>>;

/// A command that waits for a statement or its result.
#[derive(Debug)]
pub(crate) struct QueuedCommand {
    pub(crate) digest: Digest,
    pub(crate) command: RecordCommand,
    pub(crate) stage: StatementStage,
    races: u8,
    /// The unusable connections that it has met.
    pub(crate) bad_connections: Option<BadConnections>,
    pub(crate) hint: Option<Box<LimitHint>>,
    reply: CommandSender,
}

/// The unusable connections that a command has met.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BadConnections {
    since: Instant,
    /// How many of them were opened after the first was met. Older ones do not count: whatever
    /// made the first one unusable may have hit all connections that were open then.
    opened_since: u8,
}

impl BadConnections {
    /// Counts one more, by the time at which it was opened.
    pub(crate) fn after(before: Option<Self>, opened: Instant) -> Self {
        let Some(Self { since, opened_since }) = before else {
            return Self { since: Instant::now(), opened_since: 0 };
        };
        let opened_since = opened_since.saturating_add(u8::from(opened > since));
        Self { since, opened_since }
    }

    /// Whether another connection will hardly be better.
    pub(crate) const fn is_limit_reached(self) -> bool {
        self.opened_since >= NEW_CONNECTIONS_MAX
    }
}

impl QueuedCommand {
    pub(crate) fn new(
        digest: Digest,
        command: RecordCommand,
        stage: StatementStage,
    ) -> (Self, CommandReceiver) {
        let (reply, receiver) = oneshot::channel();
        let (races, bad_connections, hint) = (0, None, None);
        (Self { digest, command, stage, races, bad_connections, hint, reply }, receiver)
    }

    /// Replies to the caller. A caller that no longer waits is not an error: the command took
    /// effect all the same.
    pub(crate) fn reply(self, reply: Result<CommandReply, StoreError>) {
        let _ = self.reply.send(reply);
    }

    /// The counters that the statement of this stage may change.
    pub(crate) fn limit_keys(&self) -> LimitKeys {
        let reserved = || self.hint.iter().flat_map(|hint| hint.reserved.iter());
        match (&self.command, self.stage) {
            (RecordCommand::Claim(claim), StatementStage::Single | StatementStage::First) => {
                claim.limits.keys()
            }
            (RecordCommand::Claim(claim), StatementStage::TakeOver) => {
                LimitKeys::new(claim.limits.iter().map(|limit| limit.key).chain(reserved()))
            }
            (RecordCommand::Claim(_), StatementStage::Settle) => LimitKeys::new(reserved()),
            (RecordCommand::Finish(_, finish), StatementStage::Single | StatementStage::First)
                if finish.action != RecordAction::Hold =>
            {
                let found = self.hint.as_ref().map(|hint| hint.reserved.clone());
                found.unwrap_or_else(|| finish.limits.clone())
            }
            _ => LimitKeys::NONE,
        }
    }

    /// Whether it may have changed something if the result of its batch is unknown.
    pub(crate) const fn writes(&self) -> bool {
        !matches!(self.command, RecordCommand::Get)
    }

    pub(crate) const fn is_watch(&self) -> bool {
        matches!(self.command, RecordCommand::Watch)
    }

    /// Moves on to the next stage, or fails after too many lost races. A claim that has done
    /// nothing so far is dropped if its caller no longer waits: the caller may have retried.
    pub(crate) fn advance(mut self, stage: StatementStage) -> Option<Self> {
        if matches!(self.command, RecordCommand::Claim(_)) && self.reply.is_closed() {
            return None;
        }
        self.stage = stage;
        self.races += 1;
        if self.races < RACES_MAX {
            return Some(self);
        }
        let message = "the record changes faster than it can be claimed: try again later";
        self.reply(Err(StoreError::new(StoreErrorKind::Unavailable, message)));
        None
    }
}
