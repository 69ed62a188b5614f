//! Whether the callers of a store still have the names that they had.
//!
//! A front that tells callers by a credential hashes it with a secret. With another secret every
//! caller is a stranger, and every key that was sent before runs once more. All who share a store
//! must share that secret, so the store remembers a print of it.

use std::sync::Arc;

use semel_core::{StoreError, StoreErrorKind};
use tokio_postgres::SimpleQueryMessage;

use crate::{options::Options, session::Connector};

/// Whoever comes first is believed.
const QUESTION: &str = "UPDATE {meta} SET caller_secret = '{print}' WHERE caller_secret IS NULL; \
                        SELECT caller_secret = '{print}' FROM {meta}";

/// One secret takes the place of another.
const REPLACEMENT: &str = "UPDATE {meta} SET caller_secret = '{print}' \
                           WHERE caller_secret = '{former}'; \
                           SELECT caller_secret = '{print}' FROM {meta}";

impl Options {
    /// Whether this is the print of the secret that the store was used with before. A store that
    /// knows none remembers it.
    ///
    /// # Errors
    ///
    /// If the database cannot be reached, there is no store, or the print is not letters and
    /// digits.
    pub async fn recognise(&self, print: &str) -> Result<bool, StoreError> {
        check_print(print)?;
        self.ask_secret(&self.names.fill(QUESTION).replace("{print}", print)).await
    }

    /// Remembers another secret in place of a former one, and returns whether the store is used
    /// with it now: not if it was used with neither of the two.
    ///
    /// # Errors
    ///
    /// As [`Options::recognise`].
    pub async fn replace_secret(&self, former: &str, print: &str) -> Result<bool, StoreError> {
        check_print(former)?;
        check_print(print)?;
        let text = self.names.fill(REPLACEMENT);
        self.ask_secret(&text.replace("{print}", print).replace("{former}", former)).await
    }

    async fn ask_secret(&self, text: &str) -> Result<bool, StoreError> {
        let session = Arc::new(Connector::new(self.clone())?).open_first().await?;
        let told = session.ask(text).await?;
        Ok(told.iter().any(
            |message| matches!(message, SimpleQueryMessage::Row(row) if row.get(0) == Some("t")),
        ))
    }

    /// The statement that makes the store forget which secret it was used with.
    #[must_use]
    pub fn forget_secret(&self) -> String {
        self.names.fill("UPDATE {meta} SET caller_secret = NULL")
    }
}

fn check_print(print: &str) -> Result<(), StoreError> {
    if print.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return Ok(());
    }
    let message = "the print of a secret is letters and digits";
    Err(StoreError::new(StoreErrorKind::Unavailable, message))
}
