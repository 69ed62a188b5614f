//! The cache in front of a store: Redis.

use std::sync::Arc;

use anyhow::Context as _;
use semel::core::Store;
use semel_config::CacheUrl;
use semel_redis::{Options, RedisCache};

fn options(CacheUrl(server): &CacheUrl) -> anyhow::Result<Options> {
    Ok(Options::parse(&server.to_connect(None))?)
}

/// Puts a cache in front of a store.
pub(crate) async fn in_front_of(
    store: Arc<dyn Store>,
    url: &CacheUrl,
) -> anyhow::Result<Arc<dyn Store>> {
    let cache = RedisCache::connect(store, options(url)?).await;
    Ok(Arc::new(cache.context("the cache cannot be used")?))
}

/// The answer of the server to `INFO`.
pub(crate) async fn info(url: &CacheUrl) -> anyhow::Result<String> {
    Ok(options(url)?.info().await?)
}
