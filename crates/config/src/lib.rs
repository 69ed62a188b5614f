//! Reads and validates the configuration.
//!
//! | file | what lives there |
//! |---|---|
//! | `raw` | every setting: name, documentation, default |
//! | `settings`, `read`, `report` | reading TOML, and reporting every error with its location |
//! | `values`, `units`, `urls`, `keys`, `callers`, `rules` | the types of settings |
//! | `cors`, `deadline` | pages of other origins; deadlines of clients |
//! | `capture` | request values that a record keeps |
//! | `api` | the API listener, its tokens, and the scopes of claims |
//! | `verified_callers` | caller rules that verify tokens, certificates and networks |
//! | `signature` | webhook signatures |
//! | `passfile` | the password file of PostgreSQL (`PGPASSFILE`) |
//! | `cli_overrides` | command-line flags that override the file |
//! | `load`, `routes` | building a [`Config`] from the tables |
//! | `files` | checks that named files exist |
//! | `machine` | memory of the machine and cgroup limits |
//! | `matching`, `path`, `pattern` | route patterns; patterns of other routers |
//! | `explain`, `print`, `table`, `effects`, `describe` | output for people |
//! | `trusted_header` | sign-in to the dashboard by a header |
//!
//! Nothing here binds a port, or reads the environment after a configuration is built. The files
//! that a configuration names are only checked: a missing one is reported with its location.

mod api;
mod callers;
mod capture;
mod cli_overrides;
mod cors;
mod deadline;
mod describe;
mod dialect;
mod effects;
mod explain;
mod files;
mod issued_keys;
mod keys;
mod limits;
mod load;
mod loader;
mod machine;
mod matching;
mod passfile;
mod path;
mod pattern;
mod print;
pub mod private_files;
mod raw;
mod read;
mod readings;
mod reconcile;
mod report;
mod routes;
mod rules;
mod settings;
mod signature;
mod suggest;
mod table;
mod trusted_header;
mod units;
mod urls;
mod values;
mod verified_callers;

use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};

use http::{HeaderName, Method, Uri, uri::Authority};
use semel::core::{Dialect, FingerprintRule, Policy, Scope};
use semel_tower::{
    CaptureSource, CertificateField, KeyLocation, LookupPath, Network, RecordContent,
};

pub use self::{
    api::{Api, ApiToken, BearerToken, ScopeRule, TokenSource, default_audit_path},
    callers::is_forwarded,
    cli_overrides::Overrides,
    cors::CorsSetting,
    deadline::DeadlineSetting,
    describe::RouteDescription,
    explain::{default_toml, schema_json},
    issued_keys::IssuedKeysRule,
    keys::IssuedKeyUse,
    limits::Limits,
    load::lacks_shared_caller_secret,
    matching::{contains_loosely, takes_path, takes_path_loosely},
    path::normal_path,
    readings::{TooManyReadings, any_reading, has_one_reading},
    reconcile::{HeaderSecret, ReadHeader, ReconcileRule},
    units::{duration, time_text},
    urls::{Password, cache_url, store_url},
};
pub use self::{
    report::ConfigError,
    signature::{HmacRule, SignatureRule, SignatureScheme, WebhookSecret, WebhookSecretSource},
    trusted_header::TrustedHeader,
    urls::{CacheUrl, ServerUrl, StoreUrl},
    values::{ApiRole, ClientAuth, app_caller},
    verified_callers::{JwtKeySource, JwtRule, JwtSecret},
};

/// A whole configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// The record store.
    pub store: StoreUrl,
    /// The id of the only store that may be used; `None` if it may be any.
    pub store_id: Option<String>,
    /// The cache in front of the store.
    pub cache: Option<CacheUrl>,
    /// The listeners that clients reach.
    pub gateway: Gateway,
    /// The API listener; `None` if it is off.
    pub api: Option<Api>,
    /// The scopes that limit claims of the service API.
    pub scopes: Vec<ScopeRule>,
    /// Limits on sizes, times and counts.
    pub limits: Limits,
    /// Interval between sweeps.
    pub sweep_every: Duration,
    /// Source of the secret that hashes credentials into caller names.
    pub secret: SecretSource,
    /// Value of [`SecretSource::Env`] when the configuration was built.
    pub secret_value: Option<CallerSecret>,
    /// Source of the previous secret, if keys are still looked up under it: never
    /// [`SecretSource::BesideStore`].
    pub secret_before: Option<SecretSource>,
    /// Its value, if it is [`SecretSource::Env`].
    pub secret_before_value: Option<CallerSecret>,
    /// The routes, in matching order. A request that matches none passes unguarded to
    /// [`Gateway::upstream`].
    pub routes: Vec<Route>,
}

/// The listeners that clients reach.
#[derive(Clone, Debug)]
pub struct Gateway {
    /// Where to listen, at least one.
    pub listen: Vec<SocketAddr>,
    /// The certificate, if clients connect with TLS.
    pub tls: Option<Tls>,
    /// Where requests go unless their route says otherwise. `None` if there is no gateway, and the
    /// service API is served alone.
    pub upstream: Option<Arc<Upstream>>,
    /// How many threads serve; each has its own connections to the upstream.
    pub threads: usize,
    /// Grace period for in-flight requests on shutdown.
    pub drain: Duration,
    /// Whether a proxy in front sets the headers that say where a request comes from. If not, they
    /// are replaced.
    pub trust_forwarded: bool,
    /// The proxies to which that applies; every peer, if empty.
    pub trusted_proxies: Vec<Network>,
    /// What to do with requests that match no route.
    pub unmatched: OnUnmatched,
    /// The page that tells clients how to retry, for the `Link` header of every problem.
    pub docs: Option<String>,
}

/// A certificate chain and its key, as PEM files that are read again when they change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// The certificate, then those that lead to its issuer.
    pub certificate: PathBuf,
    /// The private key.
    pub key: PathBuf,
    /// The authorities whose client certificates are accepted; `None` if clients are not asked.
    pub client_ca: Option<PathBuf>,
    /// Whether a client must have a certificate.
    pub client_auth: ClientAuth,
}

/// Where requests go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream {
    /// Whether to use TLS.
    pub tls: bool,
    /// Host and port.
    pub authority: Authority,
    /// Prefix of every path, without a trailing slash; usually empty.
    pub prefix: String,
    /// The HTTP version.
    pub protocol: Protocol,
    /// The certificates to trust instead of the machine's own.
    pub ca: Option<PathBuf>,
    /// Whether the upstream gets its own host in `Host`, instead of the client's.
    pub sends_upstream_host: bool,
    /// Connect timeout, TLS handshake included.
    pub connect_timeout: Duration,
    /// Response timeout.
    pub timeout: Duration,
    /// Idle timeout of pooled connections.
    pub pool_idle: Duration,
    /// Maximum number of idle connections per thread.
    pub pool_max: usize,
}

/// What to do with requests that match no route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnUnmatched {
    /// They are forwarded unguarded.
    #[default]
    Pass,
    /// They are answered 404.
    Refuse,
}

/// Which HTTP an upstream speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1; over TLS, HTTP/2 where both sides can.
    #[default]
    Auto,
    /// HTTP/1.1
    Http1,
    /// HTTP/2, without TLS by prior knowledge (h2c). gRPC needs it.
    Http2,
}

/// Minimum length of a secret or a token.
const SECRET_BYTES_MIN: usize = 16;

/// The secret that turns a credential into a caller's name. It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct CallerSecret(pub String);

/// Where the secret comes from that turns a credential into a caller's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretSource {
    /// This environment variable.
    Env(String),
    /// This file.
    File(PathBuf),
    /// The file next to the SQLite store, created if missing (`semel.db.secret`). For a
    /// store in memory: drawn at start. A shared store has no such file, so its routes cannot
    /// identify callers by a credential.
    BesideStore,
}

/// One `[[route]]`.
#[derive(Clone, Debug)]
pub struct Route {
    /// Which requests it takes.
    pub matches: Match,
    /// How they are guarded; `None` lets them pass.
    pub guard: Option<Guard>,
    /// Where they go.
    pub upstream: Arc<Upstream>,
}

/// Which requests a route takes: `POST,PATCH api.example.com/v1/payments/**`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Match {
    /// The methods; empty is any.
    pub methods: Vec<Method>,
    /// Whether the methods are the default, because none was written.
    pub has_default_methods: bool,
    /// The host, in lower case and without port; `*.example.com` is any name below. `None` is any.
    pub host: Option<String>,
    /// The segments of the path.
    pub path: Vec<Segment>,
}

/// One segment of a path pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segment {
    /// This text. A `*` in it stands for any characters.
    Text(String),
    /// `*`: any one segment.
    One,
    /// `**`: any number of segments, also none.
    Any,
}

/// How a route guards its requests.
#[derive(Clone, Debug)]
pub struct Guard {
    /// The family of operations.
    pub scope: Scope,
    /// The scope that the route had before.
    pub was: Option<Scope>,
    /// Former scopes in which keys are looked up, and until when. They come from what the store
    /// remembers of the route, not from the file.
    pub former_scopes: Vec<(Scope, SystemTime)>,
    /// Until when there may be records of a former, longer retention, as the store remembers it.
    pub former_retention_until: Option<SystemTime>,
    /// Since when requests without a key are warned, as the store remembers it.
    pub warned_since: Option<SystemTime>,
    /// Sources of the key, tried in this order.
    pub key: Vec<KeyLocation>,
    /// Whether a key is required.
    pub required: Required,
    /// Caller rules, tried in this order.
    pub callers: Vec<CallerRule>,
    /// What every request must carry, if anything.
    pub signature: Option<SignatureRule>,
    /// What is compared between retries; `None` on a route with a signature for CloudEvents, where
    /// the body counts only if the key is not in it.
    pub fingerprint: Option<FingerprintRule>,
    /// How keys and errors look to clients.
    pub dialect: Dialect,
    /// How requests and answers are handled.
    pub policy: Policy,
    /// Whether the policy says what is kept under a key from the body, too; otherwise only a
    /// success is where nothing proves who sent it.
    pub keep_under_body_keys: bool,
    /// What its records say that they are about.
    pub about: AboutSource,
    /// The values that its records keep, by name.
    pub capture: Vec<(String, CaptureSource)>,
    /// Whether it guards or observes.
    pub mode: Mode,
    /// Whether claims of the service API may name its scope.
    pub api: bool,
    /// The deadlines of clients that count.
    pub deadline: Option<DeadlineSetting>,
    /// What pages of other origins may do.
    pub cors: Option<CorsSetting>,
    /// Where callers look up their operations.
    pub lookup: Option<LookupPath>,
    /// The keys that the gateway issues.
    pub issued_keys: Option<IssuedKeysRule>,
    /// How the upstream is asked what became of a held operation.
    pub reconcile: Option<Arc<ReconcileRule>>,
    /// How much of an answer is stored.
    pub record: RecordContent,
    /// Headers of an answer that are kept besides the usual.
    pub keep_headers: Vec<HeaderName>,
}

impl Guard {
    /// Until when there may be records that were made before this time. `None` is for ever.
    pub fn records_until(&self, made_before: SystemTime) -> Option<SystemTime> {
        let until = made_before.checked_add(self.policy.retention)?;
        Some(self.former_retention_until.map_or(until, |former| until.max(former)))
    }

    /// The headers that may hold the key.
    pub fn key_headers(&self) -> Vec<HeaderName> {
        self.key.iter().flat_map(KeyLocation::headers).collect()
    }

    /// The headers that the guard reads, except those of the signature.
    pub fn read_headers(&self) -> Vec<HeaderName> {
        let mut headers = self.key_headers();
        headers.extend(self.callers.iter().flat_map(CallerRule::headers));
        let counted = self.fingerprint.iter().flat_map(|rule| &rule.headers);
        headers.extend(counted.filter_map(|name| HeaderName::try_from(name.as_str()).ok()));
        for (_, source) in &self.capture {
            if let CaptureSource::Header(name) = source {
                headers.push(name.clone());
            }
        }
        headers
    }
}

/// What the records of a route say that they are about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AboutSource {
    /// The method, the host and the path of the request.
    #[default]
    Request,
    /// What the route matches.
    Route,
}

/// Whether a route guards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// It does.
    #[default]
    Guard,
    /// Its requests pass as if there were no Semel, and what it would have done is counted.
    Observe,
}

/// Whether a request must have a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Required {
    /// A request without a key passes unguarded.
    #[default]
    No,
    /// A request without a key passes, and the answer carries a warning.
    Warn,
    /// A request without a key is refused.
    Yes,
}

/// How to identify the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallerRule {
    /// The credential in `Authorization`, hashed.
    Authorization,
    /// A header in clear: any client that can send it can pose as this caller.
    Header(HeaderName),
    /// A header in clear that is believed only from these networks.
    TrustedHeader {
        /// The header.
        name: HeaderName,
        /// The networks, at least one.
        from: Vec<Network>,
    },
    /// A header that is a credential, hashed.
    CredentialHeader(HeaderName),
    /// A cookie, hashed.
    Cookie(String),
    /// A claim of a verified JSON Web Token.
    Jwt(Box<JwtRule>),
    /// A name in the client certificate.
    Certificate(CertificateField),
    /// The host that the request is for: any client that can reach it can be this caller.
    Host,
    /// One caller for all who send no credential of any kind.
    Anonymous,
    /// These together.
    All(Vec<CallerPart>),
}

/// One of several rules that name a caller together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallerPart {
    /// The rule; never [`CallerRule::All`].
    pub rule: CallerRule,
    /// Whether a request without it has a caller nevertheless.
    pub optional: bool,
}

impl Route {
    /// Whether it identifies callers by a credential, and so needs the secret.
    pub fn hashes_callers(&self) -> bool {
        self.guard.iter().flat_map(|guard| &guard.callers).any(CallerRule::hashes)
    }

    /// Whether it issues keys, and so needs the secret.
    pub fn issues_keys(&self) -> bool {
        self.guard.as_ref().is_some_and(|guard| guard.issued_keys.is_some())
    }
}

impl Upstream {
    /// The upstream at a URL, with the default settings.
    ///
    /// # Errors
    ///
    /// What is wrong with the URL.
    pub fn at(url: &str) -> Result<Self, String> {
        let uri: Uri = url.parse().map_err(|error| format!("this is not a URL: {error}"))?;
        // First, because the other messages repeat the URL.
        if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return Err("a URL with a password would be logged; leave it out".to_owned());
        }
        let tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            Some(other) => {
                return Err(format!("an upstream is http:// or https://, not {other}://"));
            }
            None => return Err(format!("the scheme is missing: http://{url}")),
        };
        let authority = uri.authority().cloned().ok_or("the URL has no host")?;
        if uri.query().is_some() {
            return Err("an upstream's URL has no query".to_owned());
        }
        Ok(Self {
            tls,
            authority,
            prefix: uri.path().trim_end_matches('/').to_owned(),
            protocol: Protocol::default(),
            ca: None,
            sends_upstream_host: false,
            connect_timeout: Duration::from_secs(5),
            timeout: Duration::from_secs(60),
            pool_idle: Duration::from_secs(4),
            pool_max: 1024,
        })
    }
}

impl std::fmt::Debug for CallerSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CallerSecret(…)")
    }
}

impl std::fmt::Display for Upstream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority, self.prefix)
    }
}
