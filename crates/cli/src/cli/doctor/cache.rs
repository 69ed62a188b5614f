//! Checks a Redis cache. No finding is an error: without a cache, gateways query the store.

use std::collections::BTreeMap;

use super::FindingView;
use crate::store::cache;
use semel_config::CacheUrl;

/// Checks a cache.
pub(super) async fn check(url: &CacheUrl) -> Vec<FindingView> {
    match cache::info(url).await {
        Ok(said) => diagnose(&said),
        Err(error) => {
            let found = format!("it cannot be reached; gateways work without it: {error:#}");
            vec![FindingView::warning("cache", found, &[])]
        }
    }
}

/// Diagnoses the answer to `INFO`.
fn diagnose(info: &str) -> Vec<FindingView> {
    let facts: BTreeMap<&str, &str> =
        info.lines().filter_map(|line| line.trim_end().split_once(':')).collect();
    let fact = |name: &str| facts.get(name).copied().unwrap_or_default();
    vec![
        FindingView::fine("cache", format!("Redis {}", fact("redis_version"))),
        memory(fact("maxmemory"), fact("maxmemory_policy"), fact("used_memory_human")),
        replica(fact("role")),
        FindingView::fine(
            "persistence",
            "not needed: lost or stale entries are read from the store",
        ),
    ]
}

fn memory(max: &str, policy: &str, used: &str) -> FindingView {
    const ROOM: &str = "CONFIG SET maxmemory 256mb";
    const POLICY: &str = "CONFIG SET maxmemory-policy allkeys-lru";
    match (max, policy) {
        ("0" | "", _) => {
            let found = format!(
                "{used} used, without a limit: Redis can exhaust the memory of the machine"
            );
            FindingView::warning("memory", found, &[ROOM, POLICY])
        }
        (_, "noeviction") => {
            let found = "when it is full it accepts no new entries, and the cache becomes stale";
            FindingView::warning("memory", found, &[POLICY])
        }
        (max, policy) => {
            FindingView::fine("memory", format!("{used} of {max} bytes used, {policy}"))
        }
    }
}

fn replica(role: &str) -> FindingView {
    if role == "slave" {
        let found = "this is a replica, which accepts no writes: use the primary";
        return FindingView::warning("replica", found, &[]);
    }
    FindingView::fine("replica", "no: it accepts writes")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn levels(info: &str) -> Vec<(&'static str, &'static str)> {
        diagnose(info).into_iter().map(|view| (view.about, view.level)).collect()
    }

    #[test]
    fn a_cache_has_a_limit_and_drops_what_is_old() {
        let good = "# Server\r\nredis_version:7.0.15\r\n\r\nused_memory_human:1.2M\r\n\
                    maxmemory:268435456\r\nmaxmemory_policy:allkeys-lru\r\nrole:master\r\n";
        assert!(diagnose(good).iter().all(|view| view.level == "fine"));
        assert_eq!(diagnose(good)[0].found, "Redis 7.0.15");
        let unlimited = good.replace("maxmemory:268435456", "maxmemory:0");
        assert!(levels(&unlimited).contains(&("memory", "warning")));
        let stuck = good.replace("allkeys-lru", "noeviction");
        assert!(levels(&stuck).contains(&("memory", "warning")));
        let replica = good.replace("role:master", "role:slave");
        assert!(levels(&replica).contains(&("replica", "warning")));
    }
}
