//! Reads the parts of a request that caller rules use, and words their refusals.

use http::{HeaderName, HeaderValue, header, request::Parts};
use semel::core::{Caller, caller::CALLER_BYTES_MAX};
use sha2::{Digest as _, Sha256};

use super::{
    CallerRefusal, Identification, authorization,
    credential::{self, CredentialKind, CredentialLocation},
    secret,
};

/// Why a request is not anonymous, and the rule that the route would need.
pub(super) fn not_anonymous(found: CredentialLocation<'_>) -> String {
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

/// Why a credential that changes cannot name a caller, and the rule that the route would need.
pub(super) fn unstable(line: &HeaderValue, what: &str) -> String {
    let hint = if authorization::bearer_jwt(line.as_bytes()).is_some() {
        "verify the token instead: caller = [{ jwt = { jwks = \"https://ISSUER/jwks.json\", \
         issuer = \"https://ISSUER\", audience = \"AUDIENCE\" } }]"
    } else {
        "identify such callers by a header that its own gateway sets after it has verified the \
         credential"
    };
    format!(
        "the Authorization header contains {what}, so a retry would look like another caller; \
         send Basic or an opaque Bearer token. The operator of this service can {hint}"
    )
}

/// A name after its prefix; if that is too long for a caller, its hash after another prefix.
pub(super) fn bounded(prefix: &str, hash_prefix: &str, name: &str) -> String {
    if prefix.len().saturating_add(name.len()) <= CALLER_BYTES_MAX {
        return [prefix, name].concat();
    }
    secret::hexadecimal(hash_prefix, &Sha256::digest(name))
}

pub(super) fn named_caller(name: &str) -> Identification {
    Caller::new(name).map(Some).map_err(|error| error.to_string().into())
}

pub(super) fn plain(name: &HeaderName, prefix: &str, line: &HeaderValue) -> Identification {
    let value = line.as_bytes().trim_ascii();
    if value.is_empty() {
        return Err(empty(name));
    }
    let text = str::from_utf8(value).map_err(|_| format!("the header {name} is not UTF-8"))?;
    Caller::new(&[prefix, text].concat())
        .map(Some)
        .map_err(|error| format!("the header {name} cannot name a caller: {error}").into())
}

pub(super) fn empty(name: &HeaderName) -> CallerRefusal {
    format!("the header {name} is empty; it says who sends the request").into()
}

pub(super) fn only_line<'a>(
    parts: &'a Parts,
    name: &HeaderName,
) -> Result<Option<&'a HeaderValue>, CallerRefusal> {
    let mut lines = parts.headers.get_all(name).iter();
    match (lines.next(), lines.next()) {
        (_, Some(_)) => Err(format!("the header {name} was sent more than once").into()),
        (line, None) => Ok(line),
    }
}

/// The single value of a cookie. An empty one counts as absent: that is how a session is deleted.
pub(super) fn only_cookie<'a>(
    parts: &'a Parts,
    name: &str,
) -> Result<Option<&'a [u8]>, CallerRefusal> {
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
