//! The caller of a request, by the rules of a route.

mod all;
mod authorization;
mod certificate;
mod client_context;
mod credential;
#[cfg(feature = "jwt")]
mod jwks;
#[cfg(feature = "jwt")]
mod jwt;
mod network;
mod refusal;
mod request_parts;
mod secret;

use std::{error, fmt, sync::Arc};

use http::{HeaderName, header, request::Parts};
use semel::core::{Caller, Problem};

#[cfg(feature = "mtls")]
pub use self::certificate::ClientCertificateError;
#[cfg(feature = "jwks-url")]
pub use self::jwks::check_jwks_url;
use self::{
    all::CallerComponent,
    authorization::AuthorizationCredential,
    credential::{CredentialKind, CredentialLocation},
    network::require_network,
    refusal::CallerRefusal,
    request_parts::{
        bounded, empty, named_caller, not_anonymous, only_cookie, only_line, plain, unstable,
    },
};
pub use self::{
    certificate::{CertificateField, ClientCertificate},
    client_context::ClientContext,
    network::{Network, NetworkError},
    secret::{SECRET_BYTES_MIN, Secret, SecretError},
};
#[cfg(feature = "jwt")]
pub use self::{
    jwks::{Jwks, JwksError},
    jwt::JwtVerifier,
};
use crate::{
    host,
    refusal::{CallerFailure, RequestRefusal},
};

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
    /// Whether tokens, networks and certificates are taken as they are: to name a caller for an
    /// operator.
    unverified: bool,
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
        /// The networks that it is believed from; `None` for all.
        from: Option<Box<[Network]>>,
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
    Certificate(CertificateField),
    #[cfg(feature = "jwt")]
    Jwt(JwtVerifier),
    Anonymous,
    Function(Arc<FindCaller>),
    /// Several rules combined.
    All(Vec<CallerComponent>),
}

impl Callers {
    /// The credential in `Authorization`, hashed: `Basic`, or `Bearer` with an opaque token.
    ///
    /// A JSON Web Token, a PASETO token or a signature changes between attempts of the same sender,
    /// so a retry would have another caller and run again. It is refused. Verify a JSON Web Token
    /// and take the caller from its claims instead, with `Callers::jwt` (feature `jwt`) or
    /// [`Callers::from_fn`].
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
        Self::plain_header(name, None)
    }

    /// As [`Callers::header`], for requests that come from one of these networks: from the proxies
    /// that set the header. From another network, or where the request has no
    /// [address](crate::ClientContext::address), the header is refused and never treated as absent.
    ///
    /// ```
    /// use http::HeaderName;
    /// use semel_tower::Callers;
    ///
    /// let merchant = HeaderName::from_static("x-merchant-id");
    /// let callers = Callers::header_from(merchant, ["10.0.0.0/8".parse()?])?;
    /// # let _ = callers;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Callers::header`].
    pub fn header_from(
        name: HeaderName,
        networks: impl IntoIterator<Item = Network>,
    ) -> Result<Self, CallersError> {
        Self::plain_header(name, Some(networks.into_iter().collect()))
    }

    fn plain_header(name: HeaderName, from: Option<Box<[Network]>>) -> Result<Self, CallersError> {
        if credential::header(name.as_str()) == Some(CredentialKind::Secret) {
            return Err(CallersError { name });
        }
        let prefix = format!("header:{name}:").into();
        Ok(Self::one(CallerExtractor::Header { name: name.clone(), prefix, from }, Some(name)))
    }

    /// The name in the client certificate of the connection, which the server inserts into the
    /// [`ClientContext`](crate::ClientContext) of each request. In the store the caller is called
    /// `mtls:subject:…`, `mtls:san:…` or `mtls:fingerprint:…`. A connection without a certificate
    /// has no caller by this rule, and the next one is tried.
    #[must_use]
    pub fn client_certificate(field: CertificateField) -> Self {
        Self::one(CallerExtractor::Certificate(field), None)
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
        Self {
            rules: vec![rule],
            named,
            read: Vec::new(),
            verified: false,
            forwarded_host: false,
            unverified: false,
        }
    }

    /// The stored name of the caller of a request, for tools of operators. **Tokens, networks and
    /// certificates are not verified.**
    ///
    /// # Errors
    ///
    /// Why these rules find no caller.
    pub fn name_unverified(&self, parts: &Parts) -> Result<Caller, String> {
        let callers = Self { unverified: true, ..self.clone() };
        let identified = callers.identify(parts).map(|identified| identified.caller);
        identified.map_err(|refusal| refusal.detail.unwrap_or_default().into_owned())
    }

    /// The headers that some rule reads as a credential.
    pub(crate) fn named(&self) -> &[HeaderName] {
        &self.named
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
        match first(&self.rules, parts, self)? {
            Some(identified) => Ok(identified),
            None => Err(self.unidentified(parts).into()),
        }
    }

    /// Waits a short time for keys that are being fetched.
    #[cfg(feature = "jwt")]
    pub(crate) async fn keys_refreshed(&self) {
        let verifiers: Vec<_> = self.rules.iter().flat_map(CallerExtractor::verifiers).collect();
        for verifier in verifiers {
            verifier.keys().refreshed().await;
        }
    }

    #[cfg(not(feature = "jwt"))]
    #[expect(clippy::unused_async, reason = "there are no keys without the feature jwt")]
    pub(crate) async fn keys_refreshed(&self) {}

    /// The part of the request that is a credential for this route.
    fn credential<'a>(&self, parts: &'a Parts) -> Option<CredentialLocation<'a>> {
        credential::find(parts, &self.named, &self.read)
    }

    fn unidentified(&self, parts: &Parts) -> CallerRefusal {
        #[cfg(feature = "jwt")]
        if self.rules.iter().any(|rule| !rule.verifiers().is_empty()) {
            return jwt::token_missing();
        }
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

/// A caller, none, or why the presented one cannot be used.
type Identification = Result<Option<Caller>, CallerRefusal>;

/// The result of the first of these rules that finds anything.
fn first(
    rules: &[CallerExtractor],
    parts: &Parts,
    callers: &Callers,
) -> Result<Option<Identified>, CallerRefusal> {
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
            | Self::Certificate(_)
            | Self::Function(_) => true,
            #[cfg(feature = "jwt")]
            Self::Jwt(_) => true,
            Self::Header { from, .. } => from.is_some(),
            Self::Host | Self::Anonymous | Self::All(_) => false,
        }
    }

    /// The token verifiers of this rule and its parts.
    #[cfg(feature = "jwt")]
    #[expect(clippy::wildcard_enum_match_arm, reason = "the other rules verify no tokens")]
    fn verifiers(&self) -> Vec<&JwtVerifier> {
        match self {
            Self::Jwt(verifier) => vec![verifier],
            Self::All(parts) => parts.iter().flat_map(CallerComponent::verifiers).collect(),
            _ => Vec::new(),
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
            | Self::Certificate(_)
            | Self::Function(_) => false,
            #[cfg(feature = "jwt")]
            Self::Jwt(_) => false,
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
                    AuthorizationCredential::Unstable(what) => Err(unstable(line, what).into()),
                }
            }
            Self::Header { name, prefix, from } => match only_line(parts, name)? {
                Some(line) => {
                    if let Some(networks) = from.as_deref().filter(|_| !callers.unverified) {
                        require_network(name, networks, parts)?;
                    }
                    plain(name, prefix, line)
                }
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
            Self::Certificate(field) => {
                let client = ClientContext::of(&parts.extensions);
                match client.and_then(|client| client.certificate.as_ref()) {
                    Some(certificate) => certificate.caller(*field),
                    None => Ok(None),
                }
            }
            #[cfg(feature = "jwt")]
            Self::Jwt(verifier) if callers.unverified => verifier.find_unverified(parts),
            #[cfg(feature = "jwt")]
            Self::Jwt(verifier) => verifier.find(parts),
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
            Self::Certificate(_) => "a client certificate".to_owned(),
            #[cfg(feature = "jwt")]
            Self::Jwt(verifier) => verifier.expects(),
            Self::All(parts) => return all::expects(parts),
            Self::Anonymous | Self::Function(_) => return None,
        })
    }
}

impl fmt::Debug for CallerExtractor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Authorization(_) => f.write_str("Authorization"),
            Self::Header { name, .. } => write!(f, "Header({name})"),
            Self::Certificate(field) => write!(f, "Certificate({})", field.as_str()),
            #[cfg(feature = "jwt")]
            Self::Jwt(verifier) => verifier.fmt(f),
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
