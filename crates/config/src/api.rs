//! The API listener: its address, its tokens, and the scopes that claims may name.

use std::{fmt, net::SocketAddr, path::PathBuf, thread, time::Duration};

use semel::core::{OnUnknown, Scope};

use super::{
    SECRET_BYTES_MIN, StoreUrl,
    files::FileCheck,
    loader::Loader,
    private_files::beside,
    raw::{ApiTable, ConfigFile, ScopeTable, TokenTable},
    read::{Located, OneOrMore, refuse_repeats},
    report::ValueOrigin,
    trusted_header::TrustedHeader,
    values::{ApiListen, ApiRole, CallerSetting, EnvName},
};

/// The API listener: health, metrics, records, and the service API.
#[derive(Clone, Debug)]
pub struct Api {
    /// Where to listen.
    pub listen: SocketAddr,
    /// How many threads serve.
    pub threads: usize,
    /// One more token of the role `operator`, if the environment has it.
    pub operator_token: Option<BearerToken>,
    /// The environment variable that it came from.
    pub operator_token_env: Option<String>,
    /// The file that it comes from instead.
    pub operator_token_file: Option<PathBuf>,
    /// The tokens of the roles.
    pub tokens: Vec<ApiToken>,
    /// The header in which a proxy names the users of the dashboard.
    pub trusted_header: Option<TrustedHeader>,
    /// The audit log file.
    pub audit: PathBuf,
}

/// One `[[api.token]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiToken {
    /// Its name in the log, and of its caller unless it has another one.
    pub name: String,
    /// What it allows.
    pub role: ApiRole,
    /// The scopes that it allows; `None` is any.
    pub scopes: Option<Vec<Scope>>,
    /// The caller of its claims; `None` if each claim names it.
    pub caller: Option<String>,
    /// The secrets, any of which it may be; at least one.
    pub secrets: Vec<TokenSource>,
}

/// Where one secret of a token is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenSource {
    /// This environment variable, which held this when the configuration was built.
    Env(String, BearerToken),
    /// This file.
    File(PathBuf),
}

/// One `[[scope]]`: defaults and limits for claims of the service API. What is `None` has the
/// general default, and a claim may choose it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScopeRule {
    /// The scope.
    pub name: Scope,
    /// The lease.
    pub lease: Option<Duration>,
    /// The retention.
    pub retention: Option<Duration>,
    /// What to do when the outcome is unknown.
    pub on_unknown: Option<OnUnknown>,
    /// How long a record may be held before it fails.
    pub hold_for: Option<Duration>,
    /// The largest result that is stored.
    pub result_bytes_max: Option<usize>,
}

/// A token of the API. It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct BearerToken(pub String);

impl BearerToken {
    /// Parses a token from a file or a variable. The error message follows the name of that.
    pub fn new(text: &str) -> Result<Self, String> {
        let token = text.trim();
        if token.is_empty() {
            return Err("is empty".to_owned());
        }
        if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            let wrong = "contains characters other than visible ASCII: a token has no spaces, line \
                         ends or accented letters";
            return Err(wrong.to_owned());
        }
        if token.len() < SECRET_BYTES_MIN {
            return Err(format!(
                "has fewer than {SECRET_BYTES_MIN} characters, so it could be guessed"
            ));
        }
        Ok(Self(token.to_owned()))
    }
}

impl fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BearerToken(…)")
    }
}

impl Api {
    /// Whether a token allows claims.
    pub fn takes_claims(&self) -> bool {
        self.tokens.iter().any(|token| token.role == ApiRole::App)
    }
}

impl Loader<'_, '_> {
    pub(super) fn api(
        &mut self,
        raw: &ApiTable,
        store: &StoreUrl,
        gateway: &[SocketAddr],
    ) -> Option<Api> {
        let default = SocketAddr::from(([127, 0, 0, 1], 8081));
        let (listen, origin) = match raw.listen.get() {
            Some(Located { value: ApiListen::Off, .. }) => return None,
            Some(Located { value: ApiListen::On(address), origin }) => (*address, origin.clone()),
            None => (default, ValueOrigin::Missing),
        };
        if gateway.iter().any(|other| collide(*other, listen)) {
            self.report.add_error(
                &origin,
                format!(
                    "the API cannot use the gateway's address {listen}: clients could reach it"
                ),
            );
        }
        let file = raw.operator_token_file.get();
        let cores = || thread::available_parallelism().map_or(1, Into::into);
        Some(Api {
            listen,
            threads: raw.threads.value().map_or_else(cores, |threads| threads.0),
            operator_token: self.operator_token(raw),
            operator_token_env: raw.operator_token_env.value().map(|name| name.0.clone()),
            operator_token_file: file
                .map(|file| self.checked_path(&file.value, &file.origin, FileCheck::File)),
            tokens: self.tokens(raw),
            trusted_header: raw.trusted_header.value().cloned(),
            audit: match raw.audit.get() {
                Some(audit) => {
                    self.checked_path(&audit.value, &audit.origin, FileCheck::FolderOfIt)
                }
                None => default_audit_path(store),
            },
        })
    }

    /// The token that the environment holds. One in a file is read when it is needed.
    fn operator_token(&mut self, raw: &ApiTable) -> Option<BearerToken> {
        let name = raw.operator_token_env.get()?;
        if let Some(file) = raw.operator_token_file.get() {
            let message = "set `operator_token_env` or `operator_token_file`, not both";
            self.report.add_error(&file.origin, message);
            return None;
        }
        self.bearer_token(name)
    }

    fn bearer_token(&mut self, name: &Located<EnvName>) -> Option<BearerToken> {
        let value = self.variable(&name.value.0).ok_or_else(|| "is not set".to_owned());
        match value.and_then(|text| BearerToken::new(&text)) {
            Ok(token) => Some(token),
            Err(wrong) => {
                let message = format!("the environment variable {} {wrong}", name.value.0);
                self.report.add_error(&name.origin, message);
                None
            }
        }
    }

    fn tokens(&mut self, raw: &ApiTable) -> Vec<ApiToken> {
        let mut tokens: Vec<ApiToken> = Vec::new();
        for table in raw.token.value().into_iter().flatten() {
            let Some(token) = self.token(table) else { continue };
            if tokens.iter().any(|other| other.name == token.name) {
                let message = "another token has this name; list several secrets in one token";
                self.report.add_error(&table.origin, message);
            }
            let is_shared = |secret: &TokenSource| {
                tokens.iter().any(|other| other.secrets.iter().any(|known| known.is_same(secret)))
            };
            if token.secrets.iter().any(is_shared) {
                let message = "another token has this secret, so its role would not be known";
                self.report.add_error(&table.origin, message);
            }
            tokens.push(token);
        }
        tokens
    }

    fn token(&mut self, table: &Located<TokenTable>) -> Option<ApiToken> {
        let Located { value: raw, origin } = table;
        let absent = [
            ("name", raw.name.is_absent()),
            ("role", raw.role.is_absent()),
            ("secret_env", raw.secret_env.is_absent() && raw.secret_file.is_absent()),
        ];
        for (name, _) in absent.into_iter().filter(|(_, absent)| *absent) {
            let message = match name {
                "secret_env" => "a token needs `secret_env` or `secret_file`".to_owned(),
                name => format!("a token needs `{name}`"),
            };
            self.report.add_error(origin, message);
        }
        let mut secrets = Vec::new();
        for name in raw.secret_env.value().into_iter().flat_map(|OneOrMore(names)| names) {
            let token = self.bearer_token(name);
            secrets.extend(token.map(|token| TokenSource::Env(name.value.0.clone(), token)));
        }
        for file in raw.secret_file.value().into_iter().flat_map(|OneOrMore(files)| files) {
            let path = self.checked_path(&file.value, &file.origin, FileCheck::File);
            secrets.push(TokenSource::File(path));
        }
        let (name, role) = (raw.name.value()?.0.clone(), *raw.role.value()?);
        if role != ApiRole::App {
            let only = "only a token of the role \"app\" has";
            for (what, at) in [
                ("`caller`", raw.caller.get().map(|at| &at.origin)),
                ("`scopes`", raw.scopes.get().map(|at| &at.origin)),
            ] {
                if let Some(at) = at {
                    self.report.add_error(at, format!("{only} {what}"));
                }
            }
        }
        let caller = match raw.caller.value() {
            None => Some(name.clone()),
            Some(CallerSetting::Named(caller)) => Some(caller.clone()),
            Some(CallerSetting::Any) => None,
        };
        let scopes = raw.scopes.value().map(|OneOrMore(scopes)| {
            refuse_repeats(scopes, self.report);
            scopes.iter().map(|scope| scope.value.clone()).collect()
        });
        Some(ApiToken { name, role, scopes, caller, secrets })
    }

    pub(super) fn scopes(&mut self, raw: &ConfigFile) -> Vec<ScopeRule> {
        let mut scopes: Vec<ScopeRule> = Vec::new();
        for table in raw.scope.value().into_iter().flatten() {
            let Located { value: ScopeTable { name, .. }, origin } = table;
            let Some(name) = name.value() else {
                if name.is_absent() {
                    self.report.add_error(origin, "a scope needs `name`");
                }
                continue;
            };
            if scopes.iter().any(|other| other.name == *name) {
                self.report.add_error(origin, "this scope is described twice");
            }
            let table = &table.value;
            scopes.push(ScopeRule {
                name: name.clone(),
                lease: table.lease.value().map(|time| time.0),
                retention: table.retention.value().map(|time| time.0),
                on_unknown: table.on_unknown.value().copied(),
                hold_for: table.hold_for.value().map(|time| time.0),
                result_bytes_max: table.result_max.value().map(|size| size.0),
            });
        }
        scopes
    }
}

impl TokenSource {
    /// Whether both are known to be one secret.
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Env(_, one), Self::Env(_, two)) => one == two,
            (Self::File(one), Self::File(two)) => one == two,
            (Self::Env(..), Self::File(_)) | (Self::File(_), Self::Env(..)) => false,
        }
    }
}

/// Whether two listen addresses conflict.
pub(super) fn collide(one: SocketAddr, other: SocketAddr) -> bool {
    let same_host =
        one.ip() == other.ip() || one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() == other.port() && one.port() != 0 && same_host
}

/// The default path of the audit log: next to the store's file.
pub fn default_audit_path(store: &StoreUrl) -> PathBuf {
    match store {
        StoreUrl::Sqlite(path) => beside(path, ".audit.jsonl"),
        StoreUrl::Postgres(_) | StoreUrl::Memory => "semel.audit.jsonl".into(),
    }
}

#[cfg(test)]
mod tests;
