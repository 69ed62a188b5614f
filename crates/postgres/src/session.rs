//! One connection: how it is opened, what it turns out to be, and how statements are sent on it.
//!
//! A pooler that works by transactions mixes sessions: a statement that was prepared under a name
//! could be somebody else's. So every connection asks for a setting of its own at its start. Where
//! the server gives it back, the session is ours alone and statements have names; otherwise
//! nothing is kept in the session at all.

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
    error::{UrlError, store_error},
    hosts,
    migrate::{self, Meta},
    options::{self, Options},
    statements::{Statements, Verb},
    timeline::{History, Timeline},
    tls::Tls,
};

/// What every session of our own is set to. Plans are made once and go by the primary key however
/// small the table was then; a lock that somebody else keeps is not waited for without end. Neither
/// are ours kept for long by a machine that has lost its power.
const SETTINGS: &str = "-c statement_timeout=0 -c idle_in_transaction_session_timeout=30000 \
                        -c tcp_keepalives_idle=10 -c tcp_keepalives_interval=3 \
                        -c tcp_keepalives_count=3 \
                        -c lock_timeout=2000 -c search_path=pg_catalog \
                        -c default_transaction_isolation=read\\ committed \
                        -c plan_cache_mode=force_generic_plan -c jit=off -c enable_seqscan=off \
                        -c enable_hashjoin=off -c enable_mergejoin=off -c enable_bitmapscan=off";

/// How a transaction begins in a session that is not ours to set up.
pub(crate) const BEGIN_POOLED: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; \
                                       SET LOCAL lock_timeout = '2s'; \
                                       SET LOCAL idle_in_transaction_session_timeout = '30s'";

/// What such a transaction says besides where its statements go through many records: they are
/// planned each time, and must go by an index whatever the server has counted.
pub(crate) const PLAN_POOLED: &str = "SET LOCAL enable_seqscan = off; \
                                      SET LOCAL enable_bitmapscan = off; \
                                      SET LOCAL enable_hashjoin = off; \
                                      SET LOCAL enable_mergejoin = off; SET LOCAL jit = off";

/// Timeout of each step of the survey of a host.
const SURVEY_TIMEOUT: Duration = Duration::from_secs(1);

/// What a parameter of a statement is.
pub(crate) type Parameter<'a> = Box<dyn ToSql + Sync + Send + 'a>;

/// How connections are made.
pub(crate) struct Connector {
    pub(crate) options: Options,
    pub(crate) statements: Statements,
    tls: Option<Tls>,
    hosts: Vec<Host>,
    /// Which store it is, once that is known: another one in its place must not be taken for it.
    pub(crate) store: OnceLock<String>,
    pub(crate) history: History,
}

/// One of the servers.
struct Host {
    name: String,
    config: Config,
    /// How many connections to it there may be, also of those that nobody uses any more: a server
    /// that waits for its standby does not notice that its client is gone.
    places: Arc<Semaphore>,
}

impl Connector {
    pub(crate) fn new(options: Options) -> Result<Self, UrlError> {
        let statements = Statements::new(&options.names);
        let tls = options.tls()?;
        // Of lanes and doors, the office and the listener: as many again as are ever in use.
        let places = 2 * (2 * options.lanes + 2);
        let host = |config| Host {
            name: hosts::name(&config),
            config,
            places: Arc::new(Semaphore::new(places)),
        };
        let hosts = hosts::each(&options.config).into_iter().map(host).collect();
        let (store, history) = (OnceLock::new(), History::default());
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

    /// Connects to all hosts at once: returns those that take writes, with their timelines.
    pub(crate) async fn survey(self: &Arc<Self>) -> Vec<(String, Option<Timeline>)> {
        let look = |at: usize| {
            let this = Arc::clone(self);
            tokio::spawn(async move {
                let host = this.hosts.get(at)?;
                let session = timeout(SURVEY_TIMEOUT, this.reach(host, "survey", |_| {}));
                let session = session.await.ok()?.ok()?;
                let timeline = timeout(SURVEY_TIMEOUT, Timeline::read(&session.client));
                Some((host.name.clone(), timeline.await.ok()?.ok()?))
            })
        };
        let looking: Vec<_> = (0..self.hosts.len()).map(look).collect();
        let mut primaries = Vec::new();
        for looking in looking {
            if let Ok(Some((name, timeline))) = looking.await {
                timeline.inspect(|timeline| self.history.note(*timeline));
                primaries.push((name, timeline));
            }
        }
        primaries
    }

    /// Opens a connection on the current runtime, to the first host that takes writes, has the
    /// store, and is no former primary; and probes the connection.
    pub(crate) async fn open(
        self: &Arc<Self>,
        hear: impl FnMut(&str) + Clone + Send + 'static,
    ) -> Result<Session, StoreError> {
        let mut token = [0; 16];
        getrandom::fill(&mut token).map_err(|error| {
            StoreError::new(StoreErrorKind::Unavailable, "no random numbers").because(error)
        })?;
        let token = format!("{:032x}", u128::from_be_bytes(token));
        let mut errors = Vec::new();
        for at in hosts::order(&self.options.config, self.hosts.len()) {
            let Some(host) = self.hosts.get(at) else { continue };
            match Box::pin(self.open_to(host, &token, hear.clone())).await {
                Ok(session) => return Ok(session),
                Err(error) => errors.push((host, error)),
            }
        }
        Err(none_of(errors))
    }

    /// Opens a connection to one host, and probes it.
    async fn open_to(
        self: &Arc<Self>,
        host: &Host,
        token: &str,
        hear: impl FnMut(&str) + Clone + Send + 'static,
    ) -> Result<Session, StoreError> {
        let mut session = self.in_time(self.reach(host, token, hear)).await?;
        self.in_time(session.find_out(token)).await?;
        self.in_time(self.admit(&mut session)).await?;
        Ok(session)
    }

    /// Admits a connection to the store that was opened, on its latest timeline.
    async fn admit(&self, session: &mut Session) -> Result<(), StoreError> {
        let meta = match self.store.get() {
            None => None,
            Some(store) => match migrate::meta(session, &self.options.names).await? {
                Some(meta) if meta.store == *store => Some(meta),
                Some(_) | None => return Err(self.replaced()),
            },
        };
        session.timeline = Timeline::read(&session.client).await.map_err(store_error)?;
        session.changes = self.history.admit(session.timeline, &session.host)?;
        match meta {
            Some(meta) => self.record_timeline(session, &meta).await,
            None => Ok(()),
        }
    }

    /// Compares the timeline of a connection with the latest that the tables were used on, and lets
    /// them remember a later one.
    pub(crate) async fn record_timeline(
        &self,
        session: &Session,
        meta: &Meta,
    ) -> Result<(), StoreError> {
        let Some(found) = session.timeline else { return Ok(()) };
        match meta.timeline {
            Some(recorded) if found.precedes(recorded) => {
                Err(self.history.refuse_recorded(found, recorded, &session.host))
            }
            Some(recorded) if recorded == found => Ok(()),
            Some(_) | None => migrate::set_timeline(session, &self.options.names, found).await,
        }
    }

    pub(crate) fn replaced(&self) -> StoreError {
        let place = self.options.place();
        let message = format!("{place}: another store is in the place of this one");
        StoreError::new(StoreErrorKind::Corrupt, message)
    }

    /// What a server that says nothing must not hold up.
    pub(crate) async fn in_time<T>(
        &self,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let limit = hosts::limit(&self.options.config);
        timeout(limit, work).await.unwrap_or_else(|_| {
            let place = self.options.place();
            let message = format!("{place}: the server says nothing within {limit:?}");
            Err(StoreError::new(StoreErrorKind::Unavailable, message))
        })
    }

    /// Connects to one host.
    async fn reach(
        self: &Arc<Self>,
        host: &Host,
        token: &str,
        hear: impl FnMut(&str) + Clone + Send + 'static,
    ) -> Result<Session, StoreError> {
        let place = Arc::clone(&host.places).try_acquire_owned().map_err(|_| {
            let message = "too many connections are left at which the database does not answer";
            StoreError::new(StoreErrorKind::Unavailable, message)
        })?;
        let mut config = host.config.clone();
        let theirs = config.get_options().unwrap_or_default().to_owned();
        config.options(format!("-c semel.session={token} {SETTINGS} {theirs}"));
        let doubts = Arc::new(AtomicU64::new(0));
        let ear = Ear { doubts: Arc::clone(&doubts), hear, _place: Arc::new(place) };
        let (client, named) = match self.connect(&config, ear.clone()).await {
            Ok(client) => (client, true),
            // A pooler that takes no options.
            Err(error) if error.code() == Some(&SqlState::PROTOCOL_VIOLATION) => {
                (self.connect(&host.config, ear).await.map_err(store_error)?, false)
            }
            Err(error) => return Err(store_error(error)),
        };
        let prepared = Verb::ALL.iter().map(|_| OnceLock::new()).collect();
        Ok(Session {
            client,
            host: host.name.clone(),
            named,
            timeline: None,
            changes: 0,
            strangers: 0,
            opened: Instant::now(),
            doubts,
            prepared,
            connector: Arc::clone(self),
        })
    }

    async fn connect<H: FnMut(&str) + Send + 'static>(
        &self,
        config: &Config,
        ear: Ear<H>,
    ) -> Result<Client, Error> {
        if let Some(tls) = &self.tls {
            let (client, connection) = config.connect(tls.clone()).await?;
            Ok(ear.attend(client, connection))
        } else {
            let (client, connection) = config.connect(NoTls).await?;
            Ok(ear.attend(client, connection))
        }
    }
}

/// The error when no host is usable: the errors of all of them.
fn none_of(errors: Vec<(&Host, StoreError)>) -> StoreError {
    let count = errors.len();
    let (mut kind, mut message) = (StoreErrorKind::Unavailable, String::new());
    for (host, error) in errors {
        if count == 1 {
            return error;
        }
        if kind == StoreErrorKind::Unavailable {
            kind = error.kind();
        }
        let said = error.to_string();
        let end = if message.is_empty() { "" } else { "; " };
        let name = if said.starts_with(&host.name) { "" } else { &format!("{}: ", host.name) };
        message.push_str(&format!("{end}{name}{said}"));
    }
    StoreError::new(kind, message)
}

/// What listens to what the server says unasked.
#[derive(Clone)]
struct Ear<H> {
    doubts: Arc<AtomicU64>,
    hear: H,
    /// Given up with the connection.
    _place: Arc<OwnedSemaphorePermit>,
}

impl<H: FnMut(&str) + Send + 'static> Ear<H> {
    /// Drives the connection until it ends.
    fn attend<T>(mut self, client: Client, mut connection: Connection<Socket, T>) -> Client
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await
            {
                self.heard(&message);
            }
        });
        client
    }

    fn heard(&mut self, message: &AsyncMessage) {
        if let AsyncMessage::Notification(notification) = message {
            (self.hear)(notification.payload());
        } else if let AsyncMessage::Notice(notice) = message
            && notice.parsed_severity() == Some(Severity::Warning)
            && *notice.code() == SqlState::WARNING
        {
            // A commit whose wait for a standby was cut short succeeds all the same, with nothing
            // but a warning of no further kind. None of our statements has any other.
            self.doubts.fetch_add(1, Ordering::Release);
        }
    }
}

/// An open connection.
pub(crate) struct Session {
    pub(crate) client: Client,
    /// The server, by its name in the URL.
    pub(crate) host: String,
    /// The timeline of the server, where the role may read it.
    pub(crate) timeline: Option<Timeline>,
    /// How often a later timeline had been met when it was opened.
    pub(crate) changes: u64,
    /// Whether the session is ours alone, so that it may keep something.
    pub(crate) named: bool,
    /// How often another store had been found in the place of this one when it was opened.
    pub(crate) strangers: u64,
    pub(crate) opened: Instant,
    doubts: Arc<AtomicU64>,
    prepared: Vec<OnceLock<Statement>>,
    connector: Arc<Connector>,
}

impl Session {
    /// Learns whether the session is ours, and that what it commits is durable.
    async fn find_out(&mut self, token: &str) -> Result<(), StoreError> {
        let question = "SELECT current_setting('semel.session', true), \
                        current_setting('synchronous_commit')";
        let told = self.client.simple_query(question).await.map_err(store_error)?;
        let row = told.iter().find_map(|message| {
            let SimpleQueryMessage::Row(row) = message else { return None };
            Some((row.get(0), row.get(1)))
        });
        let (said, commit) = row.unwrap_or((None, None));
        let ours = self.named && said == Some(token);
        self.named = match self.connector.options.statements {
            options::Statements::FoundOut => ours,
            options::Statements::Named => true,
            options::Statements::Unnamed => false,
        };
        match commit {
            Some("off" | "local") if ours => {
                let set = "SET synchronous_commit = on";
                self.client.batch_execute(set).await.map_err(store_error)
            }
            Some("off" | "local") => {
                let role = self.connector.options.config.get_user().unwrap_or("…");
                let message = format!(
                    "commits of this role are not durable, and through a pooler only the role can \
                     change that: ALTER ROLE \"{role}\" SET synchronous_commit = on"
                );
                Err(StoreError::new(StoreErrorKind::Unavailable, message))
            }
            _ => Ok(()),
        }
    }

    /// How often the server has said that what it commits may not last.
    pub(crate) fn doubts(&self) -> u64 {
        self.doubts.load(Ordering::Acquire)
    }

    /// Prepares a statement, if this session keeps any and has not done so before.
    pub(crate) async fn prepare(&self, verb: Verb) -> Result<(), Error> {
        if self.named {
            self.prepared(verb).await?;
        }
        Ok(())
    }

    /// The statement, prepared if it has not been before: only where the session is ours.
    pub(crate) async fn prepared(&self, verb: Verb) -> Result<&Statement, Error> {
        let place = &self.prepared[verb as usize];
        if let Some(statement) = place.get() {
            return Ok(statement);
        }
        let sql = self.connector.statements.sql(verb);
        let statement = Box::pin(self.client.prepare_typed(sql, verb.types())).await?;
        Ok(place.get_or_init(|| statement))
    }

    /// Sends a statement; it is on its way once this has been polled for the first time, if it has
    /// been prepared before.
    pub(crate) async fn query(
        &self,
        verb: Verb,
        parameters: Vec<Parameter<'_>>,
    ) -> Result<Vec<Row>, Error> {
        let given = parameters.iter().map(|parameter| -> &(dyn ToSql + Sync) { &**parameter });
        if self.named {
            let statement = self.prepared(verb).await?;
            let given: Vec<_> = given.collect();
            self.client.query(statement, &given).await
        } else {
            let given: Vec<_> = given.zip(verb.types().iter().cloned()).collect();
            self.client.query_typed(self.connector.statements.sql(verb), &given).await
        }
    }

    /// Asks for what somebody waits for at the start or at a prompt.
    pub(crate) async fn ask(&self, sql: &str) -> Result<Vec<SimpleQueryMessage>, StoreError> {
        let asked = async { self.client.simple_query(sql).await.map_err(store_error) };
        self.connector.in_time(asked).await
    }

    /// Runs statements that return nothing, without a name.
    pub(crate) async fn run(&self, sql: &str) -> Result<Vec<Row>, Error> {
        self.client.batch_execute(sql).await.map(|()| Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use semel_testkit::servers;
    use tokio::time::sleep;

    use super::*;

    fn connector() -> Arc<Connector> {
        let options = Options::parse(&servers::postgres().url("postgres")).unwrap().lanes(1);
        Arc::new(Connector::new(options).unwrap())
    }

    async fn shown(session: &Session, setting: &str) -> String {
        let told = session.client.simple_query(&format!("SHOW {setting}")).await.unwrap();
        let value = |message: &SimpleQueryMessage| {
            let SimpleQueryMessage::Row(row) = message else { return None };
            row.get(0).map(str::to_owned)
        };
        told.iter().find_map(value).unwrap()
    }

    /// Otherwise a machine that loses its power in a transaction keeps its locks for two hours.
    #[tokio::test]
    async fn the_server_gives_up_a_client_that_vanished() {
        let session = connector().open(|_| {}).await.unwrap();
        assert_eq!(shown(&session, "tcp_keepalives_idle").await, "10");
        assert_eq!(shown(&session, "tcp_keepalives_interval").await, "3");
        assert_eq!(shown(&session, "tcp_keepalives_count").await, "3");
        assert_eq!(shown(&session, "idle_in_transaction_session_timeout").await, "30s");
        session.run("SET idle_in_transaction_session_timeout = 0").await.unwrap();
        session.run(BEGIN_POOLED).await.unwrap();
        assert_eq!(shown(&session, "idle_in_transaction_session_timeout").await, "30s");
        assert_eq!(shown(&session, "lock_timeout").await, "2s");
    }

    #[tokio::test]
    async fn connections_that_were_given_up_count_until_the_server_lets_go() {
        let (connector, admin) = (connector(), connector());
        let admin = admin.open(|_| {}).await.unwrap();
        admin.run("SELECT pg_advisory_lock(4711)").await.unwrap();
        for _ in 0..8 {
            let session = connector.open(|_| {}).await.unwrap();
            let stuck = session.run("SET lock_timeout = 0; SELECT pg_advisory_lock_shared(4711)");
            assert!(timeout(Duration::from_millis(20), stuck).await.is_err());
        }
        let refused = connector.open(|_| {}).await.err().unwrap();
        assert!(refused.to_string().contains("too many connections"), "{refused}");
        admin.run("SELECT pg_advisory_unlock(4711)").await.unwrap();
        let opened = async {
            while connector.open(|_| {}).await.is_err() {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(Duration::from_secs(60), opened).await.unwrap();
    }
}
