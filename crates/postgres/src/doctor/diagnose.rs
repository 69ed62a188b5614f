//! The findings of the doctor, from the results of its queries.

use super::{
    Finding,
    grants::{GRANTS, StoreObject},
    probe::{DatabaseFacts, ServerFacts, StoreFacts},
};
use crate::{meta, options::Options, timeline::Timeline};

/// The oldest supported server.
const VERSION_MIN: u32 = 130_000;
/// The oldest server that can compress answers with lz4.
const VERSION_LZ4: u32 = 140_000;
/// The difference of the clocks that is reported.
const CLOCK_DIFFERENCE_MAX_S: f64 = 2.0;
/// Fewer dead rows than this are never reported.
const DEAD_ROWS_MIN: u64 = 100_000;
/// Fewer rows than this have no meaningful average size.
const AVERAGE_ROWS_MIN: u64 = 1000;

/// All findings.
pub(super) fn findings(facts: &DatabaseFacts, options: &Options) -> Vec<Finding> {
    let server = &facts.server;
    let mut all = vec![
        version(server),
        connection(facts),
        tls(facts, options.verify),
        durable(server),
        commit(facts),
        standby(server),
        timeline(facts),
        clock(facts),
        connections(server),
        autovacuum(server),
        role(server),
    ];
    match &facts.store {
        None => all.push(absent(options)),
        Some(store) => {
            all.push(schema(store));
            all.push(grants(store, &server.role, options));
            all.push(size(store));
            all.push(upkeep(store, options));
            all.push(open(store));
        }
    }
    all
}

fn version(server: &ServerFacts) -> Finding {
    let found = format!("PostgreSQL {}", server.version);
    match server.version_number {
        ..VERSION_MIN => Finding::error("version", format!("{found} is too old: 13 or newer")),
        VERSION_MIN..VERSION_LZ4 => {
            Finding::fine("version", format!("{found}; from 14 on answers take less room (lz4)"))
        }
        VERSION_LZ4.. => Finding::fine("version", found),
    }
}

fn connection(facts: &DatabaseFacts) -> Finding {
    if facts.pooled {
        return Finding::fine(
            "connection",
            "through a pooler: statements are unnamed, and requests that wait for another gateway \
             poll, unless a Redis cache wakes them",
        );
    }
    Finding::fine(
        "connection",
        "direct: prepared statements, and notifications for waiting requests",
    )
}

fn tls(facts: &DatabaseFacts, verifies: bool) -> Finding {
    let server = &facts.server;
    match &server.tls {
        // The server sees the connection of the pooler.
        _ if facts.pooled => {
            Finding::fine("tls", "unknown behind a pooler: check the settings of the pooler")
        }
        Some(version) if verifies => {
            Finding::fine("tls", format!("{version}, the server's certificate is verified"))
        }
        Some(version) => Finding::warning(
            "tls",
            format!("{version}, but the server's certificate is not verified"),
        )
        .change("add to the URL: sslmode=verify-full&sslrootcert=FILE"),
        None if server.local => Finding::fine("tls", "none; not needed on the same machine"),
        None => Finding::warning("tls", "none: keys and answers cross the network unencrypted")
            .change("add to the URL: sslmode=verify-full&sslrootcert=FILE"),
    }
}

fn durable(server: &ServerFacts) -> Finding {
    let wrong: Vec<&str> = [("fsync", server.fsync), ("full_page_writes", server.full_page_writes)]
        .into_iter()
        .filter_map(|(name, on)| (!on).then_some(name))
        .collect();
    if wrong.is_empty() {
        return Finding::fine("durability", "fsync and full_page_writes are on");
    }
    let found = format!("{} off: a power failure may lose or corrupt all data", wrong.join(", "));
    let finding = wrong.iter().fold(Finding::error("durability", found), |finding, name| {
        finding.change(format!("ALTER SYSTEM SET {name} = on;"))
    });
    finding.change("SELECT pg_reload_conf();")
}

fn commit(facts: &DatabaseFacts) -> Finding {
    let server = &facts.server;
    let setting = server.synchronous_commit.as_str();
    let found = format!("synchronous_commit is {setting}");
    let change = format!("ALTER ROLE {} SET synchronous_commit = on;", quoted(&server.role));
    match setting {
        "on" | "remote_apply" => Finding::fine("commit", found),
        "off" | "local" if !facts.pooled => {
            Finding::fine("commit", format!("{found}; the store's own sessions set it to on"))
        }
        _ if server.synchronous_standby_names.is_empty() => Finding::fine("commit", found),
        _ => {
            let found = format!("{found}: a promoted standby may lack the last commits");
            Finding::warning("commit", found).change(change)
        }
    }
}

fn standby(server: &ServerFacts) -> Finding {
    let waits = !server.synchronous_standby_names.is_empty();
    match (waits, server.standbys, server.synchronous) {
        (false, 0, _) => Finding::fine(
            "standby",
            "none: a crash loses nothing, a lost disk loses everything since the last backup",
        ),
        (false, _, _) => Finding::warning(
            "standby",
            "asynchronous: what was acknowledged in the moments before a failover may be lost, and \
             such keys run again",
        )
        .change("ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (*)';")
        .change("SELECT pg_reload_conf();"),
        (true, 0, _) | (true, _, Some(0)) => Finding::error(
            "standby",
            "commits wait for a synchronous standby, and there is none: every write hangs",
        )
        .change("start the standby, or: ALTER SYSTEM RESET synchronous_standby_names;")
        .change("SELECT pg_reload_conf();"),
        (true, _, _) => Finding::fine(
            "standby",
            "synchronous: promoting one that commits wait for loses nothing that was acknowledged",
        ),
    }
}

/// Whether a former primary that comes back can be distinguished from its successor.
fn timeline(facts: &DatabaseFacts) -> Finding {
    if let [_, _, ..] = &facts.primaries[..] {
        let shown = |(host, timeline): &(String, Option<Timeline>)| match timeline {
            Some(timeline) => format!("{host} on timeline {}", timeline.number),
            None => host.clone(),
        };
        let shown: Vec<String> = facts.primaries.iter().map(shown).collect();
        let found = format!("several servers take writes: {}", shown.join(", "));
        return Finding::error("timeline", found)
            .change("stop all but the one with the highest timeline, or make them its standbys");
    }
    let Some(timeline) = facts.timeline else {
        let role = quoted(&facts.server.role);
        let found = "the role may not read the timeline of the server, so a former primary that \
                     comes back after a failover is not detected";
        return Finding::warning("timeline", found)
            .change(format!("GRANT EXECUTE ON FUNCTION pg_current_wal_lsn() TO {role};"))
            .change(format!("GRANT EXECUTE ON FUNCTION pg_walfile_name(pg_lsn) TO {role};"));
    };
    let number = timeline.number;
    match facts.store.as_ref().and_then(|store| store.timeline) {
        Some(recorded) if timeline.precedes(recorded) => {
            let found = format!(
                "a former primary, or a restored copy: the server is on timeline {number}, and the \
                 store was used on timeline {}; gateways refuse it",
                recorded.number
            );
            let restored = "or, if this is a restored backup: semel migrate --after-restore";
            Finding::error("timeline", found)
                .change("stop it, or make it a standby of the new primary")
                .change(restored)
        }
        Some(_) | None => Finding::fine(
            "timeline",
            format!("{number}: after a failover a former primary has a lower one, and is refused"),
        ),
    }
}

fn clock(facts: &DatabaseFacts) -> Finding {
    let (ahead, error) = (facts.clock_ahead_s, facts.clock_error_s);
    let way = if ahead < 0.0 { "behind" } else { "ahead of" };
    let found = format!(
        "the database's clock is {:.3} s {way} this machine's (± {error:.3} s)",
        ahead.abs()
    );
    if ahead.abs() - error < CLOCK_DIFFERENCE_MAX_S {
        return Finding::fine("clock", found);
    }
    let found = format!(
        "{found}; leases use the database's clock only, but after a failover the standby's counts, \
         and a difference ends leases early or late"
    );
    Finding::warning("clock", found).change("run a time service (chrony, ntpd) on both machines")
}

fn connections(server: &ServerFacts) -> Finding {
    let (used, max) = (server.connections, server.connections_max);
    let found = format!("{used} of {max} are in use");
    // 80 percent.
    if used.saturating_mul(5) < max.saturating_mul(4) {
        return Finding::fine("connections", found);
    }
    Finding::warning("connections", format!("{found}: new connections may soon be rejected"))
        .change("use a pooler, or: ALTER SYSTEM SET max_connections = N; and restart")
}

fn autovacuum(server: &ServerFacts) -> Finding {
    if server.autovacuum {
        return Finding::fine("autovacuum", "on");
    }
    Finding::error("autovacuum", "off: the table grows without bound")
        .change("ALTER SYSTEM SET autovacuum = on;")
        .change("ALTER SYSTEM SET track_counts = on;")
        .change("SELECT pg_reload_conf();")
}

fn role(server: &ServerFacts) -> Finding {
    let role = &server.role;
    if !server.superuser {
        return Finding::fine("role", role.as_str());
    }
    Finding::warning("role", format!("{role} is a superuser: a gateway needs only a few grants"))
        .change("CREATE ROLE semel LOGIN; and the grants in docs/postgres.md")
}

fn absent(options: &Options) -> Finding {
    let found = format!("there is no store in the schema {}", options.names.schema());
    let change = "semel migrate --store URL, as a role that may create it";
    Finding::error("schema", found).change(change)
}

fn schema(store: &StoreFacts) -> Finding {
    let known = meta::VERSION;
    match store.version {
        Some(version) if version == known => Finding::fine("schema", format!("version {version}")),
        Some(version) if version < known => {
            let found = format!("version {version}; this program has version {known}");
            Finding::warning("schema", found).change("semel migrate --store URL")
        }
        Some(version) => Finding::fine(
            "schema",
            format!("version {version}; this program has version {known} and can use it"),
        ),
        None => Finding::error("schema", "the version cannot be read"),
    }
}

fn grants(store: &StoreFacts, role: &str, options: &Options) -> Finding {
    let missing: Vec<_> = GRANTS
        .iter()
        .zip(&store.granted)
        .filter_map(|((_, grant, part), granted)| (!granted).then_some((*grant, *part)))
        .collect();
    if missing.is_empty() && store.may_use_schema {
        return Finding::fine("grants", "the role has all privileges that a gateway needs");
    }
    let found = format!("{role} lacks privileges that a gateway needs");
    let role = quoted(role);
    let schema = (!store.may_use_schema)
        .then(|| format!("GRANT USAGE ON SCHEMA \"{}\" TO {role};", options.names.schema()));
    let others = missing.into_iter().map(|(grant, part)| {
        let kind = if part == StoreObject::Fences { "SEQUENCE " } else { "" };
        format!("GRANT {grant} ON {kind}{} TO {role};", part.named(options))
    });
    schema.into_iter().chain(others).fold(Finding::error("grants", found), Finding::change)
}

fn size(store: &StoreFacts) -> Finding {
    let (table, index) = (store.table_bytes, store.index_bytes);
    let mut found = format!(
        "about {} records, {} in the table and {} in indexes",
        store.rows,
        bytes(table),
        bytes(index)
    );
    if store.rows >= AVERAGE_ROWS_MIN {
        let each = table.saturating_add(index).checked_div(store.rows).unwrap_or(0);
        found.push_str(&format!(", {each} bytes for each"));
    }
    Finding::fine("size", found)
}

fn upkeep(store: &StoreFacts, options: &Options) -> Finding {
    let table = StoreObject::Records.named(options);
    if store.autovacuum_off {
        let change = format!("ALTER TABLE {table} RESET (autovacuum_enabled);");
        return Finding::error("upkeep", "autovacuum is off for the table: it grows without bound")
            .change(change);
    }
    let when = if store.vacuumed.is_empty() { "never" } else { &store.vacuumed };
    let found = format!("{} dead rows, last vacuum: {when}", store.dead_rows);
    if store.dead_rows <= DEAD_ROWS_MIN.max(store.rows) {
        return Finding::fine("upkeep", found);
    }
    let found =
        format!("{found}: autovacuum does not keep up, or an old transaction holds it back");
    Finding::warning("upkeep", found)
        .change(format!("VACUUM {table};"))
        .change("SELECT pid, xact_start, query FROM pg_stat_activity ORDER BY xact_start LIMIT 3;")
}

fn open(store: &StoreFacts) -> Finding {
    let found = format!("{} in flight, {} held", store.in_flight, store.held);
    match store.held {
        0 => Finding::fine("open", found),
        _ => Finding::warning("open", format!("{found}: held keys wait for an operator"))
            .change("semel list --state held --store URL"),
    }
}

/// The quoted name of a role.
fn quoted(role: &str) -> String {
    format!("\"{}\"", role.replace('"', "\"\""))
}

/// Formats a number of bytes.
fn bytes(count: u64) -> String {
    match count {
        0..10_240 => format!("{count} B"),
        10_240..10_485_760 => format!("{} KiB", count >> 10),
        10_485_760..10_737_418_240 => format!("{} MiB", count >> 20),
        _ => format!("{} GiB", count >> 30),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::FindingLevel, *};

    fn level(finding: &Finding) -> FindingLevel {
        finding.level
    }

    #[test]
    fn clocks_that_differ_by_more_than_the_error_are_reported() {
        let at = |clock_ahead_s, clock_error_s| {
            let facts = DatabaseFacts { clock_ahead_s, clock_error_s, ..DatabaseFacts::default() };
            level(&clock(&facts))
        };
        assert_eq!(at(0.1, 0.01), FindingLevel::Fine);
        assert_eq!(at(-3.0, 0.01), FindingLevel::Warning);
        assert_eq!(at(3.0, 2.0), FindingLevel::Fine, "the reply may have been slow");
    }

    #[test]
    fn former_primaries_are_reported() {
        let at = |number| Some(Timeline { cluster: 7, number });
        let facts = |timeline, recorded, hosts: &[&str]| DatabaseFacts {
            timeline,
            store: Some(StoreFacts { timeline: recorded, ..StoreFacts::default() }),
            primaries: hosts.iter().map(|host| ((*host).to_owned(), timeline)).collect(),
            ..DatabaseFacts::default()
        };
        assert_eq!(level(&timeline(&facts(at(2), at(1), &["a"]))), FindingLevel::Fine);
        assert_eq!(level(&timeline(&facts(at(2), None, &["a"]))), FindingLevel::Fine);
        assert_eq!(level(&timeline(&facts(at(1), at(2), &["a"]))), FindingLevel::Error);
        let both = timeline(&facts(at(2), at(2), &["a", "b"]));
        assert_eq!(both.level, FindingLevel::Error);
        assert_eq!(both.found, "several servers take writes: a on timeline 2, b on timeline 2");
        let unread = timeline(&facts(None, None, &["a"]));
        assert_eq!((unread.level, unread.change.len()), (FindingLevel::Warning, 2));
    }

    #[test]
    fn an_unencrypted_connection_is_reported_unless_it_is_local() {
        let check = |tls_version: Option<&str>, local, pooled, verifies| {
            let tls_version = tls_version.map(str::to_owned);
            let server = ServerFacts { tls: tls_version, local, ..ServerFacts::default() };
            level(&tls(&DatabaseFacts { server, pooled, ..DatabaseFacts::default() }, verifies))
        };
        assert_eq!(check(Some("TLSv1.3"), false, false, true), FindingLevel::Fine);
        assert_eq!(check(Some("TLSv1.3"), false, false, false), FindingLevel::Warning);
        assert_eq!(check(None, false, false, false), FindingLevel::Warning);
        assert_eq!(check(None, true, false, false), FindingLevel::Fine);
        assert_eq!(check(None, false, true, false), FindingLevel::Fine, "TLS ends at the pooler");
    }

    #[test]
    fn a_setting_that_a_pooler_prevents_is_reported() {
        let set = |setting: &str, pooled, names: &str| {
            let server = ServerFacts {
                synchronous_commit: setting.to_owned(),
                synchronous_standby_names: names.to_owned(),
                role: "semel".to_owned(),
                ..ServerFacts::default()
            };
            commit(&DatabaseFacts { server, pooled, ..DatabaseFacts::default() })
        };
        assert_eq!(set("on", true, "*").level, FindingLevel::Fine);
        assert_eq!(set("local", false, "*").level, FindingLevel::Fine, "the session sets it");
        assert_eq!(set("local", true, "").level, FindingLevel::Fine, "there is no standby");
        let finding = set("local", true, "*");
        assert_eq!(finding.level, FindingLevel::Warning);
        assert_eq!(finding.change, ["ALTER ROLE \"semel\" SET synchronous_commit = on;"]);
    }

    #[test]
    fn a_server_that_is_nearly_full_or_too_old_is_reported() {
        let server = |connections, version_number| ServerFacts {
            connections,
            connections_max: 100,
            version_number,
            ..ServerFacts::default()
        };
        assert_eq!(level(&connections(&server(79, 0))), FindingLevel::Fine);
        assert_eq!(level(&connections(&server(80, 0))), FindingLevel::Warning);
        assert_eq!(level(&version(&server(0, 120_022))), FindingLevel::Error);
        assert_eq!(level(&version(&server(0, 130_001))), FindingLevel::Fine);
    }

    #[test]
    fn dead_rows_are_reported() {
        let options = Options::parse("postgres://db/semel").unwrap();
        let dead = |rows, dead_rows| {
            level(&upkeep(&StoreFacts { rows, dead_rows, ..StoreFacts::default() }, &options))
        };
        assert_eq!(dead(10, 90_000), FindingLevel::Fine, "few");
        assert_eq!(dead(10, 110_000), FindingLevel::Warning);
        assert_eq!(dead(1_000_000, 900_000), FindingLevel::Fine);
        let size =
            size(&StoreFacts { rows: 2000, table_bytes: 2 << 20, ..StoreFacts::default() }).found;
        assert_eq!(
            size,
            "about 2000 records, 2048 KiB in the table and 0 B in indexes, 1048 bytes \
                          for each"
        );
    }
}
