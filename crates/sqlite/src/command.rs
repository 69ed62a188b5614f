//! The commands for the writer and the reader threads, and their replies.

use std::time::Duration;

use bytes::Bytes;
use semel_core::{
    Answer, Batch, Claim, Claimant, Claimed, Epoch, Fence, Fenced, Finish, ListQuery, Page,
    RecordAction, RecordId, Resolution, Resolved, Snapshot, Usage,
};

/// A command for the writer or a reader.
#[derive(Debug)]
pub(crate) enum SqliteCommand {
    /// A claim, and the index hash of its record: the caller computes the hash to save the writer
    /// the work.
    Claim(Box<Claim>, u64),
    Renew(RecordId, Claimant, Duration),
    Finish(RecordId, Claimant, Finish),
    Resolve(RecordId, Fence, Resolution),
    Reap(u32),
    Sweep(u32),
    SetMetadata(Box<str>, Option<Vec<u8>>),
    /// Read the claims that other processes have made.
    CatchUp,
    Get(RecordId),
    List(Box<ListQuery>),
    Epoch,
    Usage,
    /// Read the metadata below this prefix.
    Metadata(Box<str>),
}

impl SqliteCommand {
    pub(crate) fn bytes(&self) -> usize {
        self.completion().map_or(0, |(_, answer)| answer.as_bytes().len())
    }

    /// The number of the record that this completes, as a sort key. Other commands sort after all
    /// completions.
    pub(crate) fn completes(&self) -> u64 {
        self.completion().map_or(u64::MAX, |(by, _)| by.fence.get())
    }

    const fn completion(&self) -> Option<(&Claimant, &Answer)> {
        if let Self::Finish(_, by, Finish { action: RecordAction::Complete(answer), .. }) = self {
            Some((by, answer))
        } else {
            None
        }
    }
}

/// The result of a command.
#[derive(Debug)]
pub(crate) enum SqliteReply {
    Claimed(Claimed),
    Fenced(Fenced),
    Resolved(Resolved),
    Batch(Batch),
    Done,
    Got(Option<Box<Snapshot>>),
    Page(Page),
    Epoch(Epoch),
    Usage(Usage),
    Metadata(Vec<(Box<str>, Bytes)>),
}
