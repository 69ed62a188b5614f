//! Without the feature `redis` there is no cache, and the configuration refuses its URL.

use std::sync::Arc;

use anyhow::bail;
use semel::core::Store;
use semel_config::CacheUrl;

const MISSING: &str = "this program was built without Redis";

pub(crate) async fn in_front_of(_: Arc<dyn Store>, _: &CacheUrl) -> anyhow::Result<Arc<dyn Store>> {
    bail!(MISSING)
}

pub(crate) async fn info(_: &CacheUrl) -> anyhow::Result<String> {
    bail!(MISSING)
}
