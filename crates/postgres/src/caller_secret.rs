//! The secret that callers' credentials are hashed with.
//!
//! With another secret every caller gets another name, and every key that was sent before runs once
//! more. All gateways on one store must use the same secret, so the store records a hash of it.

use std::sync::Arc;

use semel_core::{StoreError, StoreErrorKind};
use tokio_postgres::SimpleQueryMessage;

use crate::{options::Options, session::SessionConnector};

/// The first gateway on a store records the hash.
const CHECK: &str = "UPDATE {meta} SET caller_secret = '{hash}' WHERE caller_secret IS NULL; \
                     SELECT caller_secret = '{hash}' FROM {meta}";

/// Whether the store was used with a secret. A store without a hash was used with none, and accepts
/// each.
const COMPARE: &str = "SELECT coalesce(caller_secret, '{hash}') = '{hash}' FROM {meta}";

const REPLACE: &str = "UPDATE {meta} SET caller_secret = '{hash}' \
                       WHERE caller_secret = '{former}'; \
                       SELECT caller_secret = '{hash}' FROM {meta}";

impl Options {
    /// Whether this is the hash of the secret that the store was used with before. A store without
    /// one records it.
    ///
    /// # Errors
    ///
    /// If the database cannot be reached, there is no store, or the hash is not letters and digits.
    pub async fn check_secret(&self, hash: &str) -> Result<bool, StoreError> {
        check_hash(hash)?;
        self.query_secret(&self.names.fill(CHECK).replace("{hash}", hash)).await
    }

    /// Whether this is the hash of the secret that the store was used with before, or the store has
    /// none. Changes nothing.
    ///
    /// # Errors
    ///
    /// As [`Options::check_secret`].
    pub async fn compare_secret(&self, hash: &str) -> Result<bool, StoreError> {
        check_hash(hash)?;
        self.query_secret(&self.names.fill(COMPARE).replace("{hash}", hash)).await
    }

    /// Replaces the hash of a former secret. Returns whether the store uses the new one now, which
    /// it does not if it was used with neither of the two.
    ///
    /// # Errors
    ///
    /// As [`Options::check_secret`].
    pub async fn replace_secret(&self, former: &str, hash: &str) -> Result<bool, StoreError> {
        check_hash(former)?;
        check_hash(hash)?;
        let text = self.names.fill(REPLACE);
        self.query_secret(&text.replace("{hash}", hash).replace("{former}", former)).await
    }

    async fn query_secret(&self, text: &str) -> Result<bool, StoreError> {
        let session = Arc::new(SessionConnector::new(self.clone())?).open_first().await?;
        let rows = session.simple_query(text).await?;
        Ok(rows.iter().any(
            |message| matches!(message, SimpleQueryMessage::Row(row) if row.get(0) == Some("t")),
        ))
    }

    /// The statement that removes the hash of the secret from the store.
    #[must_use]
    pub fn forget_secret(&self) -> String {
        self.names.fill("UPDATE {meta} SET caller_secret = NULL")
    }
}

fn check_hash(hash: &str) -> Result<(), StoreError> {
    if hash.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return Ok(());
    }
    let message = "the hash of a secret must be letters and digits";
    Err(StoreError::new(StoreErrorKind::Unavailable, message))
}
