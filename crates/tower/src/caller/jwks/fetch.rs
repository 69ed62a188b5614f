//! Fetches a key set from a URL, in the background.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls_pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::{sleep, timeout},
};
use tokio_rustls::{
    TlsConnector,
    rustls::{ClientConfig, RootCertStore, crypto::aws_lc_rs},
};

use super::{JWKS_BYTES_MAX, Jwks, JwksError, JwksState, KeySet, REFRESH_INTERVAL_MIN};

/// Timeout of one attempt, from the name lookup to the last byte.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a set is used before it is fetched again, where the issuer does not say.
const MAX_AGE_DEFAULT: Duration = Duration::from_secs(300);

/// The limits on what an issuer may say.
const MAX_AGE_MIN: Duration = Duration::from_secs(60);
const MAX_AGE_MAX: Duration = Duration::from_secs(3600);

/// The longest wait after a failed attempt.
const BACKOFF_MAX: Duration = Duration::from_secs(60);

impl Jwks {
    /// The keys at this URL, fetched in the background: now, when the `max-age` of the answer has
    /// passed (between one minute and one hour; five minutes by default), and when a token names a
    /// key that is not in the set, at most every five seconds. Must be called in a tokio runtime.
    ///
    /// Until the first answer, and until the set was fetched after a token had named an unknown
    /// key, requests wait two seconds and are then refused with 503 `caller-unavailable`.
    ///
    /// # Errors
    ///
    /// If it is not an `https://` URL (`http://` is accepted for this machine), or if the system
    /// has no CA certificates.
    pub fn url(url: &str) -> Result<Self, JwksError> {
        let fetcher = Fetcher::new(url)?;
        let state = Arc::new(JwksState::new(url, true));
        let task = refresh(Arc::clone(&state), fetcher);
        Ok(Self::with_task(state, tokio::spawn(task)))
    }
}

/// Checks the URL of a key set, without fetching it.
///
/// # Errors
///
/// What is wrong with it.
pub fn check_jwks_url(url: &str) -> Result<(), JwksError> {
    parse_url(url).map(|_| ())
}

/// Fetches one URL.
struct Fetcher {
    uri: Uri,
    host: String,
    port: u16,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

fn parse_url(url: &str) -> Result<(Uri, bool), JwksError> {
    let wrong = |what: &str| JwksError(format!("the URL of a key set {what}"));
    let uri: Uri = url.parse().map_err(|error| wrong(&format!("is invalid: {error}")))?;
    let authority = uri.authority().ok_or_else(|| wrong("has no host"))?;
    if authority.as_str().contains('@') {
        return Err(wrong("has a password, which would be logged"));
    }
    let tls = match uri.scheme_str() {
        Some("https") => true,
        Some("http") if is_loopback(authority.host()) => false,
        Some("http") => {
            return Err(wrong(
                "must be https://, because the answer decides which tokens are valid; \
                 http:// is only for this machine",
            ));
        }
        _ => return Err(wrong("must be https://")),
    };
    Ok((uri, tls))
}

fn is_loopback(host: &str) -> bool {
    let host = host.trim_matches(['[', ']']);
    let address = host.parse::<std::net::IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

impl Fetcher {
    fn new(url: &str) -> Result<Self, JwksError> {
        let (uri, tls) = parse_url(url)?;
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let port = uri.port_u16().unwrap_or(if tls { 443 } else { 80 });
        let tls = if tls { Some(tls_connector(&host)?) } else { None };
        Ok(Self { uri, host, port, tls })
    }

    async fn fetch(&self) -> Result<(KeySet, Duration), JwksError> {
        match timeout(FETCH_TIMEOUT, self.fetch_unbounded()).await {
            Ok(result) => result,
            Err(_) => Err(JwksError(format!("no answer within {FETCH_TIMEOUT:?}"))),
        }
    }

    async fn fetch_unbounded(&self) -> Result<(KeySet, Duration), JwksError> {
        let connected = TcpStream::connect((self.host.as_str(), self.port)).await;
        let stream = connected.map_err(|error| JwksError(format!("cannot connect: {error}")))?;
        match &self.tls {
            None => self.request(stream).await,
            Some((connector, name)) => {
                let stream = connector.connect(name.clone(), stream).await;
                let failed = |error| JwksError(format!("the TLS handshake failed: {error}"));
                self.request(stream.map_err(failed)?).await
            }
        }
    }

    async fn request<T>(&self, stream: T) -> Result<(KeySet, Duration), JwksError>
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let failed = |error: hyper::Error| JwksError(format!("the request failed: {error}"));
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
        let driver = tokio::spawn(connection);
        let authority = self.uri.authority().map_or("", |authority| authority.as_str());
        let path = self.uri.path_and_query().map_or("/", |path| path.as_str());
        let request = Request::get(path)
            .header(header::HOST, authority)
            .header(header::ACCEPT, "application/jwk-set+json, application/json")
            .header(header::CONNECTION, "close")
            .body(Empty::<Bytes>::new())
            .map_err(|error| JwksError(error.to_string()))?;
        let response = sender.send_request(request).await.map_err(failed)?;
        let (head, body) = response.into_parts();
        if head.status != StatusCode::OK {
            return Err(JwksError(format!("the issuer answered {}", head.status.as_u16())));
        }
        let body = Limited::new(body, JWKS_BYTES_MAX).collect().await;
        driver.abort();
        let body = body.map_err(|error| JwksError(format!("the answer is unusable: {error}")))?;
        Ok((KeySet::parse(&body.to_bytes())?, max_age(&head.headers)))
    }
}

fn tls_connector(host: &str) -> Result<(TlsConnector, ServerName<'static>), JwksError> {
    let name = ServerName::try_from(host.to_owned())
        .map_err(|_| JwksError(format!("{host} is not a valid name for a certificate")))?;
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err(JwksError("the system has no CA certificates".to_owned()));
    }
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| JwksError(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok((TlsConnector::from(Arc::new(config)), name))
}

/// How long an answer may be used.
fn max_age(headers: &HeaderMap) -> Duration {
    let lines = headers.get_all(header::CACHE_CONTROL).iter().filter_map(|line| line.to_str().ok());
    let mut directives = lines.flat_map(|line| line.split(',')).map(str::trim);
    let seconds = directives.find_map(|directive| {
        let (name, value) = directive.split_once('=')?;
        name.eq_ignore_ascii_case("max-age").then(|| value.trim_matches('"').parse().ok())?
    });
    let age = seconds.map_or(MAX_AGE_DEFAULT, Duration::from_secs);
    age.clamp(MAX_AGE_MIN, MAX_AGE_MAX)
}

/// Fetches the set on schedule and on demand, with a minimum time between two attempts.
async fn refresh(state: Arc<JwksState>, fetcher: Fetcher) {
    let mut backoff = REFRESH_INTERVAL_MIN;
    loop {
        let (result, next) = match fetcher.fetch().await {
            Ok((set, max_age)) => (Ok(set), max_age),
            Err(error) => (Err(error), backoff),
        };
        backoff = if state.apply_refresh(result) {
            REFRESH_INTERVAL_MIN
        } else {
            backoff.saturating_mul(2).min(BACKOFF_MAX)
        };
        sleep(REFRESH_INTERVAL_MIN).await;
        tokio::select! {
            () = sleep(next.saturating_sub(REFRESH_INTERVAL_MIN)) => {}
            () = state.refresh_wanted.notified() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_may_answer_without_tls() {
        for url in ["https://issuer.example/jwks", "http://127.0.0.1:1/j", "http://[::1]/j"] {
            assert!(check_jwks_url(url).is_ok(), "{url}");
        }
        for url in [
            "http://issuer.example/jwks",
            "ftp://127.0.0.1/",
            "issuer.example/jwks",
            "https://user:password@issuer.example/",
            "http://127.0.0.1.example/",
        ] {
            assert!(check_jwks_url(url).is_err(), "{url}");
        }
    }

    #[test]
    fn the_cache_lifetime_of_an_issuer_is_bounded() {
        let age = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CACHE_CONTROL, value.parse().unwrap());
            max_age(&headers).as_secs()
        };
        assert_eq!(age("public, max-age=600"), 600);
        assert_eq!(age("max-age=1"), 60);
        assert_eq!(age("max-age=99999999"), 3600);
        assert_eq!(age("no-store"), 300);
        assert_eq!(max_age(&HeaderMap::new()).as_secs(), 300);
    }
}
