//! Diagnostics of a cache, for operators.

use std::time::Duration;

use redis::AsyncConnectionConfig;
use semel_core::{StoreError, StoreErrorKind};

use crate::Options;

/// How long `INFO` may take.
const INFO_TIMEOUT: Duration = Duration::from_secs(5);

impl Options {
    /// The reply to `INFO`: one fact per line.
    ///
    /// # Errors
    ///
    /// If Redis cannot be reached, or this user may not run `INFO`.
    pub async fn info(&self) -> Result<String, StoreError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(INFO_TIMEOUT))
            .set_response_timeout(Some(INFO_TIMEOUT));
        let client = self.client()?;
        let query = async {
            let mut connection =
                client.get_multiplexed_async_connection_with_config(&config).await?;
            redis::cmd("INFO").query_async(&mut connection).await
        };
        query.await.map_err(|error: redis::RedisError| {
            StoreError::new(StoreErrorKind::Unavailable, error.to_string()).because(error)
        })
    }
}
