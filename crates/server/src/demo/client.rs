//! A client as good clients are: it waits only so long, and it retries with the same key.

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

/// How long it waits for an answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long it waits before it tries again.
const PAUSE: Duration = Duration::from_millis(100);
/// How often it tries.
const TRIES_MAX: usize = 8;

/// What one attempt came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    Answer(Answer),
    /// The connection ended without an answer.
    Nothing,
    TimedOut,
}

/// An answer, as much of it as the story needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
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
pub(super) struct Client {
    server: SocketAddr,
    patience: Duration,
}

/// A payment as the client sends it, in every attempt the same.
#[derive(Debug)]
pub(super) struct Payment<'a> {
    pub(super) key: &'a str,
    pub(super) customer: &'a str,
    pub(super) amount: Cents,
}

impl Client {
    /// One that reaches the payment API, or what stands in front of it, at this address.
    pub(super) const fn at(server: SocketAddr) -> Self {
        Self { server, patience: PATIENCE }
    }

    /// Pays, and returns what each attempt came to, the last one at the end.
    pub(super) async fn pay(&self, payment: &Payment<'_>) -> Vec<Heard> {
        let mut tries = Vec::new();
        loop {
            let heard = self.attempt(payment).await;
            let retry = heard.retry();
            tries.push(heard);
            if !retry || tries.len() == TRIES_MAX {
                return tries;
            }
            sleep(PAUSE).await;
        }
    }

    async fn attempt(&self, payment: &Payment<'_>) -> Heard {
        match timeout(self.patience, exchange(self.server, payment)).await {
            Ok(Ok(answer)) => Heard::Answer(answer),
            Ok(Err(_)) => Heard::Nothing,
            Err(_) => Heard::TimedOut,
        }
    }
}

/// One request on a connection of its own.
async fn exchange(server: SocketAddr, payment: &Payment<'_>) -> anyhow::Result<Answer> {
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
    Ok(Answer {
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

impl Heard {
    /// Whether a good client tries again: it does not know that it succeeded or that it never will.
    fn retry(&self) -> bool {
        match self {
            Self::Answer(answer) => answer.retry,
            Self::Nothing | Self::TimedOut => true,
        }
    }

    pub(super) fn answer(&self) -> Option<&Answer> {
        match self {
            Self::Answer(answer) => Some(answer),
            Self::Nothing | Self::TimedOut => None,
        }
    }
}

impl fmt::Display for Heard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Answer(answer) = self else {
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
    async fn it_sends_the_same_request_until_it_knows() {
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
        let patience = Duration::from_secs(60);
        let client = Client { server: listener.local_addr().unwrap(), patience };
        let payment = Payment { key: "k", customer: "ann", amount: Cents(5) };
        let (tries, requests) = tokio::join!(client.pay(&payment), serve(listener, &answers));

        let heard: Vec<_> = tries.iter().map(ToString::to_string).collect();
        assert_eq!(heard, ["no answer", "504", "409 in-progress", "201 replayed"]);
        assert_eq!(tries[3].answer().unwrap().body, "ok");
        assert!(requests[0].contains("idempotency-key: k\r\n"), "{}", requests[0]);
        assert!(requests.iter().all(|request| *request == requests[0]), "{requests:?}");
    }

    #[tokio::test]
    async fn it_gives_up_waiting_and_hangs_up() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let client = Client::at(listener.local_addr().unwrap());
        let payment = Payment { key: "k", customer: "ann", amount: Cents(5) };
        let never = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            stream.read_to_end(&mut request).await.unwrap()
        };
        let (heard, length) = tokio::join!(client.attempt(&payment), never);
        assert_eq!(heard, Heard::TimedOut);
        assert_ne!(length, 0);
    }
}
