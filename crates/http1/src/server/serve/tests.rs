//! Timeouts of a connection.

use http_body_util::{BodyExt as _, Full};
use tokio::{
    io::{AsyncReadExt as _, DuplexStream, duplex},
    time::sleep,
};

use super::*;
use crate::decode::Decoder;

const LIMITS: ConnectionLimits = ConnectionLimits {
    header_bytes: 1024,
    headers: 10,
    header_timeout: Duration::from_secs(10),
    body_timeout: Duration::from_secs(30),
};

/// Refuses what is invalid, and gets no valid request here.
struct TestService;

impl Http1Service for TestService {
    type Body = Full<Bytes>;
    type ActiveRequest = ();

    fn limits(&self) -> ConnectionLimits {
        LIMITS
    }

    fn on_input(&self) {}

    fn begin(&self) -> Option<()> {
        Some(())
    }

    async fn respond(&self, _: Request<IncomingBody>) -> Response<Full<Bytes>> {
        Response::default()
    }

    fn refuse_to_begin(&self, _: &request::Parts) -> Option<Response<Full<Bytes>>> {
        None
    }

    fn refuse(&self, (status, _): BadRequest) -> Response<Full<Bytes>> {
        let mut response = Response::default();
        *response.status_mut() = status;
        response
    }

    fn date(&self) -> impl AsRef<[u8]> + Send {
        *b"Thu, 01 Jan 1970 00:00:00 GMT"
    }

    fn is_draining(&self) -> bool {
        false
    }
}

type TestLoop = ConnectionLoop<TestService, fn(&mut Context<'_>) -> Poll<()>>;

/// Calls `run` with a connection and its client.
async fn with_client(run: impl AsyncFnOnce(TestLoop, DuplexStream)) {
    let (client, server) = duplex(1024);
    let (conn, write_buffer, timer) =
        (ServerConn::new(Box::new(server), 10), Vec::new(), LazyTimer::default());
    let service = TestService;
    run(
        ConnectionLoop { conn, write_buffer, timer, service, poll_closing: |_| Poll::Pending },
        client,
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_rest_of_a_body_is_awaited_only_while_it_makes_progress() {
    with_client(async |mut client, mut other| {
        let body_timeout = LIMITS.body_timeout;
        let mut body = client.conn.take_body(Decoder::Length(10), false);
        let begun = Instant::now();
        let reading = tokio::spawn(async move {
            sleep(body_timeout / 2).await;
            other.write_all(b"hello").await.unwrap();
            assert!(body.frame().await.unwrap().is_ok());
            (body, other)
        });
        assert!(!client.wait_for_body_end().await, "the body exists, but is not read");
        assert_eq!(begun.elapsed(), body_timeout * 2);
        drop(reading);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_body_fails_when_lingering_discards_its_input() {
    with_client(async |client, mut other| {
        let mut body = client.conn.take_body(Decoder::Length(10), false);
        other.write_all(b"hello").await.unwrap();
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "hello");
        other.write_all(b"lost!").await.unwrap();
        client.linger().await;
        other.write_all(b"later").await.unwrap();
        assert!(matches!(body.frame().await, Some(Err(Http1Error::Closed))));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_keeps_sending_ends_the_lingering_close_at_its_limit() {
    with_client(async |client, mut other| {
        let begun = Instant::now();
        let sending = tokio::spawn(async move {
            while other.write_all(b"more").await.is_ok() {
                sleep(LINGER_IDLE_TIMEOUT / 2).await;
            }
        });
        client.linger().await;
        assert_eq!(begun.elapsed(), LINGER_MAX);
        sending.await.unwrap();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn empty_lines_are_skipped_and_a_partial_head_gets_408() {
    with_client(async |mut client, mut other| {
        let header_timeout = LIMITS.header_timeout;
        other.write_all(b"\r\n\r\n\r\n").await.unwrap();
        assert!(matches!(client.next().await, NextRequest::End));
        other.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
        let begun = Instant::now();
        assert!(matches!(client.next().await, NextRequest::Refused(HEAD_TIMED_OUT)));
        assert_eq!(begun.elapsed(), header_timeout);
        assert!(matches!(client.refuse(HEAD_TIMED_OUT).await, NextAction::Linger));
        let mut response = [0; 12];
        other.read_exact(&mut response).await.unwrap();
        assert_eq!(&response, b"HTTP/1.1 408");
    })
    .await;
}
