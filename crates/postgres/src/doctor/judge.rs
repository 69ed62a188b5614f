//! What a doctor makes of what was found.

use super::{
    Finding,
    ask::{Facts, Server, Stored},
};
use crate::{migrate, options::Options, timeline::Timeline};

/// What a gateway's role may do, and to what: the column of the question, the grant, the object.
pub(super) const GRANTS: [(&str, &str, Part); 12] = [
    ("records_select", "SELECT", Part::Records),
    ("records_insert", "INSERT", Part::Records),
    ("records_update", "UPDATE", Part::Records),
    ("records_delete", "DELETE", Part::Records),
    ("meta_select", "SELECT", Part::Meta),
    ("meta_update", "UPDATE", Part::Meta),
    ("metadata_select", "SELECT", Part::Metadata),
    ("metadata_insert", "INSERT", Part::Metadata),
    ("metadata_update", "UPDATE", Part::Metadata),
    ("metadata_delete", "DELETE", Part::Metadata),
    ("fences_usage", "USAGE", Part::Fences),
    ("fences_update", "UPDATE", Part::Fences),
];

/// A piece of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Records,
    Meta,
    Metadata,
    Fences,
}

impl Part {
    /// Its name, as SQL has it.
    fn named(self, options: &Options) -> String {
        options.names.fill(match self {
            Self::Records => "{records}",
            Self::Meta => "{meta}",
            Self::Metadata => "{metadata}",
            Self::Fences => "{fences}",
        })
    }
}

/// The oldest server that has all that is asked of it.
const VERSION_MIN: u32 = 130_000;
/// The oldest server that can compress answers with lz4.
const VERSION_LZ4: u32 = 140_000;
/// How far two clocks may be apart before somebody should know.
const CLOCK_APART_S: f64 = 2.0;
/// Up to how many dead rows are no matter.
const DEAD_ROWS_FEW: u64 = 100_000;
/// Below how many rows a mean says nothing.
const ROWS_MIN: u64 = 1000;

/// Everything that can be said.
pub(super) fn all(facts: &Facts, options: &Options) -> Vec<Finding> {
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

fn version(server: &Server) -> Finding {
    let found = format!("PostgreSQL {}", server.version);
    match server.version_number {
        ..VERSION_MIN => Finding::error("version", format!("{found} is too old: 13 or newer")),
        VERSION_MIN..VERSION_LZ4 => {
            Finding::fine("version", format!("{found}; from 14 on answers take less room (lz4)"))
        }
        VERSION_LZ4.. => Finding::fine("version", found),
    }
}

fn connection(facts: &Facts) -> Finding {
    if facts.pooled {
        return Finding::fine(
            "connection",
            "through a pooler: statements have no names, and requests that wait for another \
             gateway poll, unless a Redis cache tells them",
        );
    }
    Finding::fine("connection", "direct: prepared statements, and waiting requests are told")
}

fn tls(facts: &Facts, verifies: bool) -> Finding {
    let server = &facts.server;
    match &server.tls {
        // What the server sees is the pooler's own connection.
        _ if facts.pooled => {
            Finding::fine("tls", "the pooler is in between: look at its own settings")
        }
        Some(version) if verifies => {
            Finding::fine("tls", format!("{version}, the server's certificate is verified"))
        }
        Some(version) => Finding::warning(
            "tls",
            format!("{version}, but nobody checks that it is the right server"),
        )
        .change("add to the URL: sslmode=verify-full&sslrootcert=FILE"),
        None if server.local => Finding::fine("tls", "none, and none needed: the same machine"),
        None => Finding::warning("tls", "none: keys and answers cross the network in clear")
            .change("add to the URL: sslmode=verify-full&sslrootcert=FILE"),
    }
}

fn durable(server: &Server) -> Finding {
    let wrong: Vec<&str> = [("fsync", server.fsync), ("full_page_writes", server.full_page_writes)]
        .into_iter()
        .filter_map(|(name, on)| (!on).then_some(name))
        .collect();
    if wrong.is_empty() {
        return Finding::fine("durability", "fsync and full_page_writes are on");
    }
    let found = format!("{} off: a power cut may lose or break everything", wrong.join(", "));
    let finding = wrong.iter().fold(Finding::error("durability", found), |finding, name| {
        finding.change(format!("ALTER SYSTEM SET {name} = on;"))
    });
    finding.change("SELECT pg_reload_conf();")
}

fn commit(facts: &Facts) -> Finding {
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
            let found = format!("{found}: a promoted standby may lack the last moments");
            Finding::warning("commit", found).change(change)
        }
    }
}

fn standby(server: &Server) -> Finding {
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
fn timeline(facts: &Facts) -> Finding {
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
        let found = "the role may not read the timeline of the server: a former primary that comes \
                     back after a failover would not be noticed";
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

fn clock(facts: &Facts) -> Finding {
    let (ahead, doubt) = (facts.clock_ahead_s, facts.clock_doubt_s);
    let way = if ahead < 0.0 { "behind" } else { "ahead of" };
    let found = format!(
        "the database's clock is {:.3} s {way} this machine's (± {doubt:.3} s)",
        ahead.abs()
    );
    if ahead.abs() - doubt < CLOCK_APART_S {
        return Finding::fine("clock", found);
    }
    let found = format!(
        "{found}; leases go by the database's alone, but after a failover the standby's counts, \
         and a step lapses leases early or late"
    );
    Finding::warning("clock", found).change("run a time service (chrony, ntpd) on both machines")
}

fn connections(server: &Server) -> Finding {
    let (used, max) = (server.connections, server.connections_max);
    let found = format!("{used} of {max} are taken");
    // Four fifths.
    if used.saturating_mul(5) < max.saturating_mul(4) {
        return Finding::fine("connections", found);
    }
    Finding::warning("connections", format!("{found}: gateways may soon be turned away"))
        .change("use a pooler, or: ALTER SYSTEM SET max_connections = N; and restart")
}

fn autovacuum(server: &Server) -> Finding {
    if server.autovacuum {
        return Finding::fine("autovacuum", "on");
    }
    Finding::error("autovacuum", "off: the table grows for ever")
        .change("ALTER SYSTEM SET autovacuum = on;")
        .change("ALTER SYSTEM SET track_counts = on;")
        .change("SELECT pg_reload_conf();")
}

fn role(server: &Server) -> Finding {
    let role = &server.role;
    if !server.superuser {
        return Finding::fine("role", role.as_str());
    }
    Finding::warning("role", format!("{role} is a superuser: a gateway needs a few grants only"))
        .change("CREATE ROLE semel LOGIN; and the grants in docs/postgres.md")
}

fn absent(options: &Options) -> Finding {
    let found = format!("there is no store in the schema {}", options.names.schema());
    Finding::error("schema", found).change("semel migrate --store URL, as a role that may make it")
}

fn schema(store: &Stored) -> Finding {
    let known = migrate::VERSION;
    match store.version {
        Some(version) if version == known => Finding::fine("schema", format!("version {version}")),
        Some(version) if version < known => {
            let found = format!("version {version}, and this program brings {known}");
            Finding::warning("schema", found).change("semel migrate --store URL")
        }
        Some(version) => Finding::fine(
            "schema",
            format!("version {version}, one that this program (which brings {known}) may use"),
        ),
        None => Finding::error("schema", "its version cannot be read"),
    }
}

fn grants(store: &Stored, role: &str, options: &Options) -> Finding {
    let missing: Vec<_> = GRANTS
        .iter()
        .zip(&store.may)
        .filter_map(|((_, grant, part), may)| (!may).then_some((*grant, *part)))
        .collect();
    if missing.is_empty() && store.may_use_schema {
        return Finding::fine("grants", "the role may do what it has to");
    }
    let found = format!("{role} may not do all that a gateway does");
    let role = quoted(role);
    let schema = (!store.may_use_schema)
        .then(|| format!("GRANT USAGE ON SCHEMA \"{}\" TO {role};", options.names.schema()));
    let others = missing.into_iter().map(|(grant, part)| {
        let kind = if part == Part::Fences { "SEQUENCE " } else { "" };
        format!("GRANT {grant} ON {kind}{} TO {role};", part.named(options))
    });
    schema.into_iter().chain(others).fold(Finding::error("grants", found), Finding::change)
}

fn size(store: &Stored) -> Finding {
    let (table, index) = (store.table_bytes, store.index_bytes);
    let mut found = format!(
        "about {} records, {} in the table and {} in indexes",
        store.rows,
        bytes(table),
        bytes(index)
    );
    if store.rows >= ROWS_MIN {
        let each = table.saturating_add(index).checked_div(store.rows).unwrap_or(0);
        found.push_str(&format!(", {each} bytes for each"));
    }
    Finding::fine("size", found)
}

fn upkeep(store: &Stored, options: &Options) -> Finding {
    let table = Part::Records.named(options);
    if store.autovacuum_off {
        let change = format!("ALTER TABLE {table} RESET (autovacuum_enabled);");
        return Finding::error("upkeep", "autovacuum is off for the table: it grows for ever")
            .change(change);
    }
    let when = if store.vacuumed.is_empty() { "never yet" } else { &store.vacuumed };
    let found = format!("{} dead rows, last vacuum: {when}", store.dead_rows);
    if store.dead_rows <= DEAD_ROWS_FEW.max(store.rows) {
        return Finding::fine("upkeep", found);
    }
    let found =
        format!("{found}: autovacuum does not keep up, or an old transaction holds it back");
    Finding::warning("upkeep", found)
        .change(format!("VACUUM {table};"))
        .change("SELECT pid, xact_start, query FROM pg_stat_activity ORDER BY xact_start LIMIT 3;")
}

fn open(store: &Stored) -> Finding {
    let found = format!("{} in flight, {} held", store.in_flight, store.held);
    match store.held {
        0 => Finding::fine("open", found),
        _ => Finding::warning("open", format!("{found}: held keys wait for an operator"))
            .change("semel list --state held --store URL"),
    }
}

/// A role's name, as SQL has it.
fn quoted(role: &str) -> String {
    format!("\"{}\"", role.replace('"', "\"\""))
}

/// A number of bytes as people read it.
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
    use super::{super::Level, *};

    fn level(finding: &Finding) -> Level {
        finding.level
    }

    #[test]
    fn clocks_that_are_surely_apart_are_told() {
        let at = |clock_ahead_s, clock_doubt_s| {
            let facts = Facts { clock_ahead_s, clock_doubt_s, ..Facts::default() };
            level(&clock(&facts))
        };
        assert_eq!(at(0.1, 0.01), Level::Fine);
        assert_eq!(at(-3.0, 0.01), Level::Warning);
        assert_eq!(at(3.0, 2.0), Level::Fine, "the answer may have been slow");
    }

    #[test]
    fn former_primaries_are_told() {
        let at = |number| Some(Timeline { cluster: 7, number });
        let facts = |timeline, recorded, hosts: &[&str]| Facts {
            timeline,
            store: Some(Stored { timeline: recorded, ..Stored::default() }),
            primaries: hosts.iter().map(|host| ((*host).to_owned(), timeline)).collect(),
            ..Facts::default()
        };
        assert_eq!(level(&timeline(&facts(at(2), at(1), &["a"]))), Level::Fine);
        assert_eq!(level(&timeline(&facts(at(2), None, &["a"]))), Level::Fine);
        assert_eq!(level(&timeline(&facts(at(1), at(2), &["a"]))), Level::Error);
        let both = timeline(&facts(at(2), at(2), &["a", "b"]));
        assert_eq!(both.level, Level::Error);
        assert_eq!(both.found, "several servers take writes: a on timeline 2, b on timeline 2");
        let unread = timeline(&facts(None, None, &["a"]));
        assert_eq!((unread.level, unread.change.len()), (Level::Warning, 2));
    }

    #[test]
    fn an_open_wire_is_told_unless_it_stays_on_the_machine() {
        let wire = |tls_version: Option<&str>, local, pooled, verifies| {
            let tls_version = tls_version.map(str::to_owned);
            let server = Server { tls: tls_version, local, ..Server::default() };
            level(&tls(&Facts { server, pooled, ..Facts::default() }, verifies))
        };
        assert_eq!(wire(Some("TLSv1.3"), false, false, true), Level::Fine);
        assert_eq!(wire(Some("TLSv1.3"), false, false, false), Level::Warning);
        assert_eq!(wire(None, false, false, false), Level::Warning);
        assert_eq!(wire(None, true, false, false), Level::Fine);
        assert_eq!(wire(None, false, true, false), Level::Fine, "the pooler's own affair");
    }

    #[test]
    fn what_a_pooler_keeps_from_being_set_is_told() {
        let set = |setting: &str, pooled, names: &str| {
            let server = Server {
                synchronous_commit: setting.to_owned(),
                synchronous_standby_names: names.to_owned(),
                role: "semel".to_owned(),
                ..Server::default()
            };
            commit(&Facts { server, pooled, ..Facts::default() })
        };
        assert_eq!(set("on", true, "*").level, Level::Fine);
        assert_eq!(set("local", false, "*").level, Level::Fine, "the session sets it");
        assert_eq!(set("local", true, "").level, Level::Fine, "there is nobody to wait for");
        let told = set("local", true, "*");
        assert_eq!(told.level, Level::Warning);
        assert_eq!(told.change, ["ALTER ROLE \"semel\" SET synchronous_commit = on;"]);
    }

    #[test]
    fn a_server_that_is_nearly_full_or_too_old_is_told() {
        let server = |connections, version_number| Server {
            connections,
            connections_max: 100,
            version_number,
            ..Server::default()
        };
        assert_eq!(level(&connections(&server(79, 0))), Level::Fine);
        assert_eq!(level(&connections(&server(80, 0))), Level::Warning);
        assert_eq!(level(&version(&server(0, 120_022))), Level::Error);
        assert_eq!(level(&version(&server(0, 130_001))), Level::Fine);
    }

    #[test]
    fn rows_that_nobody_clears_away_are_told() {
        let options = Options::parse("postgres://db/semel").unwrap();
        let dead = |rows, dead_rows| {
            level(&upkeep(&Stored { rows, dead_rows, ..Stored::default() }, &options))
        };
        assert_eq!(dead(10, 90_000), Level::Fine, "few");
        assert_eq!(dead(10, 110_000), Level::Warning);
        assert_eq!(dead(1_000_000, 900_000), Level::Fine);
        let size = size(&Stored { rows: 2000, table_bytes: 2 << 20, ..Stored::default() }).found;
        assert_eq!(
            size,
            "about 2000 records, 2048 KiB in the table and 0 B in indexes, 1048 bytes \
                          for each"
        );
    }
}
