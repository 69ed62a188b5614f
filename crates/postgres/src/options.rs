//! The options of a store: its URL and settings.

use std::{
    fmt,
    path::{Path, PathBuf},
    str::FromStr as _,
    time::Duration,
};

use tokio_postgres::{
    Config,
    config::{Host, SslMode, TargetSessionAttrs},
};

#[cfg(feature = "tls")]
pub(crate) use crate::tls::MakeRustlsConnect;
use crate::{error::PostgresUrlError, table_names::TableNames};

/// Without the feature `tls` no connection is encrypted.
#[cfg(not(feature = "tls"))]
pub(crate) use tokio_postgres::NoTls as MakeRustlsConnect;

/// The URL parameters of Semel.
const SEMEL_PARAMETERS: [&str; 8] = [
    "schema",
    "prefix",
    "connections",
    "waiting_max",
    "sslmode",
    "sslrootcert",
    "migrate",
    "statements",
];

/// The URL parameters of PostgreSQL.
const POSTGRES_PARAMETERS: [&str; 17] = [
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

/// The upper limit of `connections`.
const CONNECTIONS_MAX: usize = 64;

/// Whether statements are prepared under a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StatementNaming {
    /// Named in a dedicated session, unnamed behind a pooler.
    Auto,
    Named,
    Unnamed,
}

/// How to open a store in PostgreSQL.
///
/// ```
/// use semel_postgres::Options;
///
/// let url = "postgres://semel:secret@db1,db2/semel?schema=money";
/// let options = Options::parse(url)?.connections(2);
/// assert!(!format!("{options:?}").contains("secret"));
/// let refused = Options::parse("postgres://db/semel?shema=money").unwrap_err();
/// assert!(refused.to_string().contains("`schema`"));
/// # Ok::<(), semel_postgres::PostgresUrlError>(())
/// ```
#[derive(Clone)]
pub struct Options {
    pub(crate) config: Config,
    pub(crate) names: TableNames,
    pub(crate) connections: usize,
    pub(crate) waiting_max: usize,
    pub(crate) migrate: bool,
    pub(crate) statements: StatementNaming,
    pub(crate) verify: bool,
    root_certificates: Option<PathBuf>,
}

impl Options {
    /// Reads a URL: `postgres://user:password@host1:5432,host2/database?schema=…`.
    ///
    /// It accepts the parameters of PostgreSQL's own clients (`sslmode` is `disable`, `prefer`,
    /// `require` or `verify-full`) and these:
    ///
    /// | parameter | default | meaning |
    /// |---|---|---|
    /// | `schema` | `public` | schema of the tables |
    /// | `prefix` | `semel_` | prefix of the tables' names |
    /// | `connections` | 4 | maximum number of connections for batches |
    /// | `waiting_max` | 4096 | maximum number of waiting claims; the next one fails |
    /// | `migrate` | `on` | `off`: never create or change tables when opening |
    /// | `statements` | detected | `named`, or `unnamed` as a pooler in transaction mode needs |
    /// | `sslrootcert` | the system's | certificates that `verify-full` trusts |
    ///
    /// # Errors
    ///
    /// If the URL is invalid or has an unknown parameter.
    pub fn parse(url: &str) -> Result<Self, PostgresUrlError> {
        let schemes = ["postgres://", "postgresql://"];
        if !schemes.iter().any(|scheme| url.starts_with(scheme)) {
            return Err(PostgresUrlError("a PostgreSQL URL begins with `postgres://`".to_owned()));
        }
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let mut options = Self {
            config: Config::new(),
            names: TableNames::default(),
            connections: 4,
            waiting_max: 4096,
            migrate: true,
            statements: StatementNaming::Auto,
            verify: false,
            root_certificates: None,
        };
        let mut postgres_parameters = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if SEMEL_PARAMETERS.contains(&name) {
                if let Some(translated) = options.set(name, &decoded(value)?)? {
                    postgres_parameters.push(translated);
                }
            } else if POSTGRES_PARAMETERS.contains(&name) || name == "load_balance_hosts" {
                postgres_parameters.push(pair.to_owned());
            } else {
                return Err(PostgresUrlError(format!("unknown parameter `{name}`{}", hint(name))));
            }
        }
        let url = if postgres_parameters.is_empty() {
            base.to_owned()
        } else {
            format!("{base}?{}", postgres_parameters.join("&"))
        };
        options.set_config(&url)?;
        Ok(options)
    }

    /// Sets a parameter of Semel; returns the parameter of PostgreSQL that it translates to, if
    /// any.
    fn set(&mut self, name: &str, value: &str) -> Result<Option<String>, PostgresUrlError> {
        let wanted =
            |words: &str| PostgresUrlError(format!("`{name}` is `{value}`; it must be {words}"));
        match (name, value) {
            ("schema", _) => self.names.set_schema(value).map_err(PostgresUrlError)?,
            ("prefix", _) => self.names.set_prefix(value).map_err(PostgresUrlError)?,
            ("connections", _) => match value.parse() {
                Ok(connections @ 1..=CONNECTIONS_MAX) => self.connections = connections,
                _ => return Err(wanted("a number from 1 to 64")),
            },
            ("waiting_max", _) => {
                self.waiting_max = value.parse().map_err(|_| wanted("a number"))?;
            }
            ("migrate", "on") => self.migrate = true,
            ("migrate", "off") => self.migrate = false,
            ("migrate", _) => return Err(wanted("`on` or `off`")),
            ("statements", "named") => self.statements = StatementNaming::Named,
            ("statements", "unnamed") => self.statements = StatementNaming::Unnamed,
            ("statements", _) => return Err(wanted("`named` or `unnamed`")),
            ("sslrootcert", _) => self.root_certificates = Some(PathBuf::from(value)),
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

    /// Parses the part of PostgreSQL, and adds the defaults of a store.
    fn set_config(&mut self, url: &str) -> Result<(), PostgresUrlError> {
        let mut config = Config::from_str(url).map_err(|error| {
            // The source names what is wrong without the value, which may be a password.
            let source = std::error::Error::source(&error).map(ToString::to_string);
            PostgresUrlError(format!("not a PostgreSQL URL: {}", source.unwrap_or_default()))
        })?;
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            config.host("localhost");
        }
        if self.root_certificates.is_some() && !self.verify {
            return Err(PostgresUrlError("`sslrootcert` needs `sslmode=verify-full`".to_owned()));
        }
        if config.get_target_session_attrs() == TargetSessionAttrs::ReadOnly {
            return Err(PostgresUrlError(
                "a store writes, so `target_session_attrs` cannot be `read-only`".to_owned(),
            ));
        }
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        if config.get_application_name().is_none() {
            config.application_name("semel");
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(Duration::from_secs(5));
        }
        // The kernel's own timeouts for a vanished host are far too long.
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

    /// Maximum number of connections for batches. They are opened when needed.
    #[must_use]
    pub fn connections(mut self, connections: usize) -> Self {
        self.connections = connections.clamp(1, CONNECTIONS_MAX);
        self
    }

    /// Maximum number of waiting claims. While it is reached, the next claim fails.
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

    /// Whether opening the store may change its schema, and so create a store.
    #[must_use]
    pub const fn may_migrate(&self) -> bool {
        self.migrate
    }

    /// Replaces the clock of the database by an SQL expression, for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn clock_sql(mut self, expression: &str) -> Self {
        self.names.set_now(expression);
        self
    }

    pub(crate) fn tls(&self) -> Result<Option<MakeRustlsConnect>, PostgresUrlError> {
        if self.config.get_ssl_mode() == SslMode::Disable {
            return Ok(None);
        }
        #[cfg(not(feature = "tls"))]
        return match self.config.get_ssl_mode() {
            SslMode::Disable | SslMode::Prefer => Ok(None),
            _ => Err(PostgresUrlError("TLS needs the feature `tls` of semel-postgres".to_owned())),
        };
        #[cfg(feature = "tls")]
        let tls = if self.verify {
            MakeRustlsConnect::verified(self.root_certificates.as_deref())
        } else {
            MakeRustlsConnect::unverified()
        };
        #[cfg(feature = "tls")]
        tls.map(Some).map_err(PostgresUrlError)
    }

    /// A pool of connections to this database whose unqualified names are those of the schema, for
    /// the transactional mode and the outbox. The schema is set when a connection begins, which a
    /// pooler may refuse.
    ///
    /// # Errors
    ///
    /// If TLS is required and cannot be set up.
    #[cfg(feature = "transactional")]
    pub fn pool(&self, connections: usize) -> Result<deadpool_postgres::Pool, PostgresUrlError> {
        use deadpool_postgres::{Manager, Pool};
        let mut config = self.config.clone();
        let path = self.names.fill("-c search_path={schema}");
        config.options(match self.config.get_options() {
            Some(before) => format!("{before} {path}"),
            None => path,
        });
        let manager = match self.tls()? {
            Some(tls) => Manager::new(config, tls),
            None => Manager::new(config, tokio_postgres::NoTls),
        };
        let pool = Pool::builder(manager).max_size(connections.max(1)).build();
        pool.map_err(|error| PostgresUrlError(error.to_string()))
    }

    pub(crate) fn root_certificates(&self) -> Option<&Path> {
        self.root_certificates.as_deref()
    }

    /// The URL of the database without user and password, for messages.
    pub(crate) fn display_url(&self) -> String {
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
    // Only fields without a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("url", &self.display_url())
            .field("schema", &self.names.schema())
            .field("prefix", &self.names.prefix())
            .field("connections", &self.connections)
            .finish_non_exhaustive()
    }
}

/// Suggests the parameter that was probably meant.
fn hint(name: &str) -> String {
    let name = name.to_lowercase();
    let words = SEMEL_PARAMETERS.into_iter().chain(POSTGRES_PARAMETERS);
    let near = words
        .map(|word| (strsim::damerau_levenshtein(&name, word), word))
        .filter(|(distance, _)| *distance <= (name.len() / 3).clamp(1, 3))
        .min_by_key(|(distance, _)| *distance);
    near.map(|(_, word)| format!("; did you mean `{word}`?")).unwrap_or_default()
}

/// Decodes percent-encoding.
fn decoded(value: &str) -> Result<String, PostgresUrlError> {
    let bad = || {
        PostgresUrlError("a `%` in the URL is not followed by two hexadecimal digits".to_owned())
    };
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
    String::from_utf8(bytes).map_err(|_| PostgresUrlError("the URL is not text".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(url: &str) -> String {
        Options::parse(url).unwrap_err().to_string()
    }

    #[test]
    fn the_url_sets_host_schema_and_limits() {
        let url =
            "postgres://u:p@a:1,b:2/d?schema=s&prefix=&connections=7&migrate=off&connect_timeout=9";
        let options = Options::parse(url).unwrap();
        assert_eq!(options.display_url(), "postgres://a:1,b:2/d");
        assert_eq!((options.names.schema(), options.names.prefix()), ("s", ""));
        assert_eq!((options.connections, options.migrate), (7, false));
        assert_eq!(options.config.get_connect_timeout(), Some(&Duration::from_secs(9)));
        assert_eq!(options.config.get_target_session_attrs(), TargetSessionAttrs::ReadWrite);
    }

    #[test]
    fn a_url_without_a_host_means_this_machine() {
        assert_eq!(
            Options::parse("postgres:///d").unwrap().display_url(),
            "postgres://localhost:5432/d"
        );
    }

    #[test]
    fn an_unknown_parameter_is_refused_with_a_suggestion() {
        assert!(refused("postgres://a/d?shcema=x").contains("did you mean `schema`?"));
        assert!(refused("postgres://a/d?conect_timeout=1").contains("`connect_timeout`"));
        assert_eq!(refused("postgres://a/d?colour=blue"), "unknown parameter `colour`");
        assert!(refused("postgres://a/d?sslmode=verify-ca").contains("`verify-full`"));
        assert!(refused("postgres://a/d?connections=0").contains("1 to 64"));
        assert!(refused("postgres://a/d?sslrootcert=x").contains("sslmode=verify-full"));
        assert!(refused("postgres://a/d?target_session_attrs=read-only").contains("writes"));
        assert!(refused("mysql://a/d").contains("postgres://"));
        assert!(refused("postgres://a/d?schema=%zz").contains('%'));
    }

    #[test]
    fn a_password_is_never_shown() {
        let url = "postgres://u:hunter2@a/d?password=hunter2";
        let options = Options::parse(url).unwrap();
        assert!(!format!("{options:?} {}", options.display_url()).contains("hunter2"));
        for url in ["postgres://u:hunter2@a:port/d", "postgres://u:hunter2@a/d?port=hunter2"] {
            assert!(!refused(url).contains("hunter2"), "{}", refused(url));
        }
    }
}
