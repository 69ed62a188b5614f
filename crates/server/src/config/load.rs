//! From what was written, in a file and on the command line, to what it means.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{
    Api, CallerSecret, Config, ConfigError, Gateway, Limits, OperatorToken, Overrides, Route,
    SECRET_BYTES_MIN, SecretSource, StoreUrl, Tls, Upstream,
    files::{Look, Wanted, look},
    raw::{ApiTable, File, GatewayTable, LimitsTable, TlsTable},
    read::{At, Count, OneOrMore, Read as _, Slot},
    report::{Place, Report},
    routes,
    rules::UpstreamRule,
    units::Time,
    urls::{Url, Written},
    values::{ApiListen, EnvName, HostSent},
};
use crate::store;

/// How the environment is asked.
pub(crate) type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

impl Config {
    /// Reads a file, if there is one, and what was typed on the command line, which counts more.
    /// What it names must be there.
    pub(crate) fn load(
        file: Option<&Path>,
        typed: &Overrides,
        env: Env<'_>,
    ) -> Result<Self, ConfigError> {
        let Some(path) = file else { return Self::make(None, "", typed, env, &look) };
        match fs::read_to_string(path) {
            Ok(source) => Self::make(Some(path), &source, typed, env, &look),
            Err(error) => {
                let name = path.display().to_string();
                let mut report = Report::new(Some(&name), "");
                report.note(&Place::Nowhere, format!("the file cannot be read: {error}"));
                report.finish(None)
            }
        }
    }

    /// Reads the text of a file, and looks at no other.
    pub(crate) fn read(
        file: Option<&Path>,
        source: &str,
        typed: &Overrides,
        env: Env<'_>,
    ) -> Result<Self, ConfigError> {
        Self::make(file, source, typed, env, &|_, _| Ok(()))
    }

    fn make(
        file: Option<&Path>,
        source: &str,
        typed: &Overrides,
        env: Env<'_>,
        look: Look<'_>,
    ) -> Result<Self, ConfigError> {
        let name = file.map(|file| file.display().to_string());
        let mut report = Report::new(name.as_deref(), source);
        let folder = file.and_then(Path::parent).unwrap_or(Path::new(""));
        let config = match parse(source, &mut report) {
            Some(mut raw) => {
                typed.apply(&mut raw, &mut report);
                Loader { folder, env, look, own: Vec::new(), report: &mut report }.config(&raw)
            }
            None => None,
        };
        report.finish(config)
    }
}

fn parse(source: &str, report: &mut Report<'_>) -> Option<File> {
    match DeTable::parse(source) {
        Ok(table) => {
            let span = table.span();
            File::read(&Spanned::new(span, DeValue::Table(table.into_inner())), report)
        }
        Err(error) => {
            let span = error.span().unwrap_or(0..0);
            report.note(&Place::File(span), format!("this is not TOML: {}", error.message()));
            None
        }
    }
}

/// What is needed to tell what a file means.
pub(super) struct Loader<'a, 'r> {
    /// Where the file is: its relative paths begin here.
    folder: &'a Path,
    env: Env<'a>,
    look: Look<'a>,
    /// Where the server itself will listen.
    own: Vec<SocketAddr>,
    pub(super) report: &'a mut Report<'r>,
}

impl Loader<'_, '_> {
    fn config(&mut self, raw: &File) -> Option<Config> {
        let none = GatewayTable::default();
        let table = raw.gateway.value().unwrap_or(&none);
        let listen = match table.listen.value() {
            Some(OneOrMore(list)) => self.distinct(list),
            None => vec![SocketAddr::from(([127, 0, 0, 1], 8080))],
        };
        let store = self.store(raw).unwrap_or(StoreUrl::Memory);
        let store_id = self.store_id(raw, &store);
        let cache = raw.cache.get().and_then(|cache| self.resolve(cache));
        let api = self.api(raw.api.value().unwrap_or(&ApiTable::default()), &store, &listen);
        self.own = listen.iter().copied().chain(api.as_ref().map(|api| api.listen)).collect();
        let limits = Self::limits(raw.limits.value().unwrap_or(&LimitsTable::default()));
        let (secret, secret_value) = self.secret(raw.secret_env.get(), raw.secret_file.get());
        let (before, secret_before_value) =
            self.secret(raw.secret_before_env.get(), raw.secret_before_file.get());
        let secret_before = Some(before).filter(|source| *source != SecretSource::BesideStore);
        let gateway = match raw.gateway {
            Slot::Good(_) | Slot::Absent => self.gateway(table, listen),
            Slot::Bad => None,
        };
        let upstream = gateway.as_ref().map(|gateway| &gateway.upstream);
        let routes = routes::routes(self, raw, upstream);
        self.refuse_strangers(raw, &store, &secret, routes.as_deref().unwrap_or_default());
        let sweep_every = raw.sweep_every.value().map(|time| time.0);
        Some(Config {
            store,
            store_id,
            cache,
            gateway: gateway?,
            api,
            limits,
            sweep_every: sweep_every.unwrap_or(Duration::from_secs(15 * 60)),
            secret,
            secret_value,
            secret_before,
            secret_before_value,
            routes: routes?,
        })
    }

    /// The store, or nothing if it is wrong and that has been noted.
    fn store(&mut self, raw: &File) -> Option<StoreUrl> {
        let written = match &raw.store {
            Slot::Good(written) => written,
            Slot::Absent => return Some(StoreUrl::Sqlite("semel.db".into())),
            Slot::Bad => return None,
        };
        Some(match self.resolve(written)? {
            StoreUrl::Sqlite(path) => {
                StoreUrl::Sqlite(self.seen(&path, &written.place, Wanted::FolderOfIt))
            }
            other @ (StoreUrl::Postgres(_) | StoreUrl::Memory) => other,
        })
    }

    /// The id of the only store that may be used.
    fn store_id(&mut self, raw: &File, store: &StoreUrl) -> Option<String> {
        let id = raw.store_id.get()?;
        // A store that is wrong stands as one in memory here, and has been noted.
        if *store == StoreUrl::Memory && !matches!(raw.store, Slot::Bad) {
            self.report.note(&id.place, "a store in memory is another one at each start");
        }
        Some(id.value.0.clone())
    }

    fn resolve<T: Url + Clone>(&mut self, written: &At<Written<T>>) -> Option<T> {
        let resolved = written.value.resolve(self.env);
        resolved.map_err(|wrong| self.report.note(&written.place, wrong)).ok()
    }

    /// Gateways that share a store must give one caller one name, so they share the secret.
    fn refuse_strangers(
        &mut self,
        raw: &File,
        store: &StoreUrl,
        secret: &SecretSource,
        routes: &[Route],
    ) {
        let shared = matches!(store, StoreUrl::Postgres(_)) && *secret == SecretSource::BesideStore;
        if shared && routes.iter().any(Route::hashes_callers) {
            let place = raw.store.get().map_or(Place::Nowhere, |store| store.place.clone());
            self.report.note(
                &place,
                "callers are told by a credential, and all gateways on this store must turn it \
                 into the same name: make a secret once with `openssl rand -hex 32`, give it to \
                 each of them in a variable, and say `secret_env = \"SEMEL_SECRET\"`, or in a \
                 file, and say `secret_file`",
            );
        }
    }

    fn gateway(&mut self, raw: &GatewayTable, listen: Vec<SocketAddr>) -> Option<Gateway> {
        let upstream = match &raw.upstream {
            Slot::Good(rule) => self.upstream(rule, None).map(Arc::new),
            Slot::Bad => None,
            Slot::Absent => {
                self.report.note(
                    &Place::Nowhere,
                    "no upstream is named; say where requests go with `--upstream URL`, or with \
                     `upstream = \"http://127.0.0.1:3000\"` in [gateway]",
                );
                None
            }
        };
        let tls = raw.tls.get().and_then(|tls| self.tls(tls));
        let cores = || thread::available_parallelism().map_or(1, Into::into);
        Some(Gateway {
            listen,
            tls,
            upstream: upstream?,
            threads: raw.threads.value().map_or_else(cores, |threads| threads.0),
            drain: raw.drain.value().map_or(Duration::from_secs(65), |time| time.0),
            trust_forwarded: raw.trust_forwarded.value().copied().unwrap_or(false),
            docs: raw.docs.value().map(|docs| docs.0.clone()),
        })
    }

    fn tls(&mut self, tls: &At<TlsTable>) -> Option<Tls> {
        match (&tls.value.certificate, &tls.value.key) {
            (Slot::Good(certificate), Slot::Good(key)) => Some(Tls {
                certificate: self.seen(&certificate.value, &certificate.place, Wanted::File),
                key: self.seen(&key.value, &key.place, Wanted::File),
            }),
            (Slot::Bad, _) | (_, Slot::Bad) => None,
            (Slot::Absent, _) | (_, Slot::Absent) => {
                let message = "TLS needs both files: { certificate = …, key = … }";
                self.report.note(&tls.place, message);
                None
            }
        }
    }

    fn distinct(&mut self, list: &[At<SocketAddr>]) -> Vec<SocketAddr> {
        let mut addresses: Vec<SocketAddr> = Vec::new();
        for address in list {
            if addresses.iter().any(|other| collide(*other, address.value)) {
                self.report.note(&address.place, "this address is already listened on");
            }
            addresses.push(address.value);
        }
        addresses
    }

    fn api(&mut self, raw: &ApiTable, store: &StoreUrl, gateway: &[SocketAddr]) -> Option<Api> {
        let default = SocketAddr::from(([127, 0, 0, 1], 8081));
        let (listen, place) = match raw.listen.get() {
            Some(At { value: ApiListen::Off, .. }) => return None,
            Some(At { value: ApiListen::On(address), place }) => (*address, place.clone()),
            None => (default, Place::Nowhere),
        };
        if gateway.iter().any(|other| collide(*other, listen)) {
            self.report.note(
                &place,
                format!(
                    "the API cannot share the gateway's address {listen}: clients would reach it"
                ),
            );
        }
        let file = raw.operator_token_file.get();
        Some(Api {
            listen,
            operator_token: self.operator_token(raw),
            operator_token_env: raw.operator_token_env.value().map(|name| name.0.clone()),
            operator_token_file: file.map(|file| self.seen(&file.value, &file.place, Wanted::File)),
            audit: match raw.audit.get() {
                Some(audit) => self.seen(&audit.value, &audit.place, Wanted::FolderOfIt),
                None => audit_beside(store),
            },
        })
    }

    fn limits(raw: &LimitsTable) -> Limits {
        let limits = Limits::default();
        let time = |time: &Slot<Time>, default| time.value().map_or(default, |time| time.0);
        let count = |count: &Slot<Count<_>>, default| count.value().map_or(default, |at| at.0);
        Limits {
            header_bytes: raw.header_bytes.value().map_or(limits.header_bytes, |size| size.0),
            headers: raw.headers.value().map_or(limits.headers, |count| count.0),
            header_timeout: time(&raw.header_timeout, limits.header_timeout),
            body_timeout: time(&raw.body_timeout, limits.body_timeout),
            answer_timeout: time(&raw.answer_timeout, limits.answer_timeout),
            connections: count(&raw.connections, limits.connections),
            in_flight: count(&raw.in_flight, limits.in_flight),
            per_caller: count(&raw.per_caller, limits.per_caller),
            waiting: count(&raw.waiting, limits.waiting),
            cache_bytes: raw.cache_bytes.value().map_or(limits.cache_bytes, |size| size.0),
        }
    }

    /// A secret, from a variable or from a file.
    fn secret(
        &mut self,
        env: Option<&At<EnvName>>,
        file: Option<&At<PathBuf>>,
    ) -> (SecretSource, Option<CallerSecret>) {
        match (env, file) {
            (Some(_), Some(file)) => {
                let message = "the secret comes from a variable or from a file, not both";
                self.report.note(&file.place, message);
                (SecretSource::BesideStore, None)
            }
            (Some(name), None) => {
                let value = self.secret_of(name).map(CallerSecret);
                (SecretSource::Env(name.value.0.clone()), value)
            }
            (None, Some(file)) => {
                let path = self.seen(&file.value, &file.place, Wanted::File);
                (SecretSource::File(path), None)
            }
            (None, None) => (SecretSource::BesideStore, None),
        }
    }

    /// The token that the environment holds. One in a file is read when it is needed.
    fn operator_token(&mut self, raw: &ApiTable) -> Option<OperatorToken> {
        let name = raw.operator_token_env.get()?;
        if let Some(file) = raw.operator_token_file.get() {
            let message = "the token comes from `operator_token_env` or from \
                           `operator_token_file`, not both";
            self.report.note(&file.place, message);
            return None;
        }
        let value = (self.env)(&name.value.0).ok_or_else(|| "is not set".to_owned());
        match value.and_then(|text| OperatorToken::new(&text)) {
            Ok(token) => Some(token),
            Err(wrong) => {
                let message = format!("the environment variable {} {wrong}", name.value.0);
                self.report.note(&name.place, message);
                None
            }
        }
    }

    fn secret_of(&mut self, name: &At<EnvName>) -> Option<String> {
        let variable = &name.value.0;
        let message = match (self.env)(variable) {
            None => format!("the environment variable {variable} is not set"),
            Some(value) if value.is_empty() => {
                format!("the environment variable {variable} is empty")
            }
            Some(value) if value.len() < SECRET_BYTES_MIN => format!(
                "what {variable} holds is shorter than {SECRET_BYTES_MIN} characters, so it could \
                 be guessed"
            ),
            Some(value) => return Some(value),
        };
        self.report.note(&name.place, message);
        None
    }

    /// What an environment variable holds.
    pub(super) fn variable(&self, name: &str) -> Option<String> {
        (self.env)(name)
    }

    /// An upstream as a rule describes it, over another.
    pub(super) fn upstream(
        &mut self,
        rule: &At<UpstreamRule>,
        base: Option<&Upstream>,
    ) -> Option<Upstream> {
        let table = &rule.value.0;
        let mut upstream = match &table.url {
            Slot::Good(url) => {
                if self.own.iter().any(|own| is_at(&url.value.0, *own)) {
                    let message =
                        "this is where the server itself listens: requests would go round";
                    self.report.note(&url.place, message);
                }
                url.value.0.clone()
            }
            Slot::Bad => return None,
            Slot::Absent => match base {
                Some(base) => base.clone(),
                None => {
                    let message = "the upstream has no `url`; say it here or with `--upstream URL`";
                    self.report.note(&rule.place, message);
                    return None;
                }
            },
        };
        if let Some(protocol) = table.protocol.value() {
            upstream.protocol = *protocol;
        }
        if let Some(ca) = table.ca.get() {
            if upstream.tls {
                upstream.ca = Some(self.seen(&ca.value, &ca.place, Wanted::File));
            } else {
                self.report.note(&ca.place, "`ca` has no meaning for an upstream by http://");
            }
        }
        if let Some(host) = table.host.value() {
            upstream.own_host = *host == HostSent::Upstream;
        }
        if let Some(time) = table.connect_timeout.value() {
            upstream.connect_timeout = time.0;
        }
        if let Some(time) = table.timeout.value() {
            upstream.timeout = time.0;
        }
        if let Some(time) = table.pool_idle.value() {
            upstream.pool_idle = time.0;
        }
        if let Some(count) = table.pool_max.value() {
            upstream.pool_max = count.0;
        }
        Some(upstream)
    }

    /// A path that was looked at.
    pub(super) fn seen(&mut self, path: &Path, place: &Place, wanted: Wanted) -> PathBuf {
        let path = self.path(path, place);
        if let Err(message) = (self.look)(&path, wanted) {
            self.report.note(place, message);
        }
        path
    }

    /// A path that a file names begins in the file's folder.
    fn path(&self, path: &Path, place: &Place) -> PathBuf {
        match place {
            Place::File(_) => self.folder.join(path),
            Place::Flag(_) | Place::Nowhere => path.to_owned(),
        }
    }
}

/// Whether two listeners cannot both be.
fn collide(one: SocketAddr, other: SocketAddr) -> bool {
    let same_host =
        one.ip() == other.ip() || one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() == other.port() && one.port() != 0 && same_host
}

/// Whether an upstream is what listens here, as far as that can be told from its name.
fn is_at(upstream: &Upstream, own: SocketAddr) -> bool {
    let port = upstream.authority.port_u16().unwrap_or(if upstream.tls { 443 } else { 80 });
    let host = upstream.authority.host().trim_matches(['[', ']']);
    let local: &[IpAddr] = &[Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    let named: Option<IpAddr> = host.parse().ok();
    let addresses = match &named {
        Some(address) if address.is_unspecified() => local,
        Some(address) => std::slice::from_ref(address),
        None if host.eq_ignore_ascii_case("localhost") => local,
        None => &[],
    };
    let is_own = |ip: &IpAddr| *ip == own.ip() || (own.ip().is_unspecified() && ip.is_loopback());
    own.port() == port && port != 0 && addresses.iter().any(is_own)
}

pub(crate) fn audit_beside(store: &StoreUrl) -> PathBuf {
    match store {
        StoreUrl::Sqlite(path) => store::beside(path, ".audit.jsonl"),
        StoreUrl::Postgres(_) | StoreUrl::Memory => "semel.audit.jsonl".into(),
    }
}

#[cfg(test)]
mod tests;
