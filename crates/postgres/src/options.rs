//! How a store is named and opened: the URL and what may be said besides.

use std::{
    fmt,
    path::{Path, PathBuf},
    str::FromStr as _,
    time::Duration,
};

use semel_core::StoreError;
use tokio_postgres::{
    Config,
    config::{Host, SslMode, TargetSessionAttrs},
};

use crate::{
    error::UrlError,
    migrate::{self, Migrated},
    names::Names,
    store::PostgresStore,
    tls::Tls,
};

/// What the URL may say that is ours.
const OURS: [&str; 8] =
    ["schema", "prefix", "lanes", "waiting_max", "sslmode", "sslrootcert", "migrate", "statements"];

/// What the URL may say that is PostgreSQL's.
const THEIRS: [&str; 17] = [
    "user",
    "password",
    "dbname",
    "options",
    "application_name",
    "sslnegotiation",
    "host",
    "hostaddr",
    "port",
    "connect_timeout",
    "tcp_user_timeout",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_retries",
    "target_session_attrs",
    "channel_binding",
];

/// How many connections take part in writing at most, whatever the URL says.
const LANES_MAX: usize = 64;

/// Whether statements are prepared under a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Statements {
    /// As the connection turns out to be.
    FoundOut,
    Named,
    Unnamed,
}

/// How to open a store in PostgreSQL.
///
/// ```
/// use semel_postgres::Options;
///
/// let options = Options::parse("postgres://semel:secret@db1,db2/semel?schema=money")?.lanes(2);
/// assert!(!format!("{options:?}").contains("secret"));
/// let refused = Options::parse("postgres://db/semel?shema=money").unwrap_err();
/// assert!(refused.to_string().contains("`schema`"));
/// # Ok::<(), semel_postgres::UrlError>(())
/// ```
#[derive(Clone)]
pub struct Options {
    pub(crate) config: Config,
    pub(crate) names: Names,
    pub(crate) lanes: usize,
    pub(crate) waiting_max: usize,
    pub(crate) migrate: bool,
    pub(crate) statements: Statements,
    pub(crate) verify: bool,
    roots: Option<PathBuf>,
}

impl Options {
    /// Reads a URL: `postgres://user:password@host1:5432,host2/database?schema=…`.
    ///
    /// It takes what PostgreSQL's own clients take (`sslmode` is `disable`, `prefer`, `require` or
    /// `verify-full`) and besides:
    ///
    /// | parameter | default | meaning |
    /// |---|---|---|
    /// | `schema` | `public` | where the tables are |
    /// | `prefix` | `semel_` | what their names begin with |
    /// | `lanes` | 4 | how many connections write, at most |
    /// | `waiting_max` | 4096 | how many claims may wait before the next one is refused |
    /// | `migrate` | `on` | `off`: never change the schema when opening |
    /// | `statements` | found out | `named` or `unnamed`, which a pooler by transactions needs |
    /// | `sslrootcert` | the system's | certificates that `verify-full` trusts |
    ///
    /// # Errors
    ///
    /// If there is anything in it that is not understood.
    pub fn parse(url: &str) -> Result<Self, UrlError> {
        let schemes = ["postgres://", "postgresql://"];
        if !schemes.iter().any(|scheme| url.starts_with(scheme)) {
            return Err(UrlError("a PostgreSQL URL begins with `postgres://`".to_owned()));
        }
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let mut options = Self {
            config: Config::new(),
            names: Names::default(),
            lanes: 4,
            waiting_max: 4096,
            migrate: true,
            statements: Statements::FoundOut,
            verify: false,
            roots: None,
        };
        let mut theirs = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if OURS.contains(&name) {
                if let Some(passed_on) = options.set(name, &decoded(value)?)? {
                    theirs.push(passed_on);
                }
            } else if THEIRS.contains(&name) || name == "load_balance_hosts" {
                theirs.push(pair.to_owned());
            } else {
                return Err(UrlError(format!("unknown parameter `{name}`{}", hint(name))));
            }
        }
        let address = if theirs.is_empty() {
            base.to_owned()
        } else {
            format!("{base}?{}", theirs.join("&"))
        };
        options.address(&address)?;
        Ok(options)
    }

    /// Takes in a parameter of ours; what is PostgreSQL's after all is handed back.
    fn set(&mut self, name: &str, value: &str) -> Result<Option<String>, UrlError> {
        let wanted = |words: &str| UrlError(format!("`{name}` is `{value}`; it takes {words}"));
        match (name, value) {
            ("schema", _) => self.names.set_schema(value).map_err(UrlError)?,
            ("prefix", _) => self.names.set_prefix(value).map_err(UrlError)?,
            ("lanes", _) => match value.parse() {
                Ok(lanes @ 1..=LANES_MAX) => self.lanes = lanes,
                _ => return Err(wanted("a number from 1 to 64")),
            },
            ("waiting_max", _) => {
                self.waiting_max = value.parse().map_err(|_| wanted("a number"))?;
            }
            ("migrate", "on") => self.migrate = true,
            ("migrate", "off") => self.migrate = false,
            ("migrate", _) => return Err(wanted("`on` or `off`")),
            ("statements", "named") => self.statements = Statements::Named,
            ("statements", "unnamed") => self.statements = Statements::Unnamed,
            ("statements", _) => return Err(wanted("`named` or `unnamed`")),
            ("sslrootcert", _) => self.roots = Some(PathBuf::from(value)),
            ("sslmode", "verify-full") => {
                self.verify = true;
                return Ok(Some("sslmode=require".to_owned()));
            }
            ("sslmode", "disable" | "prefer" | "require") => {
                return Ok(Some(format!("sslmode={value}")));
            }
            _ => return Err(wanted("`disable`, `prefer`, `require` or `verify-full`")),
        }
        Ok(None)
    }

    /// Reads what is PostgreSQL's, and makes it fit for a store that writes.
    fn address(&mut self, address: &str) -> Result<(), UrlError> {
        let mut config = Config::from_str(address).map_err(|error| {
            // The source names what is wrong without the value, which may be a password.
            let source = std::error::Error::source(&error).map(ToString::to_string);
            UrlError(format!("not a PostgreSQL URL: {}", source.unwrap_or_default()))
        })?;
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            config.host("localhost");
        }
        if self.roots.is_some() && !self.verify {
            return Err(UrlError("`sslrootcert` needs `sslmode=verify-full`".to_owned()));
        }
        if config.get_target_session_attrs() == TargetSessionAttrs::ReadOnly {
            return Err(UrlError("a store writes: `target_session_attrs=read-only`".to_owned()));
        }
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        if config.get_application_name().is_none() {
            config.application_name("semel");
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(Duration::from_secs(5));
        }
        // A host that vanished without a word must not be waited for until the kernel gives up.
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(Duration::from_secs(10));
        }
        if config.get_keepalives_interval().is_none() {
            config.keepalives_idle(Duration::from_secs(10));
            config.keepalives_interval(Duration::from_secs(3));
            config.keepalives_retries(3);
        }
        self.config = config;
        Ok(())
    }

    /// How many connections write, at most. They are opened as they are needed.
    #[must_use]
    pub fn lanes(mut self, lanes: usize) -> Self {
        self.lanes = lanes.clamp(1, LANES_MAX);
        self
    }

    /// How many claims may wait before the next one is refused.
    #[must_use]
    pub const fn waiting_max(mut self, claims: usize) -> Self {
        self.waiting_max = claims;
        self
    }

    /// Whether opening the store may change its schema.
    #[must_use]
    pub const fn migrating(mut self, migrate: bool) -> Self {
        self.migrate = migrate;
        self
    }

    /// Whether opening the store may change its schema, and so make a store that is not there.
    #[must_use]
    pub const fn may_migrate(&self) -> bool {
        self.migrate
    }

    /// Another clock than the database's, as an expression in SQL: for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn clock_sql(mut self, expression: &str) -> Self {
        self.names.set_now(expression);
        self
    }

    /// Opens the store. It keeps a thread of its own and outlives the runtime it was opened on.
    ///
    /// # Errors
    ///
    /// If the database cannot be reached, or the tables are not there and may not be made.
    pub async fn connect(&self) -> Result<PostgresStore, StoreError> {
        PostgresStore::open(self.clone()).await
    }

    /// Brings the schema up to date. Safe to run from many processes at once.
    ///
    /// # Errors
    ///
    /// If the database cannot be reached or the role may not change the schema.
    pub async fn migrate(&self) -> Result<Migrated, StoreError> {
        migrate::run(self).await
    }

    /// The statements that [`migrate`](Self::migrate) runs on an empty database, to be read first
    /// or to be run by somebody else.
    #[must_use]
    pub fn migrations(&self) -> String {
        migrate::script(&self.names)
    }

    pub(crate) fn tls(&self) -> Result<Option<Tls>, UrlError> {
        if self.config.get_ssl_mode() == SslMode::Disable {
            return Ok(None);
        }
        let tls =
            if self.verify { Tls::verified(self.roots.as_deref()) } else { Tls::unverified() };
        tls.map(Some).map_err(UrlError)
    }

    pub(crate) fn roots(&self) -> Option<&Path> {
        self.roots.as_deref()
    }

    /// Where the database is, for messages.
    pub(crate) fn place(&self) -> String {
        let ports = self.config.get_ports();
        let port = |at: usize| ports.get(at).or(ports.first()).copied().unwrap_or(5432);
        let host = |(at, host): (usize, &Host)| match host {
            Host::Tcp(host) => format!("{host}:{}", port(at)),
            Host::Unix(path) => format!("{}:{}", path.display(), port(at)),
        };
        let hosts: Vec<String> = self.config.get_hosts().iter().enumerate().map(host).collect();
        let database = self.config.get_dbname().unwrap_or_default();
        format!("postgres://{}/{database}", hosts.join(","))
    }
}

impl fmt::Debug for Options {
    // Only what is known to hold no password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("place", &self.place())
            .field("schema", &self.names.schema())
            .field("prefix", &self.names.prefix())
            .field("lanes", &self.lanes)
            .finish_non_exhaustive()
    }
}

/// The word that was probably meant.
fn hint(written: &str) -> String {
    let written = written.to_lowercase();
    let words = OURS.into_iter().chain(THEIRS);
    let near = words
        .map(|word| (strsim::damerau_levenshtein(&written, word), word))
        .filter(|(slips, _)| *slips <= (written.len() / 3).clamp(1, 3))
        .min_by_key(|(slips, _)| *slips);
    near.map(|(_, word)| format!("; did you mean `{word}`?")).unwrap_or_default()
}

/// Undoes percent encoding.
fn decoded(value: &str) -> Result<String, UrlError> {
    let bad = || UrlError("a `%` in the URL is not followed by two hexadecimal digits".to_owned());
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|digit| char::from(digit).to_digit(16));
        let (Some(high), Some(low)) = (digit(), digit()) else { return Err(bad()) };
        bytes.push(u8::try_from(high * 16 + low).map_err(|_| bad())?);
    }
    String::from_utf8(bytes).map_err(|_| UrlError("the URL is not text".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(url: &str) -> String {
        Options::parse(url).unwrap_err().to_string()
    }

    #[test]
    fn the_url_says_where_and_how() {
        let url = "postgres://u:p@a:1,b:2/d?schema=s&prefix=&lanes=7&migrate=off&connect_timeout=9";
        let options = Options::parse(url).unwrap();
        assert_eq!(options.place(), "postgres://a:1,b:2/d");
        assert_eq!((options.names.schema(), options.names.prefix()), ("s", ""));
        assert_eq!((options.lanes, options.migrate), (7, false));
        assert_eq!(options.config.get_connect_timeout(), Some(&Duration::from_secs(9)));
        assert_eq!(options.config.get_target_session_attrs(), TargetSessionAttrs::ReadWrite);
    }

    #[test]
    fn a_url_without_a_host_means_this_machine() {
        assert_eq!(Options::parse("postgres:///d").unwrap().place(), "postgres://localhost:5432/d");
    }

    #[test]
    fn what_is_not_understood_is_refused_with_the_likely_word() {
        assert!(refused("postgres://a/d?shcema=x").contains("did you mean `schema`?"));
        assert!(refused("postgres://a/d?conect_timeout=1").contains("`connect_timeout`"));
        assert_eq!(refused("postgres://a/d?colour=blue"), "unknown parameter `colour`");
        assert!(refused("postgres://a/d?sslmode=verify-ca").contains("`verify-full`"));
        assert!(refused("postgres://a/d?lanes=0").contains("1 to 64"));
        assert!(refused("postgres://a/d?sslrootcert=x").contains("sslmode=verify-full"));
        assert!(refused("postgres://a/d?target_session_attrs=read-only").contains("writes"));
        assert!(refused("mysql://a/d").contains("postgres://"));
        assert!(refused("postgres://a/d?schema=%zz").contains('%'));
    }

    #[test]
    fn a_password_is_never_shown() {
        let url = "postgres://u:hunter2@a/d?password=hunter2";
        let options = Options::parse(url).unwrap();
        assert!(!format!("{options:?} {}", options.place()).contains("hunter2"));
        for url in ["postgres://u:hunter2@a:port/d", "postgres://u:hunter2@a/d?port=hunter2"] {
            assert!(!refused(url).contains("hunter2"), "{}", refused(url));
        }
    }
}
