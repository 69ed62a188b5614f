//! A connection: how it is opened and probed, and how statements are sent on it.
//!
//! A pooler in transaction mode shares server sessions between clients, so a prepared statement
//! could be one of another client. Therefore every connection sends a random setting when it is
//! opened. If the server returns it, the session is dedicated, and statements are prepared under
//! names. Otherwise the store keeps no state in the session.

use std::{
    future::poll_fn,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use semel_core::{StoreError, StoreErrorKind};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout},
};
use tokio_postgres::{
    AsyncMessage, Client, Config, Connection, Error, NoTls, Row, SimpleQueryMessage, Socket,
    Statement,
    error::{Severity, SqlState},
    types::ToSql,
};

use crate::{
    error::{PostgresUrlError, store_error},
    hosts,
    meta::{self, StoreMeta},
    options::{self, MakeRustlsConnect, Options},
    statements::{SqlStatements, StatementKind},
    timeline::{Timeline, TimelineHistory},
};

/// The settings of every dedicated session. Plans are made once and use the primary key, however
/// small the table was then. Waits for locks are bounded, and so is the time for which the locks of
/// a client that lost its power are kept.
const SETTINGS: &str = "-c statement_timeout=0 -c idle_in_transaction_session_timeout=30000 \
                        -c tcp_keepalives_idle=10 -c tcp_keepalives_interval=3 \
                        -c tcp_keepalives_count=3 \
                        -c lock_timeout=2000 -c search_path=pg_catalog \
                        -c default_transaction_isolation=read\\ committed \
                        -c plan_cache_mode=force_generic_plan -c jit=off -c enable_seqscan=off \
                        -c enable_hashjoin=off -c enable_mergejoin=off -c enable_bitmapscan=off";

/// Begins a transaction in a pooled session, which has none of these settings.
pub(crate) const BEGIN_POOLED: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; \
                                       SET LOCAL lock_timeout = '2s'; \
                                       SET LOCAL idle_in_transaction_session_timeout = '30s'";

/// Planner settings of such a transaction where its statements scan many records: they are planned
/// each time, and must use an index whatever the server's statistics say.
pub(crate) const PLAN_POOLED: &str = "SET LOCAL enable_seqscan = off; \
                                      SET LOCAL enable_bitmapscan = off; \
                                      SET LOCAL enable_hashjoin = off; \
                                      SET LOCAL enable_mergejoin = off; SET LOCAL jit = off";

/// Timeout of each step of the survey of a host.
const SURVEY_TIMEOUT: Duration = Duration::from_secs(1);

/// A parameter of a statement.
pub(crate) type BoxedParameter<'a> = Box<dyn ToSql + Sync + Send + 'a>;

/// Opens connections.
pub(crate) struct SessionConnector {
    pub(crate) options: Options,
    pub(crate) statements: SqlStatements,
    tls: Option<MakeRustlsConnect>,
    hosts: Vec<Host>,
    /// The identity of the store, once it is known. Connections to another store are refused.
    pub(crate) store: OnceLock<String>,
    pub(crate) history: TimelineHistory,
}

/// A server of the URL.
struct Host {
    name: String,
    config: Config,
    /// Limits the connections, including abandoned ones: a server that waits for its standby does
    /// not notice that its client is gone.
    permits: Arc<Semaphore>,
}

impl SessionConnector {
    pub(crate) fn new(options: Options) -> Result<Self, PostgresUrlError> {
        let statements = SqlStatements::new(&options.names);
        let tls = options.tls()?;
        // Twice the number in use: writers, direct connections, background and listener.
        let permits = 2 * (2 * options.connections + 2);
        let host = |config| Host {
            name: hosts::name(&config),
            config,
            permits: Arc::new(Semaphore::new(permits)),
        };
        let hosts = hosts::each(&options.config).into_iter().map(host).collect();
        let (store, history) = (OnceLock::new(), TimelineHistory::default());
        Ok(Self { options, statements, tls, hosts, store, history })
    }

    /// Opens the first connection of a process, which knows no timeline yet: it surveys all hosts
    /// first, so that a former primary is not used only because its name comes first.
    pub(crate) async fn open_first(self: &Arc<Self>) -> Result<Session, StoreError> {
        if self.hosts.len() > 1 {
            self.survey().await;
        }
        self.open(|_| {}).await
    }

    /// The configuration of the host that a session is connected to.
    pub(crate) fn config_of(&self, session: &Session) -> Option<&Config> {
        self.hosts.iter().find(|host| host.name == session.host).map(|host| &host.config)
    }

    /// Connects to all hosts at once: returns those that accept writes, with their timelines.
    pub(crate) async fn survey(self: &Arc<Self>) -> Vec<(String, Option<Timeline>)> {
        let survey = |at: usize| {
            let this = Arc::clone(self);
            tokio::spawn(async move {
                let host = this.hosts.get(at)?;
                let session = timeout(SURVEY_TIMEOUT, this.connect_to_host(host, "survey", |_| {}));
                let session = session.await.ok()?.ok()?;
                let timeline = timeout(SURVEY_TIMEOUT, Timeline::read(&session.client));
                Some((host.name.clone(), timeline.await.ok()?.ok()?))
            })
        };
        let surveys: Vec<_> = (0..self.hosts.len()).map(survey).collect();
        let mut primaries = Vec::new();
        for survey in surveys {
            if let Ok(Some((name, timeline))) = survey.await {
                timeline.inspect(|timeline| self.history.record_surveyed(*timeline));
                primaries.push((name, timeline));
            }
        }
        primaries
    }

    /// Opens and probes a connection on the current runtime, to the first host that accepts writes,
    /// has the store, and is no former primary.
    pub(crate) async fn open(
        self: &Arc<Self>,
        on_notification: impl FnMut(&str) + Clone + Send + 'static,
    ) -> Result<Session, StoreError> {
        let mut token = [0; 16];
        getrandom::fill(&mut token).map_err(|error| {
            StoreError::new(StoreErrorKind::Unavailable, "the system provides no random numbers")
                .because(error)
        })?;
        let token = format!("{:032x}", u128::from_be_bytes(token));
        let mut errors = Vec::new();
        for at in hosts::order(&self.options.config, self.hosts.len()) {
            let Some(host) = self.hosts.get(at) else { continue };
            match Box::pin(self.open_to(host, &token, on_notification.clone())).await {
                Ok(session) => return Ok(session),
                Err(error) => errors.push((host, error)),
            }
        }
        Err(all_hosts_failed(errors))
    }

    /// Opens a connection to one host, and probes it.
    async fn open_to(
        self: &Arc<Self>,
        host: &Host,
        token: &str,
        on_notification: impl FnMut(&str) + Clone + Send + 'static,
    ) -> Result<Session, StoreError> {
        let mut session =
            self.with_timeout(self.connect_to_host(host, token, on_notification)).await?;
        self.with_timeout(session.probe(token)).await?;
        self.with_timeout(self.admit(&mut session)).await?;
        Ok(session)
    }

    /// Admits a connection to the store that was opened, on its latest timeline.
    async fn admit(&self, session: &mut Session) -> Result<(), StoreError> {
        let meta = match self.store.get() {
            None => None,
            Some(store) => match meta::read(&session.client, &self.options.names).await? {
                Some(meta) if meta.store == *store => Some(meta),
                Some(_) | None => return Err(self.replaced()),
            },
        };
        session.timeline = Timeline::read(&session.client).await.map_err(store_error)?;
        session.timeline_changes = self.history.admit(session.timeline, &session.host)?;
        match meta {
            Some(meta) => self.record_timeline(session, &meta).await,
            None => Ok(()),
        }
    }

    /// Compares the timeline of a connection with the latest that the tables were used on, and
    /// records a later one in the tables.
    pub(crate) async fn record_timeline(
        &self,
        session: &Session,
        meta: &StoreMeta,
    ) -> Result<(), StoreError> {
        let Some(found) = session.timeline else { return Ok(()) };
        match meta.timeline {
            Some(recorded) if found.precedes(recorded) => {
                Err(self.history.refuse_recorded(found, recorded, &session.host))
            }
            Some(recorded) if recorded == found => Ok(()),
            Some(_) | None => self.set_timeline(session, found).await,
        }
    }

    /// Records the timeline that the tables are used on.
    async fn set_timeline(
        &self,
        session: &Session,
        Timeline { cluster, number }: Timeline,
    ) -> Result<(), StoreError> {
        let names = &self.options.names;
        let update = names.fill("UPDATE {meta} SET cluster = {cluster}, timeline = {number}");
        let update = update.replace("{cluster}", &cluster.to_string());
        session.simple_query(&update.replace("{number}", &number.to_string())).await.map(drop)
    }

    pub(crate) fn replaced(&self) -> StoreError {
        let display_url = self.options.display_url();
        let message = format!("{display_url}: another store is in the place of this one");
        StoreError::new(StoreErrorKind::Corrupt, message)
    }

    /// Bounds a request by the timeout of a host.
    pub(crate) async fn with_timeout<T>(
        &self,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let limit = hosts::host_timeout(&self.options.config);
        timeout(limit, work).await.unwrap_or_else(|_| {
            let display_url = self.options.display_url();
            let message = format!("{display_url}: no reply from the server within {limit:?}");
            Err(StoreError::new(StoreErrorKind::Unavailable, message))
        })
    }

    /// Connects to one host.
    async fn connect_to_host(
        self: &Arc<Self>,
        host: &Host,
        token: &str,
        on_notification: impl FnMut(&str) + Clone + Send + 'static,
    ) -> Result<Session, StoreError> {
        let permit = Arc::clone(&host.permits).try_acquire_owned().map_err(|_| {
            let message =
                "connection limit reached: too many unresponsive connections to the database";
            StoreError::new(StoreErrorKind::Unavailable, message)
        })?;
        let mut config = host.config.clone();
        let user_options = config.get_options().unwrap_or_default().to_owned();
        config.options(format!("-c semel.session={token} {SETTINGS} {user_options}"));
        let unsynced_commits = Arc::new(AtomicU64::new(0));
        let handler = NoticeHandler {
            unsynced_commits: Arc::clone(&unsynced_commits),
            on_notification,
            _permit: Arc::new(permit),
        };
        let (client, dedicated) = match self.connect(&config, handler.clone()).await {
            Ok(client) => (client, true),
            // A pooler that accepts no startup options.
            Err(error) if error.code() == Some(&SqlState::PROTOCOL_VIOLATION) => {
                (self.connect(&host.config, handler).await.map_err(store_error)?, false)
            }
            Err(error) => return Err(store_error(error)),
        };
        let prepared = StatementKind::ALL.iter().map(|_| OnceLock::new()).collect();
        Ok(Session {
            client,
            host: host.name.clone(),
            dedicated,
            timeline: None,
            timeline_changes: 0,
            replacements: 0,
            opened: Instant::now(),
            unsynced_commits,
            prepared,
            connector: Arc::clone(self),
        })
    }

    async fn connect<H: FnMut(&str) + Send + 'static>(
        &self,
        config: &Config,
        handler: NoticeHandler<H>,
    ) -> Result<Client, Error> {
        if let Some(tls) = &self.tls {
            let (client, connection) = config.connect(tls.clone()).await?;
            Ok(handler.drive(client, connection))
        } else {
            let (client, connection) = config.connect(NoTls).await?;
            Ok(handler.drive(client, connection))
        }
    }
}

/// The error when no host is usable: the errors of all of them.
fn all_hosts_failed(errors: Vec<(&Host, StoreError)>) -> StoreError {
    let count = errors.len();
    let (mut kind, mut message) = (StoreErrorKind::Unavailable, String::new());
    for (host, error) in errors {
        if count == 1 {
            return error;
        }
        if kind == StoreErrorKind::Unavailable {
            kind = error.kind();
        }
        let text = error.to_string();
        let end = if message.is_empty() { "" } else { "; " };
        let name = if text.starts_with(&host.name) { "" } else { &format!("{}: ", host.name) };
        message.push_str(&format!("{end}{name}{text}"));
    }
    StoreError::new(kind, message)
}

/// Handles notices and notifications of the server.
#[derive(Clone)]
struct NoticeHandler<H> {
    unsynced_commits: Arc<AtomicU64>,
    on_notification: H,
    /// Released with the connection.
    _permit: Arc<OwnedSemaphorePermit>,
}

impl<H: FnMut(&str) + Send + 'static> NoticeHandler<H> {
    /// Drives the connection until it ends.
    fn drive<T>(mut self, client: Client, mut connection: Connection<Socket, T>) -> Client
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await
            {
                self.handle(&message);
            }
        });
        client
    }

    fn handle(&mut self, message: &AsyncMessage) {
        if let AsyncMessage::Notification(notification) = message {
            (self.on_notification)(notification.payload());
        } else if let AsyncMessage::Notice(notice) = message
            && notice.parsed_severity() == Some(Severity::Warning)
            && *notice.code() == SqlState::WARNING
        {
            // A commit whose wait for a standby was cancelled succeeds, with a generic warning.
            // No other statement of this crate raises one.
            self.unsynced_commits.fetch_add(1, Ordering::Release);
        }
    }
}

/// An open connection.
pub(crate) struct Session {
    pub(crate) client: Client,
    /// The host, as named in the URL.
    pub(crate) host: String,
    /// The timeline of the server, where the role may read it.
    pub(crate) timeline: Option<Timeline>,
    /// How often the timeline had changed when the connection was opened.
    pub(crate) timeline_changes: u64,
    /// Whether the session belongs to this client alone, so that it keeps prepared statements.
    pub(crate) dedicated: bool,
    /// How often the store had turned out to be another one when the connection was opened.
    pub(crate) replacements: u64,
    pub(crate) opened: Instant,
    unsynced_commits: Arc<AtomicU64>,
    prepared: Vec<OnceLock<Statement>>,
    connector: Arc<SessionConnector>,
}

impl Session {
    /// Finds out whether the session is dedicated, and makes sure that its commits are durable.
    async fn probe(&mut self, token: &str) -> Result<(), StoreError> {
        let query = "SELECT current_setting('semel.session', true), \
                        current_setting('synchronous_commit')";
        let rows = self.client.simple_query(query).await.map_err(store_error)?;
        let row = rows.iter().find_map(|message| {
            let SimpleQueryMessage::Row(row) = message else { return None };
            Some((row.get(0), row.get(1)))
        });
        let (session_token, commit) = row.unwrap_or((None, None));
        let is_dedicated = self.dedicated && session_token == Some(token);
        self.dedicated = match self.connector.options.statements {
            options::StatementNaming::Auto => is_dedicated,
            options::StatementNaming::Named => true,
            options::StatementNaming::Unnamed => false,
        };
        match commit {
            Some("off" | "local") if is_dedicated => {
                let set = "SET synchronous_commit = on";
                self.client.batch_execute(set).await.map_err(store_error)
            }
            Some("off" | "local") => {
                let role = self.connector.options.config.get_user().unwrap_or("…");
                let message = format!(
                    "commits of this role are not durable, and behind a pooler only a setting of \
                     the role changes that: ALTER ROLE \"{role}\" SET synchronous_commit = on"
                );
                Err(StoreError::new(StoreErrorKind::Unavailable, message))
            }
            _ => Ok(()),
        }
    }

    /// How many commits the server reported as not replicated.
    pub(crate) fn unsynced_commits(&self) -> u64 {
        self.unsynced_commits.load(Ordering::Acquire)
    }

    /// Prepares a statement, if the session is dedicated and has not prepared it before.
    pub(crate) async fn prepare(&self, kind: StatementKind) -> Result<(), Error> {
        if self.dedicated {
            self.prepared(kind).await?;
        }
        Ok(())
    }

    /// The prepared statement; only for a dedicated session.
    pub(crate) async fn prepared(&self, kind: StatementKind) -> Result<&Statement, Error> {
        let slot = &self.prepared[kind as usize];
        if let Some(statement) = slot.get() {
            return Ok(statement);
        }
        let sql = self.connector.statements.sql(kind);
        let statement = Box::pin(self.client.prepare_typed(sql, kind.types())).await?;
        Ok(slot.get_or_init(|| statement))
    }

    /// Sends a statement. If it was prepared before, the first poll sends it.
    pub(crate) async fn query(
        &self,
        kind: StatementKind,
        parameters: Vec<BoxedParameter<'_>>,
    ) -> Result<Vec<Row>, Error> {
        let values = parameters.iter().map(|parameter| -> &(dyn ToSql + Sync) { &**parameter });
        if self.dedicated {
            let statement = self.prepared(kind).await?;
            let values: Vec<_> = values.collect();
            self.client.query(statement, &values).await
        } else {
            let values: Vec<_> = values.zip(kind.types().iter().cloned()).collect();
            self.client.query_typed(self.connector.statements.sql(kind), &values).await
        }
    }

    /// Runs a query with a timeout, for the start of a program and for commands of an operator.
    pub(crate) async fn simple_query(
        &self,
        sql: &str,
    ) -> Result<Vec<SimpleQueryMessage>, StoreError> {
        let asked = async { self.client.simple_query(sql).await.map_err(store_error) };
        self.connector.with_timeout(asked).await
    }

    /// Runs unprepared statements, without their results.
    pub(crate) async fn execute(&self, sql: &str) -> Result<Vec<Row>, Error> {
        self.client.batch_execute(sql).await.map(|()| Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use semel_testkit::servers;
    use tokio::time::sleep;

    use super::*;

    fn connector() -> Arc<SessionConnector> {
        let options = Options::parse(&servers::postgres().url("postgres")).unwrap().connections(1);
        Arc::new(SessionConnector::new(options).unwrap())
    }

    async fn shown(session: &Session, setting: &str) -> String {
        let rows = session.client.simple_query(&format!("SHOW {setting}")).await.unwrap();
        let value = |message: &SimpleQueryMessage| {
            let SimpleQueryMessage::Row(row) = message else { return None };
            row.get(0).map(str::to_owned)
        };
        rows.iter().find_map(value).unwrap()
    }

    /// Otherwise a client that loses its power in a transaction keeps its locks for two hours.
    #[tokio::test]
    async fn the_server_closes_the_session_of_a_vanished_client() {
        let session = connector().open(|_| {}).await.unwrap();
        assert_eq!(shown(&session, "tcp_keepalives_idle").await, "10");
        assert_eq!(shown(&session, "tcp_keepalives_interval").await, "3");
        assert_eq!(shown(&session, "tcp_keepalives_count").await, "3");
        assert_eq!(shown(&session, "idle_in_transaction_session_timeout").await, "30s");
        session.execute("SET idle_in_transaction_session_timeout = 0").await.unwrap();
        session.execute(BEGIN_POOLED).await.unwrap();
        assert_eq!(shown(&session, "idle_in_transaction_session_timeout").await, "30s");
        assert_eq!(shown(&session, "lock_timeout").await, "2s");
    }

    #[tokio::test]
    async fn abandoned_connections_count_until_the_server_closes_them() {
        let (connector, admin) = (connector(), connector());
        let admin = admin.open(|_| {}).await.unwrap();
        admin.execute("SELECT pg_advisory_lock(4711)").await.unwrap();
        for _ in 0..8 {
            let session = connector.open(|_| {}).await.unwrap();
            let stuck =
                session.execute("SET lock_timeout = 0; SELECT pg_advisory_lock_shared(4711)");
            assert!(timeout(Duration::from_millis(20), stuck).await.is_err());
        }
        let refused = connector.open(|_| {}).await.err().unwrap();
        assert!(refused.to_string().contains("too many unresponsive connections"), "{refused}");
        admin.execute("SELECT pg_advisory_unlock(4711)").await.unwrap();
        let opened = async {
            while connector.open(|_| {}).await.is_err() {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(Duration::from_secs(60), opened).await.unwrap();
    }
}
