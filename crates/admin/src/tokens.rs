//! The tokens of the API: who sent a request, and what its role allows.

use axum::http::{HeaderMap, header};
use semel::core::{Caller, Scope};
use semel_config::{ApiRole, ApiToken, BearerToken, app_caller};
use sha2::{Digest as _, Sha256};

use super::api_error::ApiError;

/// The name of the token that `operator_token_env` or `operator_token_file` names.
const OPERATOR: &str = "operator";

/// Every token that the API accepts.
#[derive(Clone, Debug, Default)]
pub struct ApiTokens {
    credentials: Vec<Credential>,
    /// The hash of each secret, and the credential that it proves.
    secrets: Vec<([u8; 32], usize)>,
    /// Whether reading records needs a token.
    restricts_records: bool,
}

/// What a token proves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Credential {
    pub(super) name: String,
    pub(super) role: ApiRole,
    /// The scopes of its claims; `None` is any.
    scopes: Option<Vec<Scope>>,
    /// The caller of its claims; `None` if each claim names it.
    caller: Option<String>,
}

/// What a request may read or do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Permission {
    /// Claims, and what ends them.
    Claims,
    /// Records, without their answers.
    Records,
    /// Metrics.
    Metrics,
    /// Changes of records, and their answers.
    Operations,
}

impl ApiTokens {
    /// No token: the API is read-only.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether a token may change records.
    #[must_use]
    pub fn can_change(&self) -> bool {
        self.has(ApiRole::Operator)
    }

    /// Adds the operator token.
    #[must_use]
    pub fn with_operator(mut self, secret: &BearerToken) -> Self {
        let (name, role) = (OPERATOR.to_owned(), ApiRole::Operator);
        self.add(Credential { name, role, scopes: None, caller: None }, [secret]);
        self
    }

    /// Adds a token, with each of its secrets.
    #[must_use]
    pub fn with<'a>(
        mut self,
        token: &ApiToken,
        secrets: impl IntoIterator<Item = &'a BearerToken>,
    ) -> Self {
        let ApiToken { name, role, scopes, caller, .. } = token.clone();
        self.restricts_records = true;
        self.add(Credential { name, role, scopes, caller }, secrets);
        self
    }

    fn add<'a>(
        &mut self,
        credential: Credential,
        secrets: impl IntoIterator<Item = &'a BearerToken>,
    ) {
        let index = self.credentials.len();
        self.credentials.push(credential);
        let secrets = secrets.into_iter().map(|BearerToken(text)| (digest(text), index));
        self.secrets.extend(secrets);
    }

    /// Requires a token, or a sign-in by a trusted header, to read records.
    #[must_use]
    pub const fn restricting_records(mut self) -> Self {
        self.restricts_records = true;
        self
    }

    /// Whether records are guarded at all: by a token that reading or changing them needs.
    pub(super) fn guards_records(&self) -> bool {
        self.restricts_records || !self.credentials.is_empty()
    }

    /// Whether a token allows to sign in to the dashboard.
    pub(super) fn has_dashboard_role(&self) -> bool {
        self.has(ApiRole::Viewer) || self.has(ApiRole::Operator)
    }

    /// Whether a token of this role is configured.
    pub(super) fn has(&self, role: ApiRole) -> bool {
        self.credentials.iter().any(|credential| credential.role == role)
    }

    /// What the token of a request proves; the time that this takes says nothing about it.
    pub(super) fn identify(&self, headers: &HeaderMap) -> Option<&Credential> {
        let sent = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
        let (scheme, sent) = sent.split_once(' ')?;
        self.find(sent.trim()).filter(|_| scheme.eq_ignore_ascii_case("bearer"))
    }

    /// What this token proves; the time that this takes says nothing about it.
    pub(super) fn find(&self, token: &str) -> Option<&Credential> {
        let token = digest(token);
        let mut found = None;
        for (secret, index) in &self.secrets {
            if is_same(secret, &token) {
                found = Some(*index);
            }
        }
        found.and_then(|index| self.credentials.get(index))
    }

    /// The credential of a request that may do this; `None` if it needs none.
    ///
    /// # Errors
    ///
    /// If the request has no token that allows it.
    pub(super) fn check(
        &self,
        headers: &HeaderMap,
        permission: Permission,
    ) -> Result<Option<&Credential>, ApiError> {
        let needed = match permission {
            Permission::Claims | Permission::Operations => true,
            Permission::Records => self.restricts_records,
            Permission::Metrics => self.has(ApiRole::Metrics),
        };
        match self.identify(headers) {
            Some(credential) if !needed || credential.role.allows(permission) => {
                Ok(Some(credential))
            }
            Some(credential) => Err(ApiError::role_forbidden(&credential.name)),
            None if !needed => Ok(None),
            None => Err(ApiError::token_missing()),
        }
    }
}

trait Allows {
    fn allows(self, permission: Permission) -> bool;
}

impl Allows for ApiRole {
    fn allows(self, permission: Permission) -> bool {
        match permission {
            Permission::Claims => self == Self::App,
            Permission::Records => matches!(self, Self::Viewer | Self::Operator),
            Permission::Metrics => self != Self::App,
            Permission::Operations => self == Self::Operator,
        }
    }
}

impl Credential {
    /// Whether its claims may be in this scope.
    pub(super) fn allows_scope(&self, scope: &Scope) -> bool {
        self.scopes.as_ref().is_none_or(|scopes| scopes.contains(scope))
    }

    /// The caller of a claim that names this one, or none. `None` if the token does not allow it.
    pub(super) fn caller(&self, named: Option<&str>) -> Option<Caller> {
        let name = match (&self.caller, named) {
            (Some(own), Some(named)) if own != named => return None,
            (Some(own), _) => own,
            (None, Some(named)) => named,
            (None, None) => &self.name,
        };
        app_caller(name).ok()
    }

    /// Whether it may end or renew claims of this caller.
    pub(super) fn allows_caller(&self, caller: &Caller) -> bool {
        match &self.caller {
            Some(own) => app_caller(own).is_ok_and(|own| own == *caller),
            None => true,
        }
    }
}

fn digest(text: &str) -> [u8; 32] {
    Sha256::digest(text).into()
}

/// Compares in constant time.
fn is_same(one: &[u8; 32], two: &[u8; 32]) -> bool {
    one.iter().zip(two).fold(0, |wrong, (one, two)| wrong | (one ^ two)) == 0
}
