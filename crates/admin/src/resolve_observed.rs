//! Resolves an operation that broke off while its route only observed.
//!
//! No request is refused while a route observes, so such a record is not held: it has failed. Once
//! the route guards, its repeats get 423 as if it were held, and an operator resolves it the same
//! way.

use semel::core::{
    Claim, Claimed, Content, Fence, Fenced, Finish, OwnerToken, RecordId, Resolution, Resolved,
    StateName, StateView, Store, StoreError, StoreErrorKind,
};

/// Resolves a record of an observed scope that has this fence. An answer is recorded in the scope
/// of what is guarded, where repeats find it first.
pub(super) async fn resolve(
    store: &dyn Store,
    id: &RecordId,
    seen: Fence,
    resolution: &Resolution,
) -> Result<Resolved, StoreError> {
    let delete = Resolution::Deleted(StateName::Completed);
    let found = store.get(id).await?.filter(|found| found.fence == seen);
    let Some((found, fingerprint)) = found.and_then(|found| found.fingerprint.map(|f| (found, f)))
    else {
        return Ok(Resolved::Stale);
    };
    let StateView::Completed { answer, expires_in } = found.state else {
        return Ok(Resolved::Stale);
    };
    if !matches!(answer.read(), Ok(Content::Failed)) {
        return Ok(Resolved::Stale);
    }
    if let Resolution::Completed(answer) = resolution {
        let guarded = RecordId { scope: id.scope.guarded(), ..id.clone() };
        let mut claim = Claim::new(guarded, fingerprint, owner()?);
        claim.retention = expires_in;
        (claim.about, claim.node, claim.captured) = (found.about, found.node, found.captured);
        let Claimed::Granted(grant) = store.claim(&claim).await? else {
            return Ok(Resolved::Stale);
        };
        let finish = Finish::complete(answer.clone());
        let by = claim.claimant(grant.fence);
        if store.finish(&claim.id, by, &finish).await? != Fenced::Applied {
            return Ok(Resolved::Stale);
        }
    }
    store.resolve(id, seen, &delete).await
}

fn owner() -> Result<OwnerToken, StoreError> {
    let mut bytes = [0; 16];
    let drawn = getrandom::fill(&mut bytes);
    let failed =
        |_| StoreError::new(StoreErrorKind::Unavailable, "the system has no random numbers");
    drawn.map_err(failed)?;
    Ok(OwnerToken::from_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use semel::{
        MemoryStore,
        core::{About, Answer, Caller, Captured, Fingerprint, Key, NodeName, Scope},
    };

    use super::*;

    #[tokio::test]
    async fn the_record_of_an_answer_is_about_the_same_operation() {
        let store = MemoryStore::new();
        let guarded = Scope::new("payments").unwrap();
        let id = |scope| RecordId::new(scope, Caller::anonymous(), Key::new("k").unwrap());
        let observed = id(guarded.observed());
        let mut claim =
            Claim::new(observed.clone(), Fingerprint::of_parts("test", &[]), owner().unwrap());
        claim.about = About::new("POST api.example.com/charges");
        claim.node = NodeName::new("gateway-1");
        claim.captured = Captured::new([("order", "7")]);
        let Claimed::Granted(grant) = store.claim(&claim).await.unwrap() else { unreachable!() };
        let failed = Finish::complete(Answer::failed());
        store.finish(&observed, claim.claimant(grant.fence), &failed).await.unwrap();
        let resolution = Resolution::Completed(Answer::not_retained(201));
        let resolved = resolve(&store, &observed, grant.fence, &resolution).await.unwrap();
        assert_eq!(resolved, Resolved::Applied);
        let found = store.get(&id(guarded)).await.unwrap().unwrap();
        assert_eq!((found.about, found.node), (claim.about, claim.node));
        assert_eq!(found.captured, claim.captured);
    }
}
