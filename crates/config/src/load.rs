//! Builds a [`Config`] from the file and the command line.

use std::{
    fs,
    net::SocketAddr,
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
    Api, CallerSecret, Config, ConfigError, Gateway, Limits, Overrides, Route, SECRET_BYTES_MIN,
    SecretSource, StoreUrl, Tls,
    api::collide,
    files::{CheckFile, FileCheck, check_file},
    loader::Loader,
    raw::{ApiTable, ConfigFile, GatewayTable, LimitsTable, TlsTable, expected_section},
    read::{CountUpTo, FromToml as _, Located, OneOrMore, TomlField, refuse_repeats},
    report::{DiagnosticReport, ValueOrigin},
    routes,
    units::{ByteSize, PositiveDuration, size_text},
    urls::{Env, Url, UrlOrEnv},
    values::EnvName,
};
use semel_tower::Network;

impl Config {
    /// Loads the file, if there is one, and applies the command line, which takes precedence. Files
    /// that the configuration names must exist.
    pub fn load(
        file: Option<&Path>,
        overrides: &Overrides,
        env: Env<'_>,
    ) -> Result<Self, ConfigError> {
        let Some(path) = file else { return Self::make(None, "", overrides, env, &check_file) };
        match fs::read_to_string(path) {
            Ok(source) => Self::make(Some(path), &source, overrides, env, &check_file),
            Err(error) => {
                let name = path.display().to_string();
                let mut report = DiagnosticReport::new(Some(&name), "", expected_section);
                report
                    .add_error(&ValueOrigin::Missing, format!("the file cannot be read: {error}"));
                report.finish(None)
            }
        }
    }

    /// Reads the text of a file without checking the files that it names.
    pub fn read(
        file: Option<&Path>,
        source: &str,
        overrides: &Overrides,
        env: Env<'_>,
    ) -> Result<Self, ConfigError> {
        Self::make(file, source, overrides, env, &|_, _| Ok(()))
    }

    fn make(
        file: Option<&Path>,
        source: &str,
        overrides: &Overrides,
        env: Env<'_>,
        check_file: CheckFile<'_>,
    ) -> Result<Self, ConfigError> {
        let name = file.map(|file| file.display().to_string());
        let mut report = DiagnosticReport::new(name.as_deref(), source, expected_section);
        let folder = file.and_then(Path::parent).unwrap_or(Path::new(""));
        let config = match parse(source, &mut report) {
            Some(mut raw) => {
                overrides.apply(&mut raw, &mut report);
                let trust_forwarded = trusts_forwarded(&raw);
                let verifies_clients = verifies_clients(&raw);
                let own_addresses = Vec::new();
                Loader {
                    folder,
                    env,
                    check_file,
                    own_addresses,
                    trust_forwarded,
                    verifies_clients,
                    report: &mut report,
                }
                .config(&raw)
            }
            None => None,
        };
        report.finish(config)
    }
}

fn trusts_forwarded(raw: &ConfigFile) -> bool {
    let Some(gateway) = raw.gateway.value() else { return false };
    let listed = !gateway.trusted_proxies.is_absent();
    gateway.trust_forwarded.value().copied().unwrap_or(listed)
}

/// Whether clients are asked for a certificate.
fn verifies_clients(raw: &ConfigFile) -> bool {
    let tls = raw.gateway.value().and_then(|gateway| gateway.tls.value());
    tls.is_some_and(|tls| !tls.client_ca.is_absent())
}

fn parse(source: &str, report: &mut DiagnosticReport<'_>) -> Option<ConfigFile> {
    match DeTable::parse(source) {
        Ok(table) => {
            let span = table.span();
            ConfigFile::read(&Spanned::new(span, DeValue::Table(table.into_inner())), report)
        }
        Err(error) => {
            let span = error.span().unwrap_or(0..0);
            report.add_error(
                &ValueOrigin::File(span),
                format!("this is not TOML: {}", error.message()),
            );
            None
        }
    }
}

impl Loader<'_, '_> {
    fn config(&mut self, raw: &ConfigFile) -> Option<Config> {
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
        self.own_addresses =
            listen.iter().copied().chain(api.as_ref().map(|api| api.listen)).collect();
        let limits = Self::limits(raw.limits.value().unwrap_or(&LimitsTable::default()));
        let (secret, secret_value) = self.secret(raw.secret_env.get(), raw.secret_file.get());
        let (before, secret_before_value) =
            self.secret(raw.secret_before_env.get(), raw.secret_before_file.get());
        let secret_before = Some(before).filter(|source| *source != SecretSource::BesideStore);
        let gateway = match raw.gateway {
            TomlField::Good(_) | TomlField::Absent => {
                self.gateway(raw, table, listen, api.as_ref())
            }
            TomlField::Bad => None,
        };
        let scopes = self.scopes(raw);
        let routes = match &gateway {
            // The service API alone.
            Some(Gateway { upstream: None, .. }) => Some(Vec::new()),
            Some(Gateway { upstream, .. }) => routes::routes(self, raw, upstream.as_ref()),
            None => routes::routes(self, raw, None),
        };
        self.require_shared_caller_secret(
            raw,
            &store,
            &secret,
            api.as_ref(),
            routes.as_deref().unwrap_or_default(),
        );
        self.check_memory(raw, limits.memory, routes.as_deref().unwrap_or_default());
        let sweep_every = raw.sweep_every.value().map(|time| time.0);
        Some(Config {
            store,
            store_id,
            cache,
            gateway: gateway?,
            api,
            scopes,
            limits,
            sweep_every: sweep_every.unwrap_or(Duration::from_secs(15 * 60)),
            secret,
            secret_value,
            secret_before,
            secret_before_value,
            routes: routes?,
        })
    }

    /// The store; `None` if it is invalid, which has been reported.
    fn store(&mut self, raw: &ConfigFile) -> Option<StoreUrl> {
        let written = match &raw.store {
            TomlField::Good(written) => written,
            TomlField::Absent => return Some(StoreUrl::Sqlite("semel.db".into())),
            TomlField::Bad => return None,
        };
        Some(match self.resolve(written)? {
            StoreUrl::Sqlite(path) => {
                StoreUrl::Sqlite(self.checked_path(&path, &written.origin, FileCheck::FolderOfIt))
            }
            other @ (StoreUrl::Postgres(_) | StoreUrl::Memory) => other,
        })
    }

    /// The id of the only store that may be used.
    fn store_id(&mut self, raw: &ConfigFile, store: &StoreUrl) -> Option<String> {
        let id = raw.store_id.get()?;
        // An invalid store is represented by one in memory here, and has been reported.
        if *store == StoreUrl::Memory && !matches!(raw.store, TomlField::Bad) {
            self.report.add_error(&id.origin, "a store in memory has a new id at each start");
        }
        Some(id.value.0.clone())
    }

    fn resolve<T: Url + Clone>(&mut self, written: &Located<UrlOrEnv<T>>) -> Option<T> {
        let resolved = written.value.resolve(self.env);
        resolved.map_err(|wrong| self.report.add_error(&written.origin, wrong)).ok()
    }

    /// Reports a shared store without a configured secret: see [`lacks_shared_caller_secret`].
    fn require_shared_caller_secret(
        &mut self,
        raw: &ConfigFile,
        store: &StoreUrl,
        secret: &SecretSource,
        api: Option<&Api>,
        routes: &[Route],
    ) {
        if lacks_shared_caller_secret(store, secret, api, routes) {
            let origin = raw.store.get().map_or(ValueOrigin::Missing, |store| store.origin.clone());
            self.report.add_error(
                &origin,
                "routes identify callers by a credential, have velocity limits or issue keys, or \
                 [[api.token]] allows \
                 claims, so all servers on this store need the same secret: generate one with \
                 `openssl rand -hex 32` and set `secret_env = \"SEMEL_SECRET\"` or `secret_file` \
                 on each of them",
            );
        }
    }

    /// One client address has at most a quarter of the memory for bodies, as much for answers, and
    /// half of that for answers that are replayed. A body that does not fit would always be
    /// refused, and an answer never be recorded or replayed.
    fn check_memory(&mut self, raw: &ConfigFile, memory: usize, routes: &[Route]) {
        let guards = routes.iter().filter_map(|route| route.guard.as_ref());
        let policies = guards.map(|guard| &guard.policy);
        let largest = policies.map(|it| it.request_bytes_max.max(it.response_bytes_max)).max();
        let Some(least) = largest.map(|bytes| bytes.saturating_mul(8)) else { return };
        if memory < least {
            let written = raw.limits.value().and_then(|limits| limits.memory.get());
            let origin = written.map_or(ValueOrigin::Missing, |memory| memory.origin.clone());
            let [memory, least] =
                [memory, least].map(|bytes| size_text(u64::try_from(bytes).unwrap_or(u64::MAX)));
            let message = format!(
                "`limits.memory` is {memory} and must be at least {least}, eight times the largest \
                 `request_max` or `response_max`"
            );
            self.report.add_error(&origin, message);
        }
    }

    fn gateway(
        &mut self,
        file: &ConfigFile,
        raw: &GatewayTable,
        listen: Vec<SocketAddr>,
        api: Option<&Api>,
    ) -> Option<Gateway> {
        let serves_claims = file.route.is_absent() && api.is_some_and(Api::takes_claims);
        let upstream = match &raw.upstream {
            TomlField::Good(rule) => Some(Some(Arc::new(self.upstream(rule, None)?))),
            TomlField::Bad => None,
            TomlField::Absent if serves_claims => Some(None),
            TomlField::Absent => {
                self.report.add_error(
                    &ValueOrigin::Missing,
                    "no upstream is configured: use `--upstream URL`, or set \
                     `upstream = \"http://127.0.0.1:3000\"` in [gateway]; the service API alone \
                     needs an [[api.token]] with role = \"app\", and no [[route]]",
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
            drain_notice: raw.drain_notice.value().map_or(Duration::ZERO, |time| time.0),
            trust_forwarded: self.trust_forwarded,
            trusted_proxies: self.trusted_proxies(&raw.trusted_proxies),
            unmatched: raw.unmatched.value().copied().unwrap_or_default(),
            docs: raw.docs.value().map(|docs| docs.0.clone()),
        })
    }

    fn trusted_proxies(&mut self, raw: &TomlField<Vec<Located<Network>>>) -> Vec<Network> {
        let Some(list) = raw.get() else { return Vec::new() };
        if !self.trust_forwarded {
            self.report.add_error(&list.origin, "`trust_forwarded = false` contradicts this list");
        }
        if list.value.is_empty() {
            self.report.add_error(&list.origin, "this list is empty");
        }
        refuse_repeats(&list.value, self.report);
        list.value.iter().map(|network| network.value).collect()
    }

    fn tls(&mut self, tls: &Located<TlsTable>) -> Option<Tls> {
        let client_ca = tls.value.client_ca.get();
        if let (None, Some(client_auth)) = (client_ca, tls.value.client_auth.get()) {
            self.report.add_error(&client_auth.origin, "`client_auth` needs `client_ca`");
        }
        let client_ca =
            client_ca.map(|ca| self.checked_path(&ca.value, &ca.origin, FileCheck::File));
        match (&tls.value.certificate, &tls.value.key) {
            (TomlField::Good(certificate), TomlField::Good(key)) => Some(Tls {
                certificate: self.checked_path(
                    &certificate.value,
                    &certificate.origin,
                    FileCheck::File,
                ),
                key: self.checked_path(&key.value, &key.origin, FileCheck::File),
                client_ca,
                client_auth: tls.value.client_auth.value().copied().unwrap_or_default(),
            }),
            (TomlField::Bad, _) | (_, TomlField::Bad) => None,
            (TomlField::Absent, _) | (_, TomlField::Absent) => {
                let message = "TLS needs both files: { certificate = …, key = … }";
                self.report.add_error(&tls.origin, message);
                None
            }
        }
    }

    fn distinct(&mut self, list: &[Located<SocketAddr>]) -> Vec<SocketAddr> {
        let mut addresses: Vec<SocketAddr> = Vec::new();
        for address in list {
            if addresses.iter().any(|other| collide(*other, address.value)) {
                self.report
                    .add_error(&address.origin, "this address is in use by another listener");
            }
            addresses.push(address.value);
        }
        addresses
    }

    fn limits(raw: &LimitsTable) -> Limits {
        let limits = Limits::default();
        let time = |time: &TomlField<PositiveDuration>, default| {
            time.value().map_or(default, |time| time.0)
        };
        let count =
            |count: &TomlField<CountUpTo<_>>, default| count.value().map_or(default, |at| at.0);
        let records =
            |count: &TomlField<CountUpTo<_>>, default| count.value().map_or(default, |at| at.0);
        let size = |size: &TomlField<ByteSize>, default| size.value().map_or(default, |at| at.0);
        Limits {
            header_bytes: raw.header_bytes.value().map_or(limits.header_bytes, |size| size.0),
            headers: raw.headers.value().map_or(limits.headers, |count| count.0),
            header_timeout: time(&raw.header_timeout, limits.header_timeout),
            body_timeout: time(&raw.body_timeout, limits.body_timeout),
            body_start_timeout: time(&raw.body_start_timeout, limits.body_start_timeout),
            body_rate: raw.body_rate.value().map_or(limits.body_rate, |size| size.0),
            answer_timeout: time(&raw.answer_timeout, limits.answer_timeout),
            tunnel_timeout: time(&raw.tunnel_timeout, limits.tunnel_timeout),
            connections: count(&raw.connections, limits.connections),
            in_flight: count(&raw.in_flight, limits.in_flight),
            per_caller: count(&raw.per_caller, limits.per_caller),
            waiting: count(&raw.waiting, limits.waiting),
            cache_bytes: size(&raw.cache_bytes, limits.cache_bytes),
            records: records(&raw.records, limits.records),
            store_size: size(&raw.store_size, limits.store_size),
            disk_free: size(&raw.disk_free, limits.disk_free),
            records_per_caller: records(&raw.records_per_caller, limits.records_per_caller),
            store_size_per_caller: size(&raw.store_size_per_caller, limits.store_size_per_caller),
            held_per_caller: count(&raw.held_per_caller, limits.held_per_caller),
            memory: size(&raw.memory, u64::try_from(limits.memory).unwrap_or(u64::MAX))
                .try_into()
                .unwrap_or(usize::MAX),
        }
    }

    /// A secret, from a variable or from a file.
    fn secret(
        &mut self,
        env: Option<&Located<EnvName>>,
        file: Option<&Located<PathBuf>>,
    ) -> (SecretSource, Option<CallerSecret>) {
        match (env, file) {
            (Some(_), Some(file)) => {
                let message = "set an environment variable or a file for the secret, not both";
                self.report.add_error(&file.origin, message);
                (SecretSource::BesideStore, None)
            }
            (Some(name), None) => {
                let value = self.secret_of(name).map(CallerSecret);
                (SecretSource::Env(name.value.0.clone()), value)
            }
            (None, Some(file)) => {
                let path = self.checked_path(&file.value, &file.origin, FileCheck::File);
                (SecretSource::File(path), None)
            }
            (None, None) => (SecretSource::BesideStore, None),
        }
    }

    fn secret_of(&mut self, name: &Located<EnvName>) -> Option<String> {
        let variable = &name.value.0;
        let message = match (self.env)(variable) {
            None => format!("the environment variable {variable} is not set"),
            Some(value) if value.is_empty() => {
                format!("the environment variable {variable} is empty")
            }
            Some(value) if value.len() < SECRET_BYTES_MIN => format!(
                "the secret in {variable} is shorter than {SECRET_BYTES_MIN} characters, so it \
                 could be guessed"
            ),
            Some(value) => return Some(value),
        };
        self.report.add_error(&name.origin, message);
        None
    }
}

/// Whether servers that share this store could hash one credential to different caller names, or
/// could not read each other's claims, because the secret is not configured. Keys that have run on
/// one server would run again on another.
pub fn lacks_shared_caller_secret(
    store: &StoreUrl,
    secret: &SecretSource,
    api: Option<&Api>,
    routes: &[Route],
) -> bool {
    matches!(store, StoreUrl::Postgres(_))
        && *secret == SecretSource::BesideStore
        && (routes.iter().any(|route| route.hashes_callers() || route.issues_keys())
            || api.is_some_and(Api::takes_claims))
}

#[cfg(test)]
mod tests;
