//! What an operator's program asks a cache about itself.

use std::time::Duration;

use redis::AsyncConnectionConfig;
use semel_core::{StoreError, StoreErrorKind};

use crate::Options;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(5);

impl Options {
    /// What Redis says of itself: the answer to `INFO`, a line for each fact.
    ///
    /// # Errors
    ///
    /// If it cannot be reached, or this user may not ask.
    pub async fn info(&self) -> Result<String, StoreError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(PATIENCE))
            .set_response_timeout(Some(PATIENCE));
        let client = self.client()?;
        let asked = async {
            let mut line = client.get_multiplexed_async_connection_with_config(&config).await?;
            redis::cmd("INFO").query_async(&mut line).await
        };
        asked.await.map_err(|error: redis::RedisError| {
            StoreError::new(StoreErrorKind::Unavailable, error.to_string()).because(error)
        })
    }
}
