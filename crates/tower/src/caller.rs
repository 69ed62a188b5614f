//! The caller of a request, by the rules of a route.

mod all;
mod authorization;
mod credential;
mod secret;

use std::{borrow::Cow, error, fmt, sync::Arc};

use http::{HeaderName, HeaderValue, header, request::Parts};
use semel::core::{Caller, Problem, caller::CALLER_BYTES_MAX};
use sha2::{Digest, Sha256};

pub use self::secret::{SECRET_BYTES_MIN, Secret, SecretError};
use self::{
    all::CallerComponent,
    authorization::AuthorizationCredential,
    credential::{CredentialKind, CredentialLocation},
};
use crate::{host, refusal::RequestRefusal};

/// How a route identifies the caller of a request: an ordered list of rules, never empty.
///
/// Keys of different callers are separate, so that one customer never gets the answer of another.
/// The rules are tried in order:
///
/// - a rule that finds **nothing** leaves the request to the next;
/// - a rule that finds something it **cannot use** (a credential that changes between attempts, two
///   lines where one is allowed) refuses the request: 403 `caller-unidentified`;
/// - when **no rule** finds a caller, the request is refused as well. There is no default caller.
///
/// Callers from different kinds of rules are different, even with equal values. [`Callers::or`]
/// tries one rule after another; [`Callers::and`] combines two, for a credential that acts for
/// several accounts.
///
/// ```
/// use http::HeaderName;
/// use semel_tower::{Callers, Secret};
///
/// let secret = Secret::new("9f86d081884c7d659a2feaa0c55ad015")?;
/// let callers = Callers::authorization(&secret)
///     .or(Callers::credential_header(HeaderName::from_static("x-api-key"), &secret))
///     .or(Callers::anonymous());
/// # let _ = callers;
/// # Ok::<(), semel_tower::SecretError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Callers {
    rules: Vec<CallerExtractor>,
    /// The headers that some rule reads as a credential.
    named: Vec<HeaderName>,
    /// The headers that the route reads for its key or its fingerprint: they are no credential,
    /// whatever their names.
    read: Vec<HeaderName>,
    /// Whether a signature proves the sender, whatever credential the request carries.
    verified: bool,
    /// Whether a proxy in front names the host of a request.
    forwarded_host: bool,
}

/// The caller of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identified {
    pub(crate) caller: Caller,
    /// Whether that is proven by a secret of the caller, which no one else has.
    pub(crate) proven: bool,
}

impl Identified {
    pub(crate) fn anonymous() -> Self {
        Self { caller: Caller::anonymous(), proven: false }
    }
}

/// A plain header was to name a caller, and would carry a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallersError {
    name: HeaderName,
}

impl fmt::Display for CallersError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the header {} carries a secret, which would be stored in clear; take \
             Callers::credential_header, Callers::authorization or Callers::cookie, which hash it",
            self.name
        )
    }
}

impl error::Error for CallersError {}

/// A function of the route.
type FindCaller = dyn Fn(&Parts) -> Identification + Send + Sync;

#[derive(Clone)]
enum CallerExtractor {
    Authorization(Secret),
    Header {
        name: HeaderName,
        prefix: Box<str>,
    },
    AuthorizationCredential {
        name: HeaderName,
        prefix: Box<str>,
        secret: Secret,
    },
    Cookie {
        name: Box<str>,
        prefix: Box<str>,
        secret: Secret,
    },
    Host,
    Anonymous,
    Function(Arc<FindCaller>),
    /// Several rules combined.
    All(Vec<CallerComponent>),
}

impl Callers {
    /// The credential in `Authorization`, hashed: `Basic`, or `Bearer` with an opaque token.
    ///
    /// A JSON Web Token, a PASETO token or a signature changes between attempts of the same sender,
    /// so a retry would have another caller and run again. It is refused. Verify the token and take
    /// the caller from its claims instead, with [`Callers::from_fn`].
    #[must_use]
    pub fn authorization(secret: &Secret) -> Self {
        Self::one(CallerExtractor::Authorization(secret.clone()), Some(header::AUTHORIZATION))
    }

    /// The plain value of this header, such as a merchant number.
    ///
    /// **Any client that can send this header can be this caller.** Use it for a header that your
    /// gateway sets after authentication, and that it removes from client requests.
    ///
    /// ```
    /// use http::{HeaderName, header};
    /// use semel_tower::Callers;
    ///
    /// assert!(Callers::header(HeaderName::from_static("x-merchant-id")).is_ok());
    /// assert!(Callers::header(header::AUTHORIZATION).is_err());
    /// ```
    ///
    /// # Errors
    ///
    /// If the name is that of a secret (`Authorization`, `Cookie`, `X-Api-Key`, `X-…-Token`…): it
    /// would be stored in plain text. [`Callers::credential_header`] stores a hash.
    pub fn header(name: HeaderName) -> Result<Self, CallersError> {
        if credential::header(name.as_str()) == Some(CredentialKind::Secret) {
            return Err(CallersError { name });
        }
        let prefix = format!("header:{name}:").into();
        Ok(Self::one(CallerExtractor::Header { name: name.clone(), prefix }, Some(name)))
    }

    /// The value of this header, hashed: a credential such as `X-Api-Key`.
    #[must_use]
    pub fn credential_header(name: HeaderName, secret: &Secret) -> Self {
        let prefix = format!("credential:{name}:").into();
        let secret = secret.clone();
        Self::one(
            CallerExtractor::AuthorizationCredential { name: name.clone(), prefix, secret },
            Some(name),
        )
    }

    /// The value of the cookie of this name, hashed: a session. It must not change between two
    /// attempts.
    #[must_use]
    pub fn cookie(name: &str, secret: &Secret) -> Self {
        let prefix = format!("cookie:{name}:").into();
        let rule = CallerExtractor::Cookie { name: name.into(), prefix, secret: secret.clone() };
        Self::one(rule, Some(header::COOKIE))
    }

    /// The host of the request, for services where each host is a tenant: in lower case, without
    /// port. A request to an IP address has no host, and the next rule is tried.
    ///
    /// **Any client that can reach the host can be this caller.** Where its users have their own
    /// keys, [combine](Callers::and) it with their credential.
    #[must_use]
    pub fn host() -> Self {
        Self::one(CallerExtractor::Host, None)
    }

    /// One caller for all requests without a credential of any kind.
    ///
    /// They share their keys, so a client that guesses another's key and repeats its request gets
    /// its answer: use it for public forms, and for webhooks whose signature was verified before. A
    /// request with anything like a credential or a name is never anonymous: `Authorization`, a
    /// cookie, a client certificate, a header or a query parameter whose name ends in `token`,
    /// `key`, `secret` or `password`, or contains `session`, `user`, `account`, `tenant` or the
    /// like, and a header that another rule names. `User-Agent`, the headers that browsers set,
    /// those that the layer reads for its key or its fingerprint, and the signature of a webhook
    /// are not credentials. Where the layer [verifies the
    /// signature](crate::IdempotencyLayer::signature), it proves the sender, and nothing else that
    /// the request carries matters here.
    #[must_use]
    pub fn anonymous() -> Self {
        Self::one(CallerExtractor::Anonymous, None)
    }

    /// The caller that this function returns, for example from an extension of an authentication
    /// layer. `Ok(None)` means that the request names no caller, and the next rule is tried; an
    /// error refuses the request with the error's message. **`Ok(None)` is only for a request
    /// without any name:** a name that is present and cannot be used must be an error, or the
    /// request could pass as anonymous.
    ///
    /// The result must be the same at every attempt of one sender. All functions of one list share
    /// one namespace. In the store such a caller is called `fn:` and its name, which operators can
    /// search for; a name that is too long is hashed, after `fn-sha256:`.
    ///
    /// ```
    /// use semel::core::Caller;
    /// use semel_tower::Callers;
    ///
    /// #[derive(Clone)]
    /// struct Tenant(String);
    ///
    /// let callers = Callers::from_fn(|request| {
    ///     let tenant = request.extensions.get::<Tenant>();
    ///     tenant.map(|tenant| Caller::new(&tenant.0)).transpose()
    /// });
    /// # let _ = callers;
    /// ```
    #[must_use]
    pub fn from_fn<F, E>(find: F) -> Self
    where
        F: Fn(&Parts) -> Result<Option<Caller>, E> + Send + Sync + 'static,
        E: fmt::Display,
    {
        let find = move |parts: &Parts| match find(parts) {
            Ok(Some(caller)) if caller.is_anonymous() => Ok(Some(caller)),
            Ok(Some(caller)) => named_caller(&bounded("fn:", "fn-sha256:", caller.as_str())),
            Ok(None) => Ok(None),
            Err(error) => {
                Err(format!("the caller of the request cannot be identified: {error}").into())
            }
        };
        Self::one(CallerExtractor::Function(Arc::new(find)), None)
    }

    fn one(rule: CallerExtractor, named: Option<HeaderName>) -> Self {
        let named = named.into_iter().collect();
        Self { rules: vec![rule], named, read: Vec::new(), verified: false, forwarded_host: false }
    }

    /// Sets the headers that the route reads for its key or its fingerprint.
    pub(crate) fn set_read(&mut self, read: Vec<HeaderName>) {
        self.read = read;
    }

    /// Declares that every request is verified before these rules apply.
    pub(crate) const fn set_verified(&mut self) {
        self.verified = true;
    }

    /// Trusts the host in the forwarding headers of a proxy in front.
    pub(crate) const fn set_forwarded_host(&mut self) {
        self.forwarded_host = true;
    }

    /// Tries the rules of `other` after these.
    #[must_use]
    pub fn or(mut self, other: Self) -> Self {
        self.rules.extend(other.rules);
        self.named.extend(other.named);
        self
    }

    /// Identifies the caller of this request.
    pub(crate) fn identify(&self, parts: &Parts) -> Result<Identified, RequestRefusal> {
        match first(&self.rules, parts, self).map_err(refuse)? {
            Some(identified) => Ok(identified),
            None => Err(refuse(self.unidentified(parts))),
        }
    }

    /// The part of the request that is a credential for this route.
    fn credential<'a>(&self, parts: &'a Parts) -> Option<CredentialLocation<'a>> {
        credential::find(parts, &self.named, &self.read)
    }

    fn unidentified(&self, parts: &Parts) -> Cow<'static, str> {
        if self.rules.iter().any(CallerExtractor::may_be_anonymous)
            && let Some(found) = self.credential(parts)
        {
            return not_anonymous(found).into();
        }
        let expected: Vec<_> = self.rules.iter().filter_map(CallerExtractor::expects).collect();
        if expected.is_empty() {
            return Problem::CallerUnidentified.detail().into();
        }
        format!(
            "the request does not say who sent it, so its key cannot be kept apart from other \
             callers' keys; send {}",
            expected.join(", or ")
        )
        .into()
    }
}

/// Why a request is not anonymous, and the rule that the route would need.
fn not_anonymous(found: CredentialLocation<'_>) -> String {
    let name = match found {
        CredentialLocation::Header(name) => name.as_str(),
        CredentialLocation::Query(name) => name,
    };
    let shown: String = name.chars().take(64).collect();
    let rule = match found {
        CredentialLocation::Query(_) => {
            return format!(
                "the query of the request has {shown}, which may say who sends it, so the request \
                 is not anonymous; leave it out, or send it in a header that the caller rule of \
                 the route names"
            );
        }
        CredentialLocation::Header(&header::AUTHORIZATION) => "\"authorization\"".to_owned(),
        CredentialLocation::Header(&header::COOKIE) => "{ cookie = \"NAME\" }".to_owned(),
        CredentialLocation::Header(_)
            if credential::header(name) == Some(CredentialKind::Secret) =>
        {
            format!("{{ credential = \"{shown}\" }}")
        }
        CredentialLocation::Header(_) => format!("{{ header = \"{shown}\" }}"),
    };
    format!(
        "the request carries a header {shown}, which may say who sends it and which no caller \
         rule of this route reads, so the request is not anonymous; leave it out, or let the \
         route say caller = [{rule}, \"anonymous\"]"
    )
}

fn refuse(detail: Cow<'static, str>) -> RequestRefusal {
    RequestRefusal::detailed(Problem::CallerUnidentified, detail)
}

/// A caller, none, or why the presented one cannot be used.
type Identification = Result<Option<Caller>, Cow<'static, str>>;

/// The result of the first of these rules that finds anything.
fn first(
    rules: &[CallerExtractor],
    parts: &Parts,
    callers: &Callers,
) -> Result<Option<Identified>, Cow<'static, str>> {
    for rule in rules {
        let found = if let CallerExtractor::All(joined) = rule {
            all::identify(joined, parts, callers)?
        } else {
            let caller = rule.find(parts, callers)?;
            caller.map(|caller| Identified { caller, proven: rule.proves() })
        };
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

impl CallerExtractor {
    /// Whether only the caller can know what the rule reads. A function reads what the service
    /// itself has verified.
    const fn proves(&self) -> bool {
        match self {
            Self::Authorization(_)
            | Self::AuthorizationCredential { .. }
            | Self::Cookie { .. }
            | Self::Function(_) => true,
            Self::Header { .. } | Self::Host | Self::Anonymous | Self::All(_) => false,
        }
    }

    fn may_be_anonymous(&self) -> bool {
        match self {
            Self::Anonymous => true,
            Self::All(parts) => parts.iter().any(CallerComponent::may_be_anonymous),
            Self::Authorization(_)
            | Self::Header { .. }
            | Self::AuthorizationCredential { .. }
            | Self::Cookie { .. }
            | Self::Host
            | Self::Function(_) => false,
        }
    }

    fn find(&self, parts: &Parts, callers: &Callers) -> Identification {
        match self {
            Self::Authorization(secret) => {
                let Some(line) = only_line(parts, &header::AUTHORIZATION)? else { return Ok(None) };
                match authorization::read(line.as_bytes()) {
                    AuthorizationCredential::Stable { scheme, token } => {
                        let parts = [&b"authorization"[..], scheme.as_bytes(), token];
                        named_caller(&secret.name("auth:", &parts))
                    }
                    AuthorizationCredential::Unstable(what) => Err(format!(
                        "the Authorization header contains {what}, so a retry would look like \
                         another caller; send Basic or an opaque Bearer token. The operator of \
                         this service can identify such callers by a header that its own gateway \
                         sets after it has verified the credential"
                    )
                    .into()),
                }
            }
            Self::Header { name, prefix } => match only_line(parts, name)? {
                Some(line) => plain(name, prefix, line),
                None => Ok(None),
            },
            Self::AuthorizationCredential { name, prefix, secret } => match only_line(parts, name)?
            {
                Some(line) if line.as_bytes().trim_ascii().is_empty() => Err(empty(name)),
                Some(line) => {
                    let value = line.as_bytes().trim_ascii();
                    named_caller(&secret.name(prefix, &[name.as_str().as_bytes(), value]))
                }
                None => Ok(None),
            },
            Self::Cookie { name, prefix, secret } => match only_cookie(parts, name)? {
                Some(value) => {
                    named_caller(&secret.name(prefix, &[b"cookie", name.as_bytes(), value]))
                }
                None => Ok(None),
            },
            Self::Host => match host::of(parts, callers.forwarded_host) {
                Some(host) => named_caller(&bounded("host:", "host-sha256:", &host)),
                None => Ok(None),
            },
            Self::Function(find) => find(parts),
            // Another rule may still read a credential that this one found.
            Self::Anonymous => {
                let anonymous = callers.verified || callers.credential(parts).is_none();
                Ok(anonymous.then(Caller::anonymous))
            }
            Self::All(joined) => {
                Ok(all::identify(joined, parts, callers)?.map(|identified| identified.caller))
            }
        }
    }

    /// What a request without a caller should send.
    fn expects(&self) -> Option<String> {
        Some(match self {
            Self::Authorization(_) => {
                "an Authorization header with Basic or an opaque Bearer token".to_owned()
            }
            Self::Header { name, .. } | Self::AuthorizationCredential { name, .. } => {
                format!("a header {name}")
            }
            Self::Cookie { name, .. } => format!("a cookie {name}"),
            Self::Host => "a Host that is a name and not an IP address".to_owned(),
            Self::All(parts) => return all::expects(parts),
            Self::Anonymous | Self::Function(_) => return None,
        })
    }
}

/// A name after its prefix; if that is too long for a caller, its hash after another prefix.
fn bounded(prefix: &str, hash_prefix: &str, name: &str) -> String {
    if prefix.len().saturating_add(name.len()) <= CALLER_BYTES_MAX {
        return [prefix, name].concat();
    }
    secret::hexadecimal(hash_prefix, &Sha256::digest(name))
}

fn named_caller(name: &str) -> Identification {
    Caller::new(name).map(Some).map_err(|error| error.to_string().into())
}

fn plain(name: &HeaderName, prefix: &str, line: &HeaderValue) -> Identification {
    let value = line.as_bytes().trim_ascii();
    if value.is_empty() {
        return Err(empty(name));
    }
    let text = str::from_utf8(value).map_err(|_| format!("the header {name} is not UTF-8"))?;
    Caller::new(&[prefix, text].concat())
        .map(Some)
        .map_err(|error| format!("the header {name} cannot name a caller: {error}").into())
}

fn empty(name: &HeaderName) -> Cow<'static, str> {
    format!("the header {name} is empty; it must name the caller").into()
}

fn only_line<'a>(
    parts: &'a Parts,
    name: &HeaderName,
) -> Result<Option<&'a HeaderValue>, Cow<'static, str>> {
    let mut lines = parts.headers.get_all(name).iter();
    match (lines.next(), lines.next()) {
        (_, Some(_)) => Err(format!("the header {name} was sent more than once").into()),
        (line, None) => Ok(line),
    }
}

/// The single value of a cookie. An empty one counts as absent: that is how a session is deleted.
fn only_cookie<'a>(parts: &'a Parts, name: &str) -> Result<Option<&'a [u8]>, Cow<'static, str>> {
    let mut found = None;
    for line in parts.headers.get_all(header::COOKIE) {
        for pair in line.as_bytes().split(|byte| *byte == b';') {
            let Some(value) = pair.trim_ascii().strip_prefix(name.as_bytes()) else { continue };
            let Some(value) = value.strip_prefix(b"=").filter(|value| !value.is_empty()) else {
                continue;
            };
            if found.is_some_and(|other| other != value) {
                return Err(format!("the cookie {name} was sent with two values").into());
            }
            found = Some(value);
        }
    }
    Ok(found)
}

impl fmt::Debug for CallerExtractor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Authorization(_) => f.write_str("Authorization"),
            Self::Header { name, .. } => write!(f, "Header({name})"),
            Self::AuthorizationCredential { name, .. } => write!(f, "Credential({name})"),
            Self::Cookie { name, .. } => write!(f, "Cookie({name})"),
            Self::Host => f.write_str("Host"),
            Self::Anonymous => f.write_str("Anonymous"),
            Self::Function(_) => f.write_str("Function"),
            Self::All(parts) => f.debug_tuple("All").field(parts).finish(),
        }
    }
}

#[cfg(test)]
mod tests;
