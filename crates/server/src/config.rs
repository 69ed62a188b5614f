//! What a configuration means: typed, complete, checked.
//!
//! | file | what lives there |
//! |---|---|
//! | `raw` | every setting: its name, its meaning, its default |
//! | `settings`, `read`, `report` | reading TOML and noting every mistake with its place |
//! | `values`, `units`, `urls`, `keys`, `callers`, `rules` | what can stand after an equals sign |
//! | `capture` | the same for what a record keeps of a request |
//! | `signature` | the same for how webhooks are signed |
//! | `passfile` | passwords as PostgreSQL's own programs keep them |
//! | `typed` | what the command line says instead |
//! | `load`, `routes` | from what was written to what it means |
//! | `files` | whether what it names is there |
//! | `matching`, `path`, `pattern` | which requests a route takes; patterns of other routers |
//! | `explain`, `print`, `table`, `effects` | back to people |
//!
//! Nothing here binds a port, or reads the environment after a configuration is made. The files
//! that a configuration names are only looked at: one that is missing is told with its place.

mod callers;
mod capture;
mod effects;
mod explain;
mod files;
mod keys;
mod load;
mod matching;
mod passfile;
mod path;
mod pattern;
mod print;
mod raw;
mod read;
mod report;
mod routes;
mod rules;
mod settings;
mod signature;
mod spelling;
mod table;
mod typed;
mod units;
mod urls;
mod values;

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use http::{HeaderName, Method, Uri, uri::Authority};
use semel::core::{FingerprintRule, Policy, Scope, canonical::Pointer};
use semel_tower::{CaptureSource, RecordContent};

pub(crate) use self::{
    explain::{default_toml, schema_json},
    load::audit_beside,
    path::normal_path,
    typed::Overrides,
    units::duration,
    urls::{Password, cache_url, store_url},
};
pub use self::{
    report::ConfigError,
    signature::{HmacRule, SecretPlace, SignatureRule, SignatureScheme, WebhookSecret},
    urls::{CacheUrl, ServerUrl, StoreUrl},
};

/// A whole configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where records live.
    pub store: StoreUrl,
    /// The id of the only store that may be used; `None` if it may be any.
    pub store_id: Option<String>,
    /// What is in front of the store, if anything is.
    pub cache: Option<CacheUrl>,
    /// The listeners that clients reach.
    pub gateway: Gateway,
    /// The listener for operators; `None` if it is switched off.
    pub api: Option<Api>,
    /// What is bounded, and by how much.
    pub limits: Limits,
    /// How often records past retention are looked for.
    pub sweep_every: Duration,
    /// What turns a credential into a caller's name.
    pub secret: SecretSource,
    /// What [`SecretSource::Env`] held when the configuration was made.
    pub secret_value: Option<CallerSecret>,
    /// The secret that was in use before, if it is still looked up: never
    /// [`SecretSource::BesideStore`].
    pub secret_before: Option<SecretSource>,
    /// What [`SecretSource::Env`] of that held.
    pub secret_before_value: Option<CallerSecret>,
    /// The routes, in the order in which they are asked. What matches none passes unguarded to
    /// [`Gateway::upstream`].
    pub routes: Vec<Route>,
}

/// The listeners that clients reach.
#[derive(Clone, Debug)]
pub struct Gateway {
    /// Where to listen, at least one.
    pub listen: Vec<SocketAddr>,
    /// The certificate, if clients come by TLS.
    pub tls: Option<Tls>,
    /// Where requests go unless their route says otherwise.
    pub upstream: Arc<Upstream>,
    /// How many threads serve; each has its own connections to the upstream.
    pub threads: usize,
    /// How long what runs may go on after the order to stop.
    pub drain: Duration,
    /// Whether `X-Forwarded-*` and `Forwarded` of a request are believed and added to, or replaced.
    pub trust_forwarded: bool,
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
}

/// Where requests go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream {
    /// Whether by TLS.
    pub tls: bool,
    /// Host and port.
    pub authority: Authority,
    /// What is put before every path; without a slash at its end, so usually empty.
    pub prefix: String,
    /// Which HTTP it speaks.
    pub protocol: Protocol,
    /// The certificates to trust instead of the machine's own.
    pub ca: Option<PathBuf>,
    /// Whether the upstream is told its own host, instead of the one that the client asked for.
    pub own_host: bool,
    /// How long connecting may take, TLS included.
    pub connect_timeout: Duration,
    /// How long the upstream may take to answer.
    pub timeout: Duration,
    /// How long a connection may be idle and still be used again.
    pub pool_idle: Duration,
    /// How many idle connections each thread keeps.
    pub pool_max: usize,
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

/// The listener for operators: health, metrics, records.
#[derive(Clone, Debug)]
pub struct Api {
    /// Where to listen.
    pub listen: SocketAddr,
    /// What an operator has to send to change something, if the environment has it. Without it and
    /// without a file the listener is read-only.
    pub operator_token: Option<OperatorToken>,
    /// The environment variable that it came from.
    pub operator_token_env: Option<String>,
    /// The file that it comes from instead.
    pub operator_token_file: Option<PathBuf>,
    /// Where operators' acts are written down.
    pub audit: PathBuf,
}

/// How short a secret or a token may be.
const SECRET_BYTES_MIN: usize = 16;

/// An operator's token. It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct OperatorToken(pub(crate) String);

impl OperatorToken {
    /// Takes a token as a file or a variable holds it; what is said of a bad one follows the name
    /// of that.
    pub(crate) fn new(text: &str) -> Result<Self, String> {
        let token = text.trim();
        if token.is_empty() {
            return Err("is empty".to_owned());
        }
        if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            let wrong = "holds what is not visible ASCII: a token has no spaces, line ends or \
                         letters with accents";
            return Err(wrong.to_owned());
        }
        if token.len() < SECRET_BYTES_MIN {
            return Err(format!(
                "holds fewer than {SECRET_BYTES_MIN} characters, which could be guessed"
            ));
        }
        Ok(Self(token.to_owned()))
    }
}

/// The secret that turns a credential into a caller's name. It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct CallerSecret(pub(crate) String);

/// What is bounded, and by how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The bytes of a request's head.
    pub header_bytes: usize,
    /// The fields of a request's head.
    pub headers: usize,
    /// How long a head may take to arrive, and how long a connection may be idle.
    pub header_timeout: Duration,
    /// How long a guarded body may take to arrive, and how long the sender of any other may be
    /// silent.
    pub body_timeout: Duration,
    /// How long a client may take nothing of what is sent on its connection.
    pub answer_timeout: Duration,
    /// Connections of clients.
    pub connections: usize,
    /// Operations that run.
    pub in_flight: usize,
    /// Operations that one caller has running or waiting.
    pub per_caller: usize,
    /// Requests that wait for another's answer.
    pub waiting: usize,
    /// Bytes of completed records that are cached.
    pub cache_bytes: u64,
}

/// Where the secret comes from that turns a credential into a caller's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretSource {
    /// This environment variable.
    Env(String),
    /// This file.
    File(PathBuf),
    /// The file beside the embedded store, made when it is not there (`semel.db.secret`). For a
    /// store in memory: drawn at start. A store that gateways share has none, so there no route may
    /// tell callers by a credential.
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
    /// Whether the methods were not written.
    pub(crate) implied: bool,
    /// The host, in lower case and without port; `*.example.com` is any name below. `None` is any.
    pub host: Option<String>,
    /// The path, piece by piece.
    pub path: Vec<Piece>,
}

/// A piece of a path between two slashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// This text. A `*` in it stands for any characters.
    Text(String),
    /// `*`: any one piece.
    One,
    /// `**`: any number of pieces, also none.
    Any,
}

/// How a route guards its requests.
#[derive(Clone, Debug)]
pub struct Guard {
    /// The family of operations.
    pub scope: Scope,
    /// The scope that the route had before.
    pub was: Option<Scope>,
    /// Where else keys are looked up, and until when. The file does not say it: it follows from
    /// what the store remembers of the route.
    pub(crate) former_scopes: Vec<(Scope, std::time::SystemTime)>,
    /// Where the key is, asked in this order.
    pub key: Vec<KeySource>,
    /// Whether there must be one.
    pub required: Required,
    /// Who the caller is, asked in this order.
    pub callers: Vec<CallerRule>,
    /// What every request must carry, if anything.
    pub signature: Option<SignatureRule>,
    /// What of a request counts; `None` on a route with a signature for CloudEvents, where the body
    /// counts only if the key is not in it.
    pub fingerprint: Option<FingerprintRule>,
    /// What becomes of requests and answers.
    pub policy: Policy,
    /// Whether the policy says what is kept under a key from the body, too; otherwise only a
    /// success is where nothing proves who sent it.
    pub keep_under_body_keys: bool,
    /// What its records say that they are about.
    pub about: About,
    /// The values that its records keep, by name.
    pub capture: Vec<(String, CaptureSource)>,
    /// Whether it guards, or only looks.
    pub mode: Mode,
    /// How much of an answer is stored.
    pub record: RecordContent,
    /// Headers of an answer that are kept besides the usual.
    pub keep_headers: Vec<HeaderName>,
}

impl Guard {
    /// The headers that may hold the key.
    pub(crate) fn key_headers(&self) -> Vec<HeaderName> {
        let headers = |source: &KeySource| match source {
            KeySource::Header(name) => vec![name.clone()],
            KeySource::Json(_) => Vec::new(),
            KeySource::CloudEvent => ["ce-source", "ce-id"].map(HeaderName::from_static).to_vec(),
        };
        self.key.iter().flat_map(headers).collect()
    }
}

/// What the records of a route say that they are about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum About {
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

/// A place where a key may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// A header; gRPC metadata too.
    Header(HeaderName),
    /// A place in a JSON body, or several together.
    Json(Vec<Pointer>),
    /// The source and the id of a CloudEvent.
    CloudEvent,
}

impl KeySource {
    /// Whether a key from there may be in the body.
    pub(crate) const fn may_be_in_body(&self) -> bool {
        match self {
            Self::Json(_) | Self::CloudEvent => true,
            Self::Header(_) => false,
        }
    }
}

/// Whether a request must have a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Required {
    /// One without passes unguarded.
    #[default]
    No,
    /// One without passes, and its answer says that this will end.
    Warn,
    /// One without is refused.
    Yes,
}

/// How to tell who sent a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallerRule {
    /// The credential in `Authorization`, hashed.
    Authorization,
    /// A header in clear: whoever can send it can be this caller.
    Header(HeaderName),
    /// A header that is a credential, hashed.
    CredentialHeader(HeaderName),
    /// A cookie, hashed.
    Cookie(String),
    /// The host that the request is for: whoever can reach it can be this caller.
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
    /// Whether it tells callers by a credential, and so needs the secret.
    pub(crate) fn hashes_callers(&self) -> bool {
        self.guard.iter().flat_map(|guard| &guard.callers).any(CallerRule::hashes)
    }
}

impl Upstream {
    /// The upstream at a URL, with the default settings.
    ///
    /// # Errors
    ///
    /// A sentence that says what is wrong with the URL.
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
            None => return Err(format!("write the scheme too: http://{url}")),
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
            own_host: false,
            connect_timeout: Duration::from_secs(5),
            timeout: Duration::from_secs(60),
            pool_idle: Duration::from_secs(4),
            pool_max: 1024,
        })
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            header_bytes: 32 << 10,
            headers: 100,
            header_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(30),
            answer_timeout: Duration::from_secs(60),
            connections: 10_000,
            in_flight: 10_000,
            per_caller: 2_500,
            waiting: 10_000,
            cache_bytes: 64 << 20,
        }
    }
}

impl std::fmt::Debug for OperatorToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OperatorToken(…)")
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
