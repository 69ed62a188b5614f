//! A question that comes alone, by a statement for the usual case of a single record.
//!
//! Such a statement does nothing in any other case, and the question goes on as one of a batch.

use semel_core::{Answer, Claim, Claimed, Fence, Fenced, Grant, StoreError};
use tokio_postgres::types::ToSql;

use crate::{
    batch::Failure,
    digest::Digest,
    question::{Ask, Outcome, Question, Step, Told},
    row::{self, milliseconds, number, retained, word},
    session::Session,
    statements::Verb,
};

/// Sends a question, if there is such a statement for it and it is the usual case. Through a pooler
/// it would take a transaction, and gain nothing.
pub(crate) async fn send(
    session: &Session,
    question: &Question,
) -> Result<Option<Outcome>, Failure> {
    if !session.named || question.step != Step::First {
        return Ok(None);
    }
    match &question.ask {
        Ask::Claim(one) => claim(session, question.digest, one).await,
        Ask::Complete(fence, answer) => complete(session, question.digest, *fence, answer).await,
        Ask::Renew(..) | Ask::Release(..) | Ask::Hold(_) | Ask::Get | Ask::Watch => Ok(None),
    }
}

async fn claim(
    session: &Session,
    digest: Digest,
    claim: &Claim,
) -> Result<Option<Outcome>, Failure> {
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
        Outcome::Told(row::fence(&row, 0).map(granted).map_err(StoreError::effect_unknown))
    }))
}

async fn complete(
    session: &Session,
    digest: Digest,
    fence: Fence,
    answer: &Answer,
) -> Result<Option<Outcome>, Failure> {
    let bytes = &answer.as_bytes()[..];
    let statement = session.prepared(Verb::CompleteOne).await?;
    let given: [&(dyn ToSql + Sync); 3] = [&digest, &number(fence), &bytes];
    let written = session.client.execute(statement, &given).await?;
    Ok((written == 1).then_some(Outcome::Told(Ok(Told::Fenced(Fenced::Applied)))))
}
