//! A question that comes alone, by a statement for the usual case of a single record.
//!
//! Such a statement does nothing in any other case, and the question goes on as one of a batch.

use semel_core::{
    Answer, Claim, Claimant, Claimed, Fenced, Finish, Grant, RecordAction, StoreError,
};
use tokio_postgres::types::ToSql;

use crate::{
    batch::Failure,
    digest::Digest,
    question::{Ask, Question, Step, Told},
    row::{self, milliseconds, number, retained, word},
    session::Session,
    statements::Verb,
};

/// A question that has such a statement, as its asker has it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lone<'a> {
    Claim(&'a Claim),
    Complete(Claimant, &'a Answer),
}

impl<'a> Lone<'a> {
    /// A completion without a reason to record.
    pub(crate) const fn completion(by: Claimant, finish: &'a Finish) -> Option<Self> {
        match finish {
            Finish { action: RecordAction::Complete(answer), reason: None, .. } => {
                Some(Self::Complete(by, answer))
            }
            _ => None,
        }
    }
}

impl Question {
    /// The question by itself, if there is such a statement for it that was not tried before.
    pub(crate) fn lone(&self) -> Option<Lone<'_>> {
        match &self.ask {
            _ if self.step != Step::Alone => None,
            Ask::Claim(claim) => Some(Lone::Claim(claim)),
            Ask::Finish(by, finish) => Lone::completion(*by, finish),
            Ask::Renew(..) | Ask::Get | Ask::Watch => None,
        }
    }
}

/// Sends a question; `None` if it is not the usual case. Through a pooler it would take a
/// transaction, and gain nothing.
pub(crate) async fn send(
    session: &Session,
    digest: Digest,
    lone: Lone<'_>,
) -> Result<Option<Result<Told, StoreError>>, Failure> {
    if !session.named {
        return Ok(None);
    }
    match lone {
        Lone::Claim(one) => claim(session, digest, one).await,
        Lone::Complete(by, answer) => complete(session, digest, by, answer).await,
    }
}

async fn claim(
    session: &Session,
    digest: Digest,
    claim: &Claim,
) -> Result<Option<Result<Told, StoreError>>, Failure> {
    let Claim { id, fingerprint, owner, lease, retention, on_unknown, .. } = claim;
    let (scope, caller, key) = (id.scope.as_str(), id.caller.as_str(), id.key.as_str());
    let (print, owner) = (fingerprint.as_bytes().as_slice(), Digest::from(owner));
    let (lease, retention) = (milliseconds(*lease), retained(*retention));
    let (unknown, hold_for) = (word(*on_unknown), claim.hold_for.map(milliseconds));
    let (about, node, captured) =
        (claim.about.as_str(), claim.node.as_str(), claim.captured.as_str());
    let statement = session.prepared(Verb::ClaimOne).await?;
    let given: [&(dyn ToSql + Sync); 13] = [
        &digest, &scope, &caller, &key, &print, &owner, &lease, &retention, &unknown, &hold_for,
        &about, &node, &captured,
    ];
    let row = session.client.query_opt(statement, &given).await?;
    Ok(row.map(|row| {
        let granted = |fence| Told::Claimed(Claimed::Granted(Grant::new(fence, 1)));
        row::fence(&row, 0).map(granted).map_err(StoreError::effect_unknown)
    }))
}

async fn complete(
    session: &Session,
    digest: Digest,
    by: Claimant,
    answer: &Answer,
) -> Result<Option<Result<Told, StoreError>>, Failure> {
    let bytes = &answer.as_bytes()[..];
    let statement = session.prepared(Verb::CompleteOne).await?;
    let (fence, owner) = (number(by.fence), Digest::from(&by.owner));
    let given: [&(dyn ToSql + Sync); 4] = [&digest, &fence, &owner, &bytes];
    let written = session.client.execute(statement, &given).await?;
    Ok((written == 1).then_some(Ok(Told::Fenced(Fenced::Applied))))
}
