//! A question that comes alone, by a statement for the usual case of a single record.
//!
//! Such a statement does nothing in any other case, and the question goes on as one of a batch.

use semel_core::{Answer, Claim, Claimed, Fence, Fenced, Grant, StoreError};
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
    Complete(Fence, &'a Answer),
}

impl Question {
    /// The question by itself, if there is such a statement for it that was not tried before.
    pub(crate) fn lone(&self) -> Option<Lone<'_>> {
        match &self.ask {
            _ if self.step != Step::Alone => None,
            Ask::Claim(claim) => Some(Lone::Claim(claim)),
            Ask::Complete(fence, answer) => Some(Lone::Complete(*fence, answer)),
            Ask::Renew(..) | Ask::Release(..) | Ask::Hold(_) | Ask::Get | Ask::Watch => None,
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
        Lone::Complete(fence, answer) => complete(session, digest, fence, answer).await,
    }
}

async fn claim(
    session: &Session,
    digest: Digest,
    claim: &Claim,
) -> Result<Option<Result<Told, StoreError>>, Failure> {
    let Claim { id, fingerprint, owner, lease, retention, on_unknown } = claim;
    let (scope, caller, key) = (id.scope.as_str(), id.caller.as_str(), id.key.as_str());
    let (print, owner) = (fingerprint.as_bytes().as_slice(), Digest::from(owner));
    let (lease, retention) = (milliseconds(*lease), retained(*retention));
    let unknown = word(*on_unknown);
    let statement = session.prepared(Verb::ClaimOne).await?;
    let given: [&(dyn ToSql + Sync); 9] =
        [&digest, &scope, &caller, &key, &print, &owner, &lease, &retention, &unknown];
    let row = session.client.query_opt(statement, &given).await?;
    Ok(row.map(|row| {
        let granted = |fence| Told::Claimed(Claimed::Granted(Grant { fence, attempt: 1 }));
        row::fence(&row, 0).map(granted).map_err(StoreError::effect_unknown)
    }))
}

async fn complete(
    session: &Session,
    digest: Digest,
    fence: Fence,
    answer: &Answer,
) -> Result<Option<Result<Told, StoreError>>, Failure> {
    let bytes = &answer.as_bytes()[..];
    let statement = session.prepared(Verb::CompleteOne).await?;
    let given: [&(dyn ToSql + Sync); 3] = [&digest, &number(fence), &bytes];
    let written = session.client.execute(statement, &given).await?;
    Ok((written == 1).then_some(Ok(Told::Fenced(Fenced::Applied))))
}
