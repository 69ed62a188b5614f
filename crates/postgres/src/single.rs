//! Single commands: a shorter statement for the usual case of one claim or one completion.
//!
//! In any other case the statement does nothing, and the command continues as a batch of one.

use semel_core::{
    Answer, Claim, Claimant, Claimed, Fenced, Finish, Grant, RecordAction, StoreError,
};
use tokio_postgres::types::ToSql;

use crate::{
    command::{CommandReply, QueuedCommand, RecordCommand, StatementStage},
    digest::Digest,
    error::StatementFailure,
    row::{self, fence_number, milliseconds, on_unknown_text, rounded_retention},
    session::Session,
    statements::StatementKind,
};

/// A command that has such a statement, borrowed from its caller.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SingleCommand<'a> {
    Claim(&'a Claim),
    Complete(Claimant, &'a Answer),
}

impl<'a> SingleCommand<'a> {
    /// A claim without limits.
    pub(crate) const fn claim(claim: &'a Claim) -> Option<Self> {
        if claim.limits.is_empty() { Some(Self::Claim(claim)) } else { None }
    }

    /// A completion without a reason to record and without limits.
    pub(crate) const fn completion(by: Claimant, finish: &'a Finish) -> Option<Self> {
        match finish {
            Finish { action: RecordAction::Complete(answer), reason: None, limits, .. }
                if limits.is_empty() =>
            {
                Some(Self::Complete(by, answer))
            }
            _ => None,
        }
    }
}

impl QueuedCommand {
    /// The command as a single one, if there is a statement for it that was not tried before.
    pub(crate) fn as_single(&self) -> Option<SingleCommand<'_>> {
        match &self.command {
            _ if self.stage != StatementStage::Single => None,
            RecordCommand::Claim(claim) => SingleCommand::claim(claim),
            RecordCommand::Finish(by, finish) => SingleCommand::completion(*by, finish),
            RecordCommand::Renew(..) | RecordCommand::Get | RecordCommand::Watch => None,
        }
    }
}

/// Sends a single command; `None` if it is not the usual case. Through a pooler the statement would
/// need a transaction, which saves nothing.
pub(crate) async fn send(
    session: &Session,
    digest: Digest,
    single: SingleCommand<'_>,
) -> Result<Option<Result<CommandReply, StoreError>>, StatementFailure> {
    if !session.dedicated {
        return Ok(None);
    }
    match single {
        SingleCommand::Claim(one) => claim(session, digest, one).await,
        SingleCommand::Complete(by, answer) => complete(session, digest, by, answer).await,
    }
}

async fn claim(
    session: &Session,
    digest: Digest,
    claim: &Claim,
) -> Result<Option<Result<CommandReply, StoreError>>, StatementFailure> {
    let Claim { id, fingerprint, owner, lease, retention, on_unknown, .. } = claim;
    let (scope, caller, key) = (id.scope.as_str(), id.caller.as_str(), id.key.as_str());
    let (print, owner) = (fingerprint.as_bytes().as_slice(), Digest::from(owner));
    let (lease, retention) = (milliseconds(*lease), rounded_retention(*retention));
    let (unknown, hold_for) = (on_unknown_text(*on_unknown), claim.hold_for.map(milliseconds));
    let (about, node, captured) =
        (claim.about.as_str(), claim.node.as_str(), claim.captured.as_str());
    let statement = session.prepared(StatementKind::ClaimOne).await?;
    let parameters: [&(dyn ToSql + Sync); 13] = [
        &digest, &scope, &caller, &key, &print, &owner, &lease, &retention, &unknown, &hold_for,
        &about, &node, &captured,
    ];
    let row = session.client.query_opt(statement, &parameters).await?;
    Ok(row.map(|row| {
        let granted = |fence| CommandReply::Claimed(Claimed::Granted(Grant::new(fence, 1)));
        row::fence(&row, 0).map(granted).map_err(StoreError::effect_unknown)
    }))
}

async fn complete(
    session: &Session,
    digest: Digest,
    by: Claimant,
    answer: &Answer,
) -> Result<Option<Result<CommandReply, StoreError>>, StatementFailure> {
    let bytes = &answer.as_bytes()[..];
    let statement = session.prepared(StatementKind::CompleteOne).await?;
    let (fence, owner) = (fence_number(by.fence), Digest::from(&by.owner));
    let parameters: [&(dyn ToSql + Sync); 4] = [&digest, &fence, &owner, &bytes];
    let written = session.client.execute(statement, &parameters).await?;
    Ok((written == 1).then_some(Ok(CommandReply::Fenced(Fenced::Applied))))
}
