//! The queries of the doctor. They use the simple-query protocol, which works through every pooler.

use std::{
    str::FromStr,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use semel_core::StoreError;
use tokio::time::Instant;
use tokio_postgres::{SimpleQueryMessage, SimpleQueryRow};

use super::grants::GRANTS;
use crate::{
    error::corrupt,
    options::Options,
    session::{PLAN_POOLED, Session, SessionConnector},
    statements,
    table_names::TableNames,
    timeline::Timeline,
};

/// Version, settings and state of the server.
const SERVER: &str = include_str!("server.sql");
/// Grants, size and vacuum state of the store's tables.
const STORE: &str = include_str!("store.sql");
/// The version of the tables, and the timeline on which they were used last.
const META: &str = "SELECT version, cluster, timeline FROM {meta}";
/// How many records are held or in flight.
const OPEN: &str = "WITH RECURSIVE {retentions}, open AS ({open}) \
                    SELECT count(*) FILTER (WHERE state = 'held') AS held, \
                        count(*) FILTER (WHERE state = 'in_flight') AS in_flight \
                    FROM open";

/// All results of the queries.
#[derive(Clone, Debug, Default)]
pub(super) struct DatabaseFacts {
    pub(super) server: ServerFacts,
    /// `None` if there is no store yet.
    pub(super) store: Option<StoreFacts>,
    pub(super) pooled: bool,
    /// The timeline of the server; `None` if the role may not read it.
    pub(super) timeline: Option<Timeline>,
    /// Every host of the URL that accepts writes, with its timeline.
    pub(super) primaries: Vec<(String, Option<Timeline>)>,
    /// How far the database's clock is ahead of this machine's, in seconds.
    pub(super) clock_ahead_s: f64,
    /// The uncertainty of that: half of the round trip.
    pub(super) clock_error_s: f64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct ServerFacts {
    pub(super) version: String,
    pub(super) version_number: u32,
    pub(super) role: String,
    pub(super) superuser: bool,
    pub(super) fsync: bool,
    pub(super) full_page_writes: bool,
    /// The setting at the start of a session of this role.
    pub(super) synchronous_commit: String,
    pub(super) synchronous_standby_names: String,
    pub(super) standbys: u32,
    /// How many of them are synchronous; `None` if the role may not see that.
    pub(super) synchronous: Option<u32>,
    pub(super) autovacuum: bool,
    pub(super) connections: u32,
    pub(super) connections_max: u32,
    /// Whether the server is on this machine.
    pub(super) local: bool,
    /// The version of TLS, if it is used.
    pub(super) tls: Option<String>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct StoreFacts {
    pub(super) may_use_schema: bool,
    /// The grants of the role, in the order of [`GRANTS`].
    pub(super) granted: Vec<bool>,
    pub(super) version: Option<i32>,
    /// The latest timeline that it was used on.
    pub(super) timeline: Option<Timeline>,
    pub(super) rows: u64,
    pub(super) dead_rows: u64,
    pub(super) table_bytes: u64,
    pub(super) index_bytes: u64,
    pub(super) vacuumed: String,
    pub(super) autovacuum_off: bool,
    pub(super) held: u64,
    pub(super) in_flight: u64,
}

impl DatabaseFacts {
    pub(super) async fn query(options: &Options) -> Result<Self, StoreError> {
        let connector = Arc::new(SessionConnector::new(options.clone())?);
        let primaries = connector.survey().await;
        let session = connector.open(|_| {}).await?;
        let (clock_ahead_s, clock_error_s) = clock(&session).await?;
        let server = ServerFacts::of(&row_of(&session, SERVER).await?);
        let store = StoreFacts::query(&session, &options.names).await?;
        let (pooled, timeline) = (!session.dedicated, session.timeline);
        Ok(Self { server, store, pooled, timeline, primaries, clock_ahead_s, clock_error_s })
    }
}

impl ServerFacts {
    fn of(row: &SimpleQueryRow) -> Self {
        Self {
            version: text(row, "version"),
            version_number: number(row, "version_number"),
            role: text(row, "role"),
            superuser: is(row, "superuser"),
            fsync: is(row, "fsync"),
            full_page_writes: is(row, "full_page_writes"),
            synchronous_commit: text(row, "synchronous_commit"),
            synchronous_standby_names: text(row, "synchronous_standby_names"),
            standbys: number(row, "standbys"),
            synchronous: row.get("synchronous").and_then(|count| count.parse().ok()),
            autovacuum: is(row, "autovacuum"),
            connections: number(row, "connections"),
            connections_max: number(row, "connections_max"),
            local: is(row, "local"),
            tls: row.get("tls").map(str::to_owned),
        }
    }
}

impl StoreFacts {
    async fn query(session: &Session, names: &TableNames) -> Result<Option<Self>, StoreError> {
        let query = names.fill(&STORE.replace("{schema_name}", names.schema()));
        let Some(row) = rows(session, &query).await?.into_iter().next() else {
            return Ok(None);
        };
        let granted = GRANTS.iter().map(|(column, ..)| is(&row, column)).collect();
        let mut store = Self {
            may_use_schema: is(&row, "may_use_schema"),
            granted,
            rows: number(&row, "rows"),
            dead_rows: number(&row, "dead_rows"),
            table_bytes: number(&row, "table_bytes"),
            index_bytes: number(&row, "index_bytes"),
            vacuumed: text(&row, "vacuumed"),
            autovacuum_off: is(&row, "autovacuum_off"),
            ..Self::default()
        };
        if store.may_use_schema && is(&row, "meta_select") {
            let row = row_of(session, &names.fill(META)).await?;
            store.version = Some(number(&row, "version"));
            store.timeline = row.get("timeline").is_some().then(|| Timeline {
                cluster: number(&row, "cluster"),
                number: number(&row, "timeline"),
            });
        }
        if store.version.is_some() && is(&row, "records_select") {
            let open = format!("BEGIN; {PLAN_POOLED}; {OPEN}; COMMIT");
            let row = row_of(session, &statements::fill(&open, names)).await?;
            (store.held, store.in_flight) = (number(&row, "held"), number(&row, "in_flight"));
        }
        Ok(Some(store))
    }
}

/// How far the database's clock is ahead of this machine's, and the uncertainty: the clock was read
/// at some moment of the round trip.
async fn clock(session: &Session) -> Result<(f64, f64), StoreError> {
    let (asked, begun) = (wall_clock(), Instant::now());
    let row = row_of(session, "SELECT extract(epoch FROM clock_timestamp()) AS now").await?;
    let error = begun.elapsed().as_secs_f64() / 2.0;
    let now: f64 = row.get("now").and_then(|now| now.parse().ok()).unwrap_or_default();
    Ok((now - asked.as_secs_f64() - error, error))
}

#[expect(clippy::disallowed_methods, reason = "the two clocks are what is compared")]
fn wall_clock() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

async fn row_of(session: &Session, sql: &str) -> Result<SimpleQueryRow, StoreError> {
    let first = rows(session, sql).await?.into_iter().next();
    first.ok_or_else(|| corrupt("an expected row"))
}

async fn rows(session: &Session, sql: &str) -> Result<Vec<SimpleQueryRow>, StoreError> {
    let mut rows = Vec::new();
    for message in session.simple_query(sql).await? {
        if let SimpleQueryMessage::Row(row) = message {
            rows.push(row);
        }
    }
    Ok(rows)
}

fn text(row: &SimpleQueryRow, column: &str) -> String {
    row.get(column).unwrap_or_default().to_owned()
}

fn is(row: &SimpleQueryRow, column: &str) -> bool {
    row.get(column) == Some("t")
}

fn number<T: FromStr + Default>(row: &SimpleQueryRow, column: &str) -> T {
    row.get(column).and_then(|number| number.parse().ok()).unwrap_or_default()
}
