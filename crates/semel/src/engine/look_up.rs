//! Reads a record for a client that asks about its own operation.

use std::time::Duration;

use semel_core::{Problem, RecordId, Snapshot};

use super::Semel;
use crate::{limiter::PermitKind, observer::StoreOperation, per_caller::ScopedCallerRef};

impl Semel {
    /// The first of these records that the store has: that of a caller, then those of its former
    /// identities. For fronts.
    ///
    /// A look-up counts as a waiting request of the caller. Nothing runs, and nothing is written.
    ///
    /// # Errors
    ///
    /// [`Problem::TooManyInFlight`] at a limit, [`Problem::StoreUnavailable`] if the store does not
    /// answer within `store_timeout`.
    pub async fn look_up(
        &self,
        id: &RecordId,
        former: &[RecordId],
        store_timeout: Duration,
    ) -> Result<Option<Snapshot>, Problem> {
        let shared = &self.shared;
        let permit = shared.limiter.acquire(PermitKind::Waiting, ScopedCallerRef::of(id));
        let _permit = permit.ok_or(Problem::TooManyInFlight)?;
        for id in std::iter::once(id).chain(former) {
            let call = shared.store.get(id);
            let seen = shared.call_store(StoreOperation::Get, id, store_timeout, call).await;
            let seen = seen.map_err(|_| Problem::StoreUnavailable)?;
            // A forgotten record counts as none.
            if let Some(seen) = seen.filter(|seen| seen.fingerprint.is_some()) {
                return Ok(Some(seen));
            }
        }
        Ok(None)
    }
}
