//! A small client for a server's API listener.

use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::{Serialize, de::DeserializeOwned};
use tokio::{net::TcpStream, sync::OnceCell, time::timeout};

use super::command_error::CommandError;
use semel_admin::{API_HEADER, responses::ProblemDocument};
use semel_config::BearerToken;

/// Environment variable with the operator token.
const TOKEN: &str = "SEMEL_OPERATOR_TOKEN";

/// Timeout of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// The largest answer that is read.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// A server's API listener.
pub(super) struct ApiClient {
    /// Host and port.
    authority: String,
    /// The token from the environment.
    token: Option<String>,
    /// Set once the server was verified to be an API listener.
    verified: OnceCell<()>,
}

/// Whether a request carries the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TokenUse {
    /// No token: any client that reaches the listener may read this.
    None,
    /// The operator's token, if there is one.
    Token,
}

impl ApiClient {
    pub(super) fn new(url: &str) -> anyhow::Result<Self> {
        let uri: Uri = url.parse().with_context(|| format!("--server: `{url}` is not a URL"))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => bail!(
                "--server: the API listener supports http only; use it from its own machine, \
                 or through a tunnel: ssh -L 8081:127.0.0.1:8081 HOST"
            ),
            _ => bail!("--server: write it like http://127.0.0.1:8081"),
        }
        let authority = uri.authority().context("--server: the URL has no host")?;
        let port = authority.port_u16().unwrap_or(80);
        let token = std::env::var_os(TOKEN).map(|token| token.to_string_lossy().into_owned());
        let token = token.filter(|token| !token.trim().is_empty());
        let authority = format!("{}:{port}", authority.host());
        Ok(Self { authority, token, verified: OnceCell::new() })
    }

    /// Reads without the token.
    pub(super) async fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, String)],
    ) -> Result<T, CommandError> {
        self.request(Method::GET, &path_with_query(path, query), Bytes::new(), TokenUse::None).await
    }

    /// Reads with the token, for what only operators may see.
    pub(super) async fn get_as_operator<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, String)],
    ) -> Result<T, CommandError> {
        self.request(Method::GET, &path_with_query(path, query), Bytes::new(), TokenUse::Token)
            .await
    }

    /// Sends a request that changes something.
    pub(super) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        request: &impl Serialize,
    ) -> Result<T, CommandError> {
        let body = serde_json::to_vec(request).map_err(anyhow::Error::from)?;
        self.request(Method::POST, path, body.into(), TokenUse::Token).await
    }

    async fn request<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        credential: TokenUse,
    ) -> Result<T, CommandError> {
        let token = match credential {
            TokenUse::None => None,
            TokenUse::Token => self.token().await?,
        };
        let response = self.exchange(method, path, body, token).await?;
        let (status, body) = (response.status(), response.body());
        if status.is_success() {
            let read = serde_json::from_slice(body);
            return Ok(read.map_err(|_| self.not_an_api("with an unexpected body"))?);
        }
        Err(self.refused(status, body))
    }

    /// The token to send. It is a secret, so the server is first verified to be an API listener:
    /// the port may belong to another program.
    async fn token(&self) -> anyhow::Result<Option<BearerToken>> {
        let Some(token) = &self.token else { return Ok(None) };
        let token = BearerToken::new(token);
        let token = token.map_err(|wrong| anyhow!("the environment variable {TOKEN} {wrong}"))?;
        let probe = async || {
            let response = self.exchange(Method::GET, "/healthz", Bytes::new(), None).await?;
            let verified = response.headers().contains_key(API_HEADER);
            if verified { Ok(()) } else { Err(self.not_an_api(response.status().as_str())) }
        };
        self.verified.get_or_try_init(probe).await?;
        Ok(Some(token))
    }

    fn not_an_api(&self, said: &str) -> anyhow::Error {
        anyhow!("{} answered {said}: is this an API listener?", self.authority)
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        token: Option<BearerToken>,
    ) -> anyhow::Result<Response<Bytes>> {
        let exchange = self.exchange_once(method, path, body, token);
        let timed_out = |_| anyhow!("the server at {} did not answer in time", self.authority);
        timeout(REQUEST_TIMEOUT, exchange).await.map_err(timed_out)?
    }

    async fn exchange_once(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        token: Option<BearerToken>,
    ) -> anyhow::Result<Response<Bytes>> {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, &self.authority)
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(BearerToken(token)) = token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(Full::new(body)).context("the request cannot be written")?;
        let stream = TcpStream::connect(&self.authority)
            .await
            .with_context(|| format!("the server at {} cannot be reached", self.authority))?;
        let broken = || format!("the connection to {} broke", self.authority);
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.with_context(broken)?;
        let connection = tokio::spawn(connection);
        let response = sender.send_request(request).await.with_context(broken)?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
        connection.abort();
        let body = body.map_err(|error| anyhow!(error)).with_context(broken)?;
        Ok(Response::from_parts(head, body.to_bytes()))
    }

    /// The error for a problem document.
    fn refused(&self, status: StatusCode, body: &[u8]) -> CommandError {
        let Ok(problem) = serde_json::from_slice::<ProblemDocument>(body) else {
            return self.not_an_api(status.as_str()).into();
        };
        match problem.slug() {
            "record-not-found" => CommandError::Absent,
            "record-stale" => CommandError::Stale(problem.detail),
            "operator-token-missing" => {
                let sent = if self.token.is_some() { "is not the server's" } else { "is not set" };
                anyhow!("the token in {TOKEN} {sent}: it must be the operator's").into()
            }
            _ => anyhow!("{}: {}", problem.title, problem.detail).into(),
        }
    }
}

fn path_with_query(path: &str, query: &[(&str, String)]) -> String {
    let pairs = query.iter().map(|(name, value)| format!("{name}={}", percent_encode(value)));
    format!("{path}?{}", pairs.collect::<Vec<_>>().join("&"))
}

/// A value in a query.
fn percent_encode(value: &str) -> String {
    value.bytes().fold(String::new(), |mut out, byte| {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                out.push(char::from(byte));
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_reached_by_http_only() {
        assert_eq!(ApiClient::new("http://127.0.0.1:8081").unwrap().authority, "127.0.0.1:8081");
        assert_eq!(ApiClient::new("http://[::1]:8081/").unwrap().authority, "[::1]:8081");
        assert_eq!(ApiClient::new("http://host").unwrap().authority, "host:80");
        for (bad, why) in
            [("https://h:1", "http only"), ("127.0.0.1:8081", "write it like"), ("", "not a URL")]
        {
            let error = ApiClient::new(bad).err().unwrap().to_string();
            assert!(error.contains(why), "{bad}: {error}");
        }
    }

    #[test]
    fn a_value_is_encoded() {
        assert_eq!(percent_encode("a-Z_0.~"), "a-Z_0.~");
        assert_eq!(percent_encode("a&b=c d%ë"), "a%26b%3Dc%20d%25%C3%AB");
    }
}
