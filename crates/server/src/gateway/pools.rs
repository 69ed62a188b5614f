//! All connections of one thread, by upstream. They outlive a change of the configuration that
//! leaves their upstream as it is.

use std::{
    fs,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{pool::Pool, tls::Connector};
use crate::config::Upstream;

/// The pools of one thread.
#[derive(Debug, Default)]
pub(crate) struct Pools(Mutex<Vec<Arc<Pool>>>);

impl Pools {
    /// The pool for an upstream, a new one if there is none.
    pub(crate) fn get(&self, upstream: &Arc<Upstream>) -> anyhow::Result<Arc<Pool>> {
        let mut pools = self.lock();
        let trusted_since =
            upstream.ca.as_ref().and_then(|ca| fs::metadata(ca).ok()?.modified().ok());
        let same = |pool: &&Arc<Pool>| {
            *pool.upstream() == *upstream && pool.trusted_since() == trusted_since
        };
        if let Some(pool) = pools.iter().find(same) {
            return Ok(Arc::clone(pool));
        }
        let connector = Connector::new(upstream)?;
        let pool = Arc::new(Pool::new(Arc::clone(upstream), connector, trusted_since));
        pools.push(Arc::clone(&pool));
        Ok(pool)
    }

    /// Closes connections that have been idle for too long, and forgets upstreams that no route
    /// uses any more.
    pub(crate) fn prune(&self) {
        let mut pools = self.lock();
        pools.retain(|pool| Arc::strong_count(pool) > 1);
        for pool in &*pools {
            pool.prune();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Pool>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
