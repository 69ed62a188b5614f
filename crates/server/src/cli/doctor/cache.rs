//! What a doctor makes of a Redis cache. Nothing of it is an error: without a cache, everything is
//! asked of the store.

use std::collections::BTreeMap;

use super::View;
use crate::{config::CacheUrl, store};

/// Looks at a cache.
pub(super) async fn look(url: &CacheUrl) -> Vec<View> {
    let said = match store::redis(url) {
        Ok(options) => options.info().await.map_err(|error| error.to_string()),
        Err(error) => Err(format!("{error:#}")),
    };
    match said {
        Ok(said) => judge(&said),
        Err(error) => {
            let found = format!("it cannot be reached, and gateways go on without it: {error}");
            vec![View::warning("cache", found, &[])]
        }
    }
}

/// What to make of the answer to `INFO`.
fn judge(info: &str) -> Vec<View> {
    let facts: BTreeMap<&str, &str> =
        info.lines().filter_map(|line| line.trim_end().split_once(':')).collect();
    let fact = |name: &str| facts.get(name).copied().unwrap_or_default();
    vec![
        View::fine("cache", format!("Redis {}", fact("redis_version"))),
        memory(fact("maxmemory"), fact("maxmemory_policy"), fact("used_memory_human")),
        replica(fact("role")),
        View::fine("persistence", "does not matter: what is lost or old is asked of the store"),
    ]
}

fn memory(max: &str, policy: &str, used: &str) -> View {
    const ROOM: &str = "CONFIG SET maxmemory 256mb";
    const POLICY: &str = "CONFIG SET maxmemory-policy allkeys-lru";
    match (max, policy) {
        ("0" | "", _) => {
            let found = format!("{used} used, and no limit: a full machine takes Redis with it");
            View::warning("memory", found, &[ROOM, POLICY])
        }
        (_, "noeviction") => {
            let found = "when it is full it takes nothing new, and the cache grows old";
            View::warning("memory", found, &[POLICY])
        }
        (max, policy) => View::fine("memory", format!("{used} of {max} bytes used, {policy}")),
    }
}

fn replica(role: &str) -> View {
    if role == "slave" {
        let found = "this is a replica, which takes nothing new: name the primary";
        return View::warning("replica", found, &[]);
    }
    View::fine("replica", "no: it takes writes")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn levels(info: &str) -> Vec<(&'static str, &'static str)> {
        judge(info).into_iter().map(|view| (view.about, view.level)).collect()
    }

    #[test]
    fn a_cache_has_a_limit_and_drops_what_is_old() {
        let good = "# Server\r\nredis_version:7.0.15\r\n\r\nused_memory_human:1.2M\r\n\
                    maxmemory:268435456\r\nmaxmemory_policy:allkeys-lru\r\nrole:master\r\n";
        assert!(judge(good).iter().all(|view| view.level == "fine"));
        assert_eq!(judge(good)[0].found, "Redis 7.0.15");
        let unlimited = good.replace("maxmemory:268435456", "maxmemory:0");
        assert!(levels(&unlimited).contains(&("memory", "warning")));
        let stuck = good.replace("allkeys-lru", "noeviction");
        assert!(levels(&stuck).contains(&("memory", "warning")));
        let replica = good.replace("role:master", "role:slave");
        assert!(levels(&replica).contains(&("replica", "warning")));
    }
}
