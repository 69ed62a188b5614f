//! The connection options of Redis, from a URL.

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use redis::{Client, ConnectionInfo, ProtocolVersion};
use semel_core::{StoreError, StoreErrorKind};

use crate::clock::EntryClock;

const PREFIX: &str = "semel";
const PREFIX_BYTES_MAX: usize = 64;

/// The URL of Redis: `redis://[user:password@]host[:port][/database]`, `rediss://…` for TLS, and
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
/// # Ok::<(), semel_redis::RedisUrlError>(())
/// ```
#[derive(Clone)]
pub struct Options {
    address: ConnectionInfo,
    authority: Option<PathBuf>,
    pub(crate) prefix: Arc<str>,
    pub(crate) clock: EntryClock,
    pub(crate) cache_on_claim_only: bool,
}

/// Why a URL is invalid. It never contains a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RedisUrlError {
    /// Another scheme.
    #[error("a cache is given as redis://HOST or rediss://HOST")]
    Scheme,
    /// The host, port, database or credentials cannot be read.
    #[error("the cache's URL cannot be read: {0}")]
    Malformed(String),
    /// An unknown parameter.
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
    pub fn parse(url: &str) -> Result<Self, RedisUrlError> {
        let tls = url.starts_with("rediss://");
        if !tls && !url.starts_with("redis://") {
            return Err(RedisUrlError::Scheme);
        }
        if url.contains('#') {
            // The client would read from it whether to skip the check of certificates.
            return Err(RedisUrlError::Malformed("it may not have a fragment".into()));
        }
        let (address, parameters) = url.split_once('?').unwrap_or((url, ""));
        let address: ConnectionInfo = address
            .parse()
            .map_err(|error: redis::RedisError| RedisUrlError::Malformed(error.to_string()))?;
        let settings = address.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let wire = address.tcp_settings().clone().set_nodelay(true);
        let address = address.set_redis_settings(settings).set_tcp_settings(wire);
        let (prefix, clock) = (PREFIX.into(), EntryClock::default());
        let mut options =
            Self { address, authority: None, prefix, clock, cache_on_claim_only: false };
        for parameter in parameters.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            match name {
                "prefix" => options.prefix = prefix_of(value)?,
                "sslrootcert" if tls => options.authority = Some(value.into()),
                "sslrootcert" => return Err(RedisUrlError::AuthorityWithoutTls),
                _ => return Err(unknown(name)),
            }
        }
        Ok(options)
    }

    /// Uses another clock, which all caches must share. For tests: a shared clock needs no margin,
    /// and there are no hints that may be late.
    #[doc(hidden)]
    #[must_use]
    pub fn on_clock(mut self, clock: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        self.clock = EntryClock::exact(clock);
        self
    }

    /// Caches an answer only after a claim in the store returned it. For tests that claim several
    /// times with one owner token: when such a record was first claimed is unknown.
    #[doc(hidden)]
    #[must_use]
    pub const fn cache_on_claim_only(mut self) -> Self {
        self.cache_on_claim_only = true;
        self
    }

    pub(crate) fn client(&self) -> Result<Client, StoreError> {
        let wrong = |error: redis::RedisError| {
            let message = format!("invalid cache options: {error}");
            StoreError::new(StoreErrorKind::Unavailable, message)
        };
        #[cfg(feature = "tls")]
        if matches!(self.address.addr(), redis::ConnectionAddr::TcpTls { .. }) {
            let certificates =
                redis::TlsCertificates { client_tls: None, root_cert: self.root_certificate()? };
            return Client::build_with_tls(self.address.clone(), certificates).map_err(wrong);
        }
        Client::open(self.address.clone()).map_err(wrong)
    }

    #[cfg(feature = "tls")]
    fn root_certificate(&self) -> Result<Option<Vec<u8>>, StoreError> {
        use tokio_rustls::rustls::crypto::{CryptoProvider, aws_lc_rs};

        if CryptoProvider::get_default().is_none() {
            // The client requires a process-wide provider. If two threads install one at once, one
            // of them fails, which is fine.
            let _ = aws_lc_rs::default_provider().install_default();
        }
        let Some(path) = &self.authority else { return Ok(None) };
        std::fs::read(path).map(Some).map_err(|error| {
            let message = format!("the authority in {} cannot be read", path.display());
            StoreError::new(StoreErrorKind::Unavailable, message).because(error)
        })
    }
}

fn prefix_of(value: &str) -> Result<Arc<str>, RedisUrlError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
    let good = (1..=PREFIX_BYTES_MAX).contains(&value.len()) && value.bytes().all(allowed);
    if good { Ok(value.into()) } else { Err(RedisUrlError::Prefix(value.to_owned())) }
}

fn unknown(name: &str) -> RedisUrlError {
    let likeness = |known: &&str| (strsim::jaro_winkler(name, known) * 1000.0) as u32;
    let meant = PARAMETERS.into_iter().max_by_key(likeness).unwrap_or_default();
    RedisUrlError::Unknown { name: name.to_owned(), meant }
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
    fn a_url_is_parsed_with_its_parameters() {
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
    fn an_invalid_url_is_refused() {
        let error = |url: &str| Options::parse(url).unwrap_err();
        assert_eq!(error("memcached://cache"), RedisUrlError::Scheme);
        assert_eq!(error("redis://cache?sslrootcert=ca.pem"), RedisUrlError::AuthorityWithoutTls);
        assert_eq!(error("redis://cache?prefix="), RedisUrlError::Prefix(String::new()));
        assert_eq!(error("redis://cache?prefix=a%20b"), RedisUrlError::Prefix("a%20b".into()));
        let unknown = RedisUrlError::Unknown { name: "sslroot".into(), meant: "sslrootcert" };
        assert_eq!(error("rediss://cache?sslroot=x"), unknown);
        for url in ["redis://", "redis://cache/seven", "rediss://cache#insecure"] {
            assert!(matches!(error(url), RedisUrlError::Malformed(_)), "{url}");
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
