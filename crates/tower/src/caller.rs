//! Who sent a request, by the rules of a route.

mod all;
mod authorization;
mod credential;
mod secret;

use std::{borrow::Cow, error, fmt, sync::Arc};

use http::{HeaderName, HeaderValue, header, request::Parts};
use semel::core::{Caller, Problem, caller::CALLER_BYTES_MAX};
use sha2::{Digest, Sha256};

pub use self::secret::{SECRET_BYTES_MIN, Secret, SecretError};
use self::{all::Part, authorization::Credential, credential::Says};
use crate::{host, refusal::Refusal};

/// How a route tells who sent a request: an ordered list of rules, never empty.
///
/// Keys of different callers never meet, so this is what keeps one customer from being shown the
/// answer of another. The rules are asked in order:
///
/// - a rule that finds **nothing** passes on to the next;
/// - a rule that finds something it **cannot use** (a credential that changes between attempts, two
///   lines where one is allowed) refuses the request: 403 `caller-unidentified`;
/// - when **no rule** finds anyone, that is the answer too. There is no caller by accident.
///
/// Callers that different kinds of rules find are different, whatever they sent. [`Callers::or`]
/// tries one rule after another; [`Callers::and`] joins two into one, for a credential that acts
/// for several accounts.
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
    rules: Vec<Rule>,
    /// The headers that some rule takes for a credential.
    named: Vec<HeaderName>,
    /// The headers where the route finds its key: they are no credential, whatever they are called.
    keys: Vec<HeaderName>,
    /// Whether a signature proves who sent a request, whatever credential it carries besides.
    verified: bool,
    /// Whether a proxy in front says which host a request is for.
    forwarded_host: bool,
}

/// Who sent a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identified {
    pub(crate) caller: Caller,
    /// Whether that rests on a secret of the caller, so that no one else can be this caller.
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

/// A function of the route's own.
type Find = dyn Fn(&Parts) -> Outcome + Send + Sync;

#[derive(Clone)]
enum Rule {
    Authorization(Secret),
    Header {
        name: HeaderName,
        prefix: Box<str>,
    },
    Credential {
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
    Function(Arc<Find>),
    /// These together.
    All(Vec<Part>),
}

impl Callers {
    /// The credential in `Authorization`, hashed: `Basic`, or `Bearer` with an opaque token.
    ///
    /// A JSON Web Token, a PASETO token or a signature is different at every attempt although the
    /// sender is the same, so a retry would be another caller's and run again. It is refused; take
    /// the caller from what the token says instead, with [`Callers::from_fn`], after the token was
    /// verified.
    #[must_use]
    pub fn authorization(secret: &Secret) -> Self {
        Self::one(Rule::Authorization(secret.clone()), Some(header::AUTHORIZATION))
    }

    /// The plain value of this header, such as a merchant's number.
    ///
    /// **Whoever can send this header can be this caller.** Use it for a header that your gateway
    /// sets after it knows the sender, and that it removes from what a client sends.
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
    /// would be stored in clear. [`Callers::credential_header`] stores a hash.
    pub fn header(name: HeaderName) -> Result<Self, CallersError> {
        if credential::header(name.as_str()) == Some(Says::Secret) {
            return Err(CallersError { name });
        }
        let prefix = format!("header:{name}:").into();
        Ok(Self::one(Rule::Header { name: name.clone(), prefix }, Some(name)))
    }

    /// The value of this header, hashed: a credential such as `X-Api-Key`.
    #[must_use]
    pub fn credential_header(name: HeaderName, secret: &Secret) -> Self {
        let prefix = format!("credential:{name}:").into();
        let secret = secret.clone();
        Self::one(Rule::Credential { name: name.clone(), prefix, secret }, Some(name))
    }

    /// The value of the cookie of this name, hashed: a session. It must not change between two
    /// attempts.
    #[must_use]
    pub fn cookie(name: &str, secret: &Secret) -> Self {
        let prefix = format!("cookie:{name}:").into();
        let rule = Rule::Cookie { name: name.into(), prefix, secret: secret.clone() };
        Self::one(rule, Some(header::COOKIE))
    }

    /// The host that the request is for, for services where each host is a tenant: in lower case,
    /// without port. A request to an IP address names no host, and the next rule is tried.
    ///
    /// **Any client that can reach the host can be this caller.** Where its users have their own
    /// keys, take it [together](Callers::and) with their credential.
    #[must_use]
    pub fn host() -> Self {
        Self::one(Rule::Host, None)
    }

    /// One caller for all who send no credential of any kind.
    ///
    /// They share their keys, so one who guesses another's key and repeats its request is shown its
    /// answer: for public forms, and for webhooks whose signature was verified before. A request
    /// that carries anything like a credential (`Authorization`, a cookie, `X-Api-Key`, a client
    /// certificate, whatever is called a token or a secret, a header that another rule names…) is
    /// never anonymous. The signature of a webhook is not counted among them; and where the layer
    /// [verifies it](crate::IdempotencyLayer::signature), it proves who sent the request, so that
    /// nothing else it carries matters here.
    #[must_use]
    pub fn anonymous() -> Self {
        Self::one(Rule::Anonymous, None)
    }

    /// Whoever this function finds, for example in an extension that an authentication layer left:
    /// `Ok(None)` is nobody, and the next rule is asked; an error is somebody who cannot be used,
    /// and the request is refused with what the error says. **Nobody is only who said nothing:** a
    /// name that is there and cannot be read must be an error, lest it pass for anonymous.
    ///
    /// What it returns must be the same at every attempt of one sender. All functions of one list
    /// share one space of names. In the store such a caller is called `fn:` and its name, which is
    /// what an operator looks for; a name too long for that is hashed, after `fn-sha256:`.
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
            Err(error) => Err(format!("who sent the request cannot be told: {error}").into()),
        };
        Self::one(Rule::Function(Arc::new(find)), None)
    }

    fn one(rule: Rule, named: Option<HeaderName>) -> Self {
        let named = named.into_iter().collect();
        Self { rules: vec![rule], named, keys: Vec::new(), verified: false, forwarded_host: false }
    }

    /// Says in which headers the route finds its key.
    pub(crate) fn set_keys(&mut self, keys: Vec<HeaderName>) {
        self.keys = keys;
    }

    /// Says that every request is verified before this is asked.
    pub(crate) const fn set_verified(&mut self) {
        self.verified = true;
    }

    /// Trusts the host in the forwarding headers of a proxy in front.
    pub(crate) const fn set_forwarded_host(&mut self) {
        self.forwarded_host = true;
    }

    /// Asks the rules of `other` after these.
    #[must_use]
    pub fn or(mut self, other: Self) -> Self {
        self.rules.extend(other.rules);
        self.named.extend(other.named);
        self
    }

    /// Who sent this request.
    pub(crate) fn identify(&self, parts: &Parts) -> Result<Identified, Refusal> {
        match first(&self.rules, parts, self).map_err(refuse)? {
            Some(identified) => Ok(identified),
            None => Err(refuse(self.nobody(parts))),
        }
    }

    /// What of the request is a credential to this route.
    fn credential<'a>(&self, parts: &'a Parts) -> Option<&'a str> {
        credential::carried(parts, &self.named, &self.keys)
    }

    fn nobody(&self, parts: &Parts) -> Cow<'static, str> {
        if self.rules.iter().any(Rule::may_be_anonymous)
            && let Some(found) = self.credential(parts)
        {
            return format!(
                "the request carries a credential in {found}, which no rule of this route reads, \
                 so it is not anonymous either; leave it out, or add a rule for it"
            )
            .into();
        }
        let expected: Vec<_> = self.rules.iter().filter_map(Rule::expects).collect();
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

fn refuse(detail: Cow<'static, str>) -> Refusal {
    Refusal::detailed(Problem::CallerUnidentified, detail)
}

/// Somebody, nobody, or why what is there is of no use.
type Outcome = Result<Option<Caller>, Cow<'static, str>>;

/// What the first of these rules finds that finds anything.
fn first(
    rules: &[Rule],
    parts: &Parts,
    callers: &Callers,
) -> Result<Option<Identified>, Cow<'static, str>> {
    for rule in rules {
        let found = if let Rule::All(joined) = rule {
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

impl Rule {
    /// Whether only its caller can say what the rule looks at. A function looks at what the service
    /// has found out for itself.
    const fn proves(&self) -> bool {
        match self {
            Self::Authorization(_)
            | Self::Credential { .. }
            | Self::Cookie { .. }
            | Self::Function(_) => true,
            Self::Header { .. } | Self::Host | Self::Anonymous | Self::All(_) => false,
        }
    }

    fn may_be_anonymous(&self) -> bool {
        match self {
            Self::Anonymous => true,
            Self::All(parts) => parts.iter().any(Part::may_be_anonymous),
            Self::Authorization(_)
            | Self::Header { .. }
            | Self::Credential { .. }
            | Self::Cookie { .. }
            | Self::Host
            | Self::Function(_) => false,
        }
    }

    fn find(&self, parts: &Parts, callers: &Callers) -> Outcome {
        match self {
            Self::Authorization(secret) => {
                let Some(line) = only_line(parts, &header::AUTHORIZATION)? else { return Ok(None) };
                match authorization::read(line.as_bytes()) {
                    Credential::Stable { scheme, token } => {
                        let parts = [&b"authorization"[..], scheme.as_bytes(), token];
                        named_caller(&secret.name("auth:", &parts))
                    }
                    Credential::Unstable(what) => Err(format!(
                        "the Authorization header holds {what}, so a retry could not be told from \
                         another sender; send Basic or an opaque Bearer token. Who runs this \
                         service can name the senders of such credentials by a header that its own \
                         edge sets once it has verified them"
                    )
                    .into()),
                }
            }
            Self::Header { name, prefix } => match only_line(parts, name)? {
                Some(line) => plain(name, prefix, line),
                None => Ok(None),
            },
            Self::Credential { name, prefix, secret } => match only_line(parts, name)? {
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
            // Where it finds a credential another rule may still read that.
            Self::Anonymous => {
                let anonymous = callers.verified || callers.credential(parts).is_none();
                Ok(anonymous.then(Caller::anonymous))
            }
            Self::All(joined) => {
                Ok(all::identify(joined, parts, callers)?.map(|identified| identified.caller))
            }
        }
    }

    /// What to send, for whoever sent nothing.
    fn expects(&self) -> Option<String> {
        Some(match self {
            Self::Authorization(_) => {
                "an Authorization header with Basic or an opaque Bearer token".to_owned()
            }
            Self::Header { name, .. } | Self::Credential { name, .. } => {
                format!("a header {name}")
            }
            Self::Cookie { name, .. } => format!("a cookie {name}"),
            Self::Host => "a Host that is a name and not an IP address".to_owned(),
            Self::All(parts) => return all::expects(parts),
            Self::Anonymous | Self::Function(_) => return None,
        })
    }
}

/// A name after its prefix; if that is too long to be a caller's, its hash after another.
fn bounded(prefix: &str, hash_prefix: &str, name: &str) -> String {
    if prefix.len().saturating_add(name.len()) <= CALLER_BYTES_MAX {
        return [prefix, name].concat();
    }
    secret::hexadecimal(hash_prefix, &Sha256::digest(name))
}

fn named_caller(name: &str) -> Outcome {
    Caller::new(name).map(Some).map_err(|error| error.to_string().into())
}

fn plain(name: &HeaderName, prefix: &str, line: &HeaderValue) -> Outcome {
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
    format!("the header {name} is empty; it says who sends the request").into()
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

/// The one value of a cookie. An empty one is none: that is how a session is taken away.
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

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Authorization(_) => f.write_str("Authorization"),
            Self::Header { name, .. } => write!(f, "Header({name})"),
            Self::Credential { name, .. } => write!(f, "Credential({name})"),
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
