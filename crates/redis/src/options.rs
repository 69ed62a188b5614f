//! Where Redis is and how to get there, from a URL.

use std::{fmt, fs, path::PathBuf, sync::Arc, time::Duration};

use redis::{Client, ConnectionAddr, ConnectionInfo, ProtocolVersion, TlsCertificates};
use semel_core::{StoreError, StoreErrorKind};
use tokio_rustls::rustls::crypto::{CryptoProvider, aws_lc_rs};

use crate::clock::Clock;

const PREFIX: &str = "semel";
const PREFIX_BYTES_MAX: usize = 64;

/// Where Redis is: `redis://[user:password@]host[:port][/database]`, `rediss://…` for TLS, and
/// after a question mark:
///
/// * `prefix=semel`: what every key and channel begins with, for servers that others use too;
/// * `sslrootcert=PATH`: the authority that signed the server's certificate, in place of those that
///   the machine trusts.
///
/// ```
/// use semel_redis::Options;
///
/// let options = Options::parse("rediss://semel:secret@cache:6380/0?prefix=payments")?;
/// assert!(!format!("{options:?}").contains("secret"));
/// assert!(Options::parse("redis://cache?prefx=payments").is_err());
/// # Ok::<(), semel_redis::UrlError>(())
/// ```
#[derive(Clone)]
pub struct Options {
    address: ConnectionInfo,
    authority: Option<PathBuf>,
    pub(crate) prefix: Arc<str>,
    pub(crate) clock: Clock,
    pub(crate) asked_only: bool,
}

/// Why a URL does not say where Redis is. It never repeats a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UrlError {
    /// Another scheme.
    #[error("a cache is given as redis://HOST or rediss://HOST")]
    Scheme,
    /// The host, port, database or credentials cannot be read.
    #[error("the cache's URL cannot be read: {0}")]
    Malformed(String),
    /// A parameter that is not known.
    #[error("the cache's URL has an unknown parameter `{name}`; did you mean `{meant}`?")]
    Unknown {
        /// As it was written.
        name: String,
        /// The nearest one that exists.
        meant: &'static str,
    },
    /// A prefix that would not be safe in a key.
    #[error("`{0}` cannot be a prefix: use 1 to 64 of a-z, A-Z, 0-9, `.`, `_`, `:` and `-`")]
    Prefix(String),
    /// An authority for a connection that has no TLS.
    #[error("`sslrootcert` needs rediss://")]
    AuthorityWithoutTls,
}

const PARAMETERS: [&str; 2] = ["prefix", "sslrootcert"];

impl Options {
    /// Reads a URL.
    pub fn parse(url: &str) -> Result<Self, UrlError> {
        let tls = url.starts_with("rediss://");
        if !tls && !url.starts_with("redis://") {
            return Err(UrlError::Scheme);
        }
        if url.contains('#') {
            // What the client would read there is whether to skip the check of certificates.
            return Err(UrlError::Malformed("it may not have a fragment".into()));
        }
        let (address, parameters) = url.split_once('?').unwrap_or((url, ""));
        let address: ConnectionInfo = address
            .parse()
            .map_err(|error: redis::RedisError| UrlError::Malformed(error.to_string()))?;
        let settings = address.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let wire = address.tcp_settings().clone().set_nodelay(true);
        let address = address.set_redis_settings(settings).set_tcp_settings(wire);
        let (prefix, clock) = (PREFIX.into(), Clock::default());
        let mut options = Self { address, authority: None, prefix, clock, asked_only: false };
        for parameter in parameters.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            match name {
                "prefix" => options.prefix = prefix_of(value)?,
                "sslrootcert" if tls => options.authority = Some(value.into()),
                "sslrootcert" => return Err(UrlError::AuthorityWithoutTls),
                _ => return Err(unknown(name)),
            }
        }
        Ok(options)
    }

    /// The same on another clock, which all fronts must share. For tests: where clocks agree there
    /// is no margin, and nothing is hinted that may be late.
    #[doc(hidden)]
    #[must_use]
    pub fn on_clock(mut self, clock: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        self.clock = Clock::exact(clock);
        self
    }

    /// The same, but an answer is written only once the store was asked for it. For tests that
    /// claim several times with one owner token: when such a record was first claimed cannot be
    /// known.
    #[doc(hidden)]
    #[must_use]
    pub const fn asked_only(mut self) -> Self {
        self.asked_only = true;
        self
    }

    pub(crate) fn client(&self) -> Result<Client, StoreError> {
        let wrong = |error: redis::RedisError| {
            let message = format!("the cache cannot be reached like this: {error}");
            StoreError::new(StoreErrorKind::Unavailable, message)
        };
        if !matches!(self.address.addr(), ConnectionAddr::TcpTls { .. }) {
            return Client::open(self.address.clone()).map_err(wrong);
        }
        if CryptoProvider::get_default().is_none() {
            // The client asks for the process's own, and a program that has none means any. Of two
            // that install one at once, one loses, which is as well.
            let _ = aws_lc_rs::default_provider().install_default();
        }
        let root_cert = match &self.authority {
            None => None,
            Some(path) => Some(fs::read(path).map_err(|error| {
                let message = format!("the authority in {} cannot be read", path.display());
                StoreError::new(StoreErrorKind::Unavailable, message).because(error)
            })?),
        };
        let certificates = TlsCertificates { client_tls: None, root_cert };
        Client::build_with_tls(self.address.clone(), certificates).map_err(wrong)
    }
}

fn prefix_of(value: &str) -> Result<Arc<str>, UrlError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
    let good = (1..=PREFIX_BYTES_MAX).contains(&value.len()) && value.bytes().all(allowed);
    if good { Ok(value.into()) } else { Err(UrlError::Prefix(value.to_owned())) }
}

fn unknown(name: &str) -> UrlError {
    let likeness = |known: &&str| (strsim::jaro_winkler(name, known) * 1000.0) as u32;
    let meant = PARAMETERS.into_iter().max_by_key(likeness).unwrap_or_default();
    UrlError::Unknown { name: name.to_owned(), meant }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("address", &self.to_string())
            .field("authority", &self.authority)
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for Options {
    /// The address, without credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.addr().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_read_with_what_is_ours_in_it() {
        let options = Options::parse("redis://semel:secret@cache:7000/3?prefix=pay.eu").unwrap();
        assert_eq!(options.to_string(), "cache:7000");
        assert_eq!(options.address.redis_settings().db(), 3);
        assert_eq!(options.address.redis_settings().username(), Some("semel"));
        assert_eq!(&*options.prefix, "pay.eu");
        assert_eq!(&*Options::parse("redis://cache").unwrap().prefix, "semel");
        let options = Options::parse("rediss://cache?sslrootcert=/etc/ca.pem").unwrap();
        assert_eq!(options.authority, Some("/etc/ca.pem".into()));
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        let error = |url: &str| Options::parse(url).unwrap_err();
        assert_eq!(error("memcached://cache"), UrlError::Scheme);
        assert_eq!(error("redis://cache?sslrootcert=ca.pem"), UrlError::AuthorityWithoutTls);
        assert_eq!(error("redis://cache?prefix="), UrlError::Prefix(String::new()));
        assert_eq!(error("redis://cache?prefix=a%20b"), UrlError::Prefix("a%20b".into()));
        let unknown = UrlError::Unknown { name: "sslroot".into(), meant: "sslrootcert" };
        assert_eq!(error("rediss://cache?sslroot=x"), unknown);
        for url in ["redis://", "redis://cache/seven", "rediss://cache#insecure"] {
            assert!(matches!(error(url), UrlError::Malformed(_)), "{url}");
        }
    }

    #[test]
    fn a_password_is_never_printed() {
        for url in ["redis://semel:hunter2@cache", "redis://:hunter2@cache/none?x=1"] {
            let printed = format!("{:?}", Options::parse(url));
            assert!(!printed.contains("hunter2"), "{printed}");
        }
    }

    #[test]
    fn an_authority_that_is_not_there_is_named() {
        let options = Options::parse("rediss://cache?sslrootcert=/missing/ca.pem").unwrap();
        assert!(options.client().unwrap_err().to_string().contains("/missing/ca.pem"));
    }
}
