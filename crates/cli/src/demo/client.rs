//! A well-behaved client: it has a timeout, and it retries with the same key.

use std::{fmt, net::SocketAddr, time::Duration};

use anyhow::Context as _;
use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::{
    net::TcpStream,
    task::JoinSet,
    time::{sleep, timeout},
};

use super::orders::Cents;

/// Timeout of one attempt.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// Delay between two attempts.
const RETRY_DELAY: Duration = Duration::from_millis(100);
/// Maximum number of attempts.
const ATTEMPTS_MAX: usize = 8;

/// The result of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AttemptResult {
    Answered(ReceivedAnswer),
    /// The connection ended without an answer.
    Nothing,
    TimedOut,
}

/// The relevant parts of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReceivedAnswer {
    pub(super) status: StatusCode,
    /// Whether `Idempotent-Replayed: true` is on it.
    pub(super) replayed: bool,
    /// What follows `urn:semel:problem:`, if it is a problem of Semel's.
    pub(super) problem: Option<String>,
    pub(super) body: Bytes,
    /// Whether it asks to be retried.
    pub(super) retry: bool,
}

/// A client.
#[derive(Debug)]
pub(super) struct PaymentClient {
    server: SocketAddr,
    answer_timeout: Duration,
}

/// A payment as the client sends it, in every attempt the same.
#[derive(Debug)]
pub(super) struct Payment<'a> {
    pub(super) key: &'a str,
    pub(super) customer: &'a str,
    pub(super) amount: Cents,
}

impl PaymentClient {
    /// A client of the payment API, or of the gateway in front of it, at this address.
    pub(super) const fn at(server: SocketAddr) -> Self {
        Self { server, answer_timeout: ANSWER_TIMEOUT }
    }

    /// Pays, and returns the result of each attempt.
    pub(super) async fn pay(&self, payment: &Payment<'_>) -> Vec<AttemptResult> {
        let mut attempts = Vec::new();
        loop {
            let heard = self.attempt(payment).await;
            let retry = heard.retry();
            attempts.push(heard);
            if !retry || attempts.len() == ATTEMPTS_MAX {
                return attempts;
            }
            sleep(RETRY_DELAY).await;
        }
    }

    async fn attempt(&self, payment: &Payment<'_>) -> AttemptResult {
        match timeout(self.answer_timeout, exchange(self.server, payment)).await {
            Ok(Ok(answer)) => AttemptResult::Answered(answer),
            Ok(Err(_)) => AttemptResult::Nothing,
            Err(_) => AttemptResult::TimedOut,
        }
    }
}

/// One request on a connection of its own.
async fn exchange(server: SocketAddr, payment: &Payment<'_>) -> anyhow::Result<ReceivedAnswer> {
    let Payment { key, customer, amount: Cents(cents) } = payment;
    let request = Request::post("/charges")
        .header(header::HOST, server.to_string())
        .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
        .header("Idempotency-Key", *key)
        .body(Full::<Bytes>::from(format!("customer={customer}&cents={cents}")))?;
    let stream = TcpStream::connect(server).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // Dropped with this future, so that giving up hangs up.
    let mut tasks = JoinSet::new();
    tasks.spawn(connection);
    let (head, body) = sender.send_request(request).await?.into_parts();
    let body = body.collect().await.context("the answer broke off")?.to_bytes();
    Ok(ReceivedAnswer {
        status: head.status,
        replayed: head.headers.get("Idempotent-Replayed").is_some_and(|value| value == "true"),
        problem: problem(&body),
        retry: head.status.is_server_error() || head.headers.contains_key(header::RETRY_AFTER),
        body,
    })
}

fn problem(body: &[u8]) -> Option<String> {
    let document: serde_json::Value = serde_json::from_slice(body).ok()?;
    let slug = document.get("type")?.as_str()?.strip_prefix("urn:semel:problem:")?;
    Some(slug.to_owned())
}

impl AttemptResult {
    /// Whether a good client tries again: it does not know that it succeeded or that it never will.
    fn retry(&self) -> bool {
        match self {
            Self::Answered(answer) => answer.retry,
            Self::Nothing | Self::TimedOut => true,
        }
    }

    pub(super) fn answer(&self) -> Option<&ReceivedAnswer> {
        match self {
            Self::Answered(answer) => Some(answer),
            Self::Nothing | Self::TimedOut => None,
        }
    }
}

impl fmt::Display for AttemptResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Answered(answer) = self else {
            return f.write_str(if *self == Self::TimedOut { "timed out" } else { "no answer" });
        };
        write!(f, "{}", answer.status.as_u16())?;
        if let Some(problem) = &answer.problem {
            write!(f, " {problem}")?;
        }
        if answer.replayed { f.write_str(" replayed") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use super::*;

    /// Serves these answers, one connection each, and returns what the requests were.
    async fn serve(listener: TcpListener, answers: &[&str]) -> Vec<String> {
        let mut requests = Vec::new();
        for answer in answers {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"cents=5") {
                assert_ne!(stream.read_buf(&mut request).await.unwrap(), 0);
            }
            stream.write_all(answer.as_bytes()).await.unwrap();
            requests.push(String::from_utf8(request).unwrap());
        }
        requests
    }

    #[tokio::test]
    async fn a_client_repeats_the_same_request_until_it_has_a_final_answer() {
        let problem = r#"{"type":"urn:semel:problem:in-progress"}"#;
        let length = problem.len();
        let answers = [
            "",
            "HTTP/1.1 504 Late\r\nContent-Length: 0\r\n\r\n",
            &format!(
                "HTTP/1.1 409 Busy\r\nRetry-After: 1\r\nContent-Length: {length}\r\n\r\n{problem}"
            ),
            "HTTP/1.1 201 Created\r\nIdempotent-Replayed: true\r\nContent-Length: 2\r\n\r\nok",
        ];
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let answer_timeout = Duration::from_secs(60);
        let client = PaymentClient { server: listener.local_addr().unwrap(), answer_timeout };
        let payment = Payment { key: "k", customer: "ann", amount: Cents(5) };
        let (attempts, requests) = tokio::join!(client.pay(&payment), serve(listener, &answers));

        let heard: Vec<_> = attempts.iter().map(ToString::to_string).collect();
        assert_eq!(heard, ["no answer", "504", "409 in-progress", "201 replayed"]);
        assert_eq!(attempts[3].answer().unwrap().body, "ok");
        assert!(requests[0].contains("idempotency-key: k\r\n"), "{}", requests[0]);
        assert!(requests.iter().all(|request| *request == requests[0]), "{requests:?}");
    }

    #[tokio::test]
    async fn a_client_hangs_up_after_its_timeout() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let client = PaymentClient::at(listener.local_addr().unwrap());
        let payment = Payment { key: "k", customer: "ann", amount: Cents(5) };
        let never = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            stream.read_to_end(&mut request).await.unwrap()
        };
        let (heard, length) = tokio::join!(client.attempt(&payment), never);
        assert_eq!(heard, AttemptResult::TimedOut);
        assert_ne!(length, 0);
    }
}
