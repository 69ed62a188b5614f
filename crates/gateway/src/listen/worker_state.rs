//! What the connections of a worker share.

use std::sync::Arc;

use arc_swap::ArcSwap;
use semel_tower::MemoryBudget;

use crate::listen::date::CachedDate;
use crate::route::table::RouteTable;
use crate::shutdown::Shutdown;
use crate::upstream::pool_map::PoolMap;
use semel_config::Limits;
use semel_telemetry::metrics::Metrics;

/// State shared by all connections of a worker.
#[derive(Debug)]
pub(crate) struct WorkerState {
    pub(crate) route_table: ArcSwap<RouteTable>,
    pub(crate) pools: PoolMap,
    pub(crate) limits: Limits,
    pub(crate) shutdown: Shutdown,
    pub(crate) date: CachedDate,
    pub(crate) memory: MemoryBudget,
    pub(crate) metrics: Arc<Metrics>,
}
