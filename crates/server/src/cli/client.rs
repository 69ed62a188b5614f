//! A small client for a server's API listener.

use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use bytes::Bytes;
use http::{Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::{Serialize, de::DeserializeOwned};
use tokio::{net::TcpStream, time::timeout};

use super::failure::Failure;
use crate::api::view::Problem;

/// Where the operator's token is.
const TOKEN: &str = "SEMEL_OPERATOR_TOKEN";

/// How long a server may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// The largest answer that is read.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// A server's API listener.
pub(super) struct Client {
    /// Host and port.
    authority: String,
    token: Option<String>,
}

impl Client {
    pub(super) fn new(url: &str) -> anyhow::Result<Self> {
        let uri: Uri = url.parse().with_context(|| format!("--server: `{url}` is no URL"))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => bail!(
                "--server: the API listener speaks http only; reach it from its own machine, \
                 or through a tunnel: ssh -L 8081:127.0.0.1:8081 HOST"
            ),
            _ => bail!("--server: write it like http://127.0.0.1:8081"),
        }
        let authority = uri.authority().context("--server: the URL has no host")?;
        let port = authority.port_u16().unwrap_or(80);
        let token = std::env::var_os(TOKEN).map(|token| token.to_string_lossy().into_owned());
        let token = token.filter(|token| !token.is_empty());
        Ok(Self { authority: format!("{}:{port}", authority.host()), token })
    }

    pub(super) async fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, String)],
    ) -> Result<T, Failure> {
        let pairs = query.iter().map(|(name, value)| format!("{name}={}", encoded(value)));
        let path = format!("{path}?{}", pairs.collect::<Vec<_>>().join("&"));
        self.ask(Method::GET, &path, Bytes::new()).await
    }

    pub(super) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        form: &impl Serialize,
    ) -> Result<T, Failure> {
        let body = serde_json::to_vec(form).map_err(anyhow::Error::from)?;
        self.ask(Method::POST, path, body.into()).await
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<T, Failure> {
        let answer = timeout(PATIENCE, self.exchange(method, path, body)).await;
        let late = |_| anyhow!("the server at {} did not answer in time", self.authority);
        let (status, body) = answer.map_err(late)??;
        if status.is_success() {
            let read = serde_json::from_slice(&body);
            return Ok(read.context("the server's answer cannot be read")?);
        }
        Err(self.refused(status, &body))
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> anyhow::Result<(StatusCode, Bytes)> {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, &self.authority)
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(token) = &self.token {
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
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        connection.abort();
        let body = body.map_err(|error| anyhow!(error)).with_context(broken)?;
        Ok((status, body.to_bytes()))
    }

    /// What a server's problem means here.
    fn refused(&self, status: StatusCode, body: &[u8]) -> Failure {
        let Ok(problem) = serde_json::from_slice::<Problem>(body) else {
            let authority = &self.authority;
            return anyhow!("{authority} answered {status}: is this an API listener?").into();
        };
        match problem.slug() {
            "record-absent" => Failure::Absent,
            "record-stale" => Failure::Stale(problem.detail),
            "operator-token-missing" => {
                let sent = if self.token.is_some() { "is not the server's" } else { "is not set" };
                anyhow!("the token in {TOKEN} {sent}: it must be the operator's").into()
            }
            _ => anyhow!("{}: {}", problem.title, problem.detail).into(),
        }
    }
}

/// A value in a query.
fn encoded(value: &str) -> String {
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
        assert_eq!(Client::new("http://127.0.0.1:8081").unwrap().authority, "127.0.0.1:8081");
        assert_eq!(Client::new("http://[::1]:8081/").unwrap().authority, "[::1]:8081");
        assert_eq!(Client::new("http://host").unwrap().authority, "host:80");
        for (bad, why) in
            [("https://h:1", "http only"), ("127.0.0.1:8081", "write it like"), ("", "no URL")]
        {
            let error = Client::new(bad).err().unwrap().to_string();
            assert!(error.contains(why), "{bad}: {error}");
        }
    }

    #[test]
    fn a_value_is_encoded() {
        assert_eq!(encoded("a-Z_0.~"), "a-Z_0.~");
        assert_eq!(encoded("a&b=c d%ë"), "a%26b%3Dc%20d%25%C3%AB");
    }
}
