//! The pools of one worker by upstream. A pool survives a reload that does not change its upstream.

use std::{
    fs,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::tls::UpstreamConnector;
use crate::upstream::pool::Pool;
use semel_config::Upstream;

/// The pools of one worker by upstream.
#[derive(Debug, Default)]
pub(crate) struct PoolMap(Mutex<Vec<Arc<Pool>>>);

impl PoolMap {
    /// Returns the pool of an upstream, and creates it if there is none.
    pub(crate) fn get(&self, upstream: &Arc<Upstream>) -> anyhow::Result<Arc<Pool>> {
        let mut pools = self.lock();
        let ca_modified =
            upstream.ca.as_ref().and_then(|ca| fs::metadata(ca).ok()?.modified().ok());
        let same =
            |pool: &&Arc<Pool>| *pool.upstream() == *upstream && pool.ca_modified() == ca_modified;
        if let Some(pool) = pools.iter().find(same) {
            return Ok(Arc::clone(pool));
        }
        let connector = UpstreamConnector::new(upstream)?;
        let pool = Arc::new(Pool::new(Arc::clone(upstream), connector, ca_modified));
        pools.push(Arc::clone(&pool));
        Ok(pool)
    }

    /// Closes expired connections, and removes pools that no route uses any more.
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
