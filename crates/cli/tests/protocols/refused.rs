//! HTTP/2 upstreams that refuse, break off or go away, frame by frame: what they say that they have
//! not looked at is free again, everything else is unknown.

use tokio::{io::AsyncWriteExt as _, sync::mpsc};

use crate::{
    client::{Client, guarded},
    common::{Setup, text},
    raw::{Raw, RawUpstream},
    soon,
};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

const NO_ERROR: u32 = 0;
const INTERNAL_ERROR: u32 = 2;
const REFUSED_STREAM: u32 = 7;
const CANCEL: u32 = 8;

/// `:status: 200`, as HPACK writes it.
const STATUS_200: &[u8] = &[0x88];

/// The server's end of an HTTP/2 connection.
struct Frames(Raw);

impl Frames {
    async fn begin(mut raw: Raw) -> Self {
        raw.read_to("SM\r\n\r\n").await;
        let mut frames = Self(raw);
        frames.write(SETTINGS, 0, 0, &[]).await;
        frames
    }

    async fn write(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let head = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
        self.0.write([&head, payload].concat()).await;
    }

    /// The stream of the next request that is there as a whole: each of ours has a body.
    async fn next(&mut self) -> u32 {
        loop {
            let head = self.0.read_bytes(9).await;
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            self.0.read_bytes(length as usize).await;
            if matches!(head[3], DATA | HEADERS) && head[4] & END_STREAM != 0 {
                return u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            }
        }
    }

    async fn reset(&mut self, stream: u32, reason: u32) {
        self.write(RST_STREAM, 0, stream, &reason.to_be_bytes()).await;
    }

    async fn go_away(&mut self, last: u32, reason: u32) {
        self.write(GOAWAY, 0, 0, &[last.to_be_bytes(), reason.to_be_bytes()].concat()).await;
    }

    async fn answer(&mut self, stream: u32, body: &str) {
        self.write(HEADERS, END_HEADERS, stream, STATUS_200).await;
        self.write(DATA, END_STREAM, stream, body.as_bytes()).await;
    }

    /// Answers whatever else comes.
    async fn answer_all(mut self) {
        loop {
            let stream = self.next().await;
            self.answer(stream, "done").await;
        }
    }

    async fn close(mut self) {
        let _ = self.0.stream.shutdown().await;
    }
}

/// What the first request for a key gets and what its repeat gets, when the first request at the
/// upstream meets this and every later one is answered.
async fn first_and_repeat<F, A>(meet: F) -> [(u16, Option<String>); 2]
where
    F: Fn(Frames) -> A + Clone + Send + 'static,
    A: Future<Output = ()> + Send + 'static,
{
    let upstream = RawUpstream::start(move |raw, number| {
        let meet = meet.clone();
        async move {
            let frames = Frames::begin(raw).await;
            if number == 0 { meet(frames).await } else { frames.answer_all().await }
        }
    })
    .await;
    let gateway = Setup::at_http2(upstream.address()).start().await;
    let mut client = Client::http1(gateway.address()).await;
    let first = client.post("/charges", "k", "{}").await;
    let repeat = client.post("/charges", "k", "{}").await;
    [first, repeat].map(|answer| {
        let (status, slug) = answer.outcome();
        (status, slug.map(str::to_owned))
    })
}

fn outcomes(first: (u16, &str), repeat: (u16, Option<&str>)) -> [(u16, Option<String>); 2] {
    [(first.0, Some(first.1.to_owned())), (repeat.0, repeat.1.map(str::to_owned))]
}

fn released() -> [(u16, Option<String>); 2] {
    outcomes((502, "upstream-unreachable"), (200, None))
}

fn held() -> [(u16, Option<String>); 2] {
    outcomes((504, "upstream-timeout"), (423, Some("outcome-unknown")))
}

#[tokio::test]
async fn a_refused_stream_is_free_again() {
    let met = first_and_repeat(|mut frames: Frames| async move {
        let stream = frames.next().await;
        frames.reset(stream, REFUSED_STREAM).await;
        frames.answer_all().await;
    });
    assert_eq!(met.await, released());
}

#[tokio::test]
async fn a_stream_above_the_last_of_a_goaway_is_free_again() {
    for reason in [NO_ERROR, INTERNAL_ERROR] {
        let met = first_and_repeat(move |mut frames: Frames| async move {
            frames.next().await;
            frames.go_away(0, reason).await;
            frames.close().await;
        });
        assert_eq!(met.await, released(), "{reason}");
    }
}

#[tokio::test]
async fn a_stream_that_a_goaway_includes_is_unknown_when_the_connection_ends() {
    for reason in [NO_ERROR, INTERNAL_ERROR] {
        let met = first_and_repeat(move |mut frames: Frames| async move {
            let stream = frames.next().await;
            frames.go_away(stream, reason).await;
            frames.close().await;
        });
        assert_eq!(met.await, held(), "{reason}");
    }
}

#[tokio::test]
async fn a_stream_that_is_reset_for_another_reason_is_unknown() {
    for reason in [NO_ERROR, INTERNAL_ERROR, CANCEL] {
        let met = first_and_repeat(move |mut frames: Frames| async move {
            let stream = frames.next().await;
            frames.reset(stream, reason).await;
            frames.answer_all().await;
        });
        assert_eq!(met.await, held(), "{reason}");
    }
}

#[tokio::test]
async fn a_stream_that_breaks_in_its_answer_is_unknown_whatever_the_reason() {
    for reason in [INTERNAL_ERROR, REFUSED_STREAM, CANCEL] {
        let met = first_and_repeat(move |mut frames: Frames| async move {
            let stream = frames.next().await;
            frames.write(HEADERS, END_HEADERS, stream, STATUS_200).await;
            frames.write(DATA, 0, stream, b"char").await;
            frames.reset(stream, reason).await;
            frames.answer_all().await;
        });
        assert_eq!(met.await, held(), "{reason}");
    }
}

#[tokio::test]
async fn a_connection_that_ends_under_a_request_leaves_it_unknown() {
    let met = first_and_repeat(|mut frames: Frames| async move {
        frames.next().await;
        frames.close().await;
    });
    assert_eq!(met.await, held());
}

#[tokio::test]
async fn a_goaway_ends_only_what_came_after_its_last_stream() {
    let upstream = RawUpstream::start(|raw, number| async move {
        let mut frames = Frames::begin(raw).await;
        if number > 0 {
            return frames.answer_all().await;
        }
        let (first, _second) = (frames.next().await, frames.next().await);
        frames.go_away(first, NO_ERROR).await;
        frames.answer(first, "charged").await;
        frames.close().await;
    })
    .await;
    let gateway = Setup::at_http2(upstream.address()).start().await;
    let connection = Client::http2(gateway.address()).await;
    let ask = |key: &'static str| {
        let mut client = connection.another();
        async move { client.ask(guarded("/charges", key, text("{}"))).await }
    };
    let (one, other) = tokio::join!(ask("a"), ask("b"));
    let mut met = [(one, "a"), (other, "b")];
    // Which of the two came first is not decided here.
    met.sort_by_key(|(answer, _)| answer.status.as_u16());
    let [(finished, finished_key), (refused, refused_key)] = met;
    assert_eq!((finished.outcome(), finished.text()), ((200, None), "charged"));
    assert_eq!(refused.outcome(), (502, Some("upstream-unreachable")));
    let again = ask(finished_key).await;
    assert!(again.is_replayed());
    assert_eq!(again.text(), "charged");
    assert_eq!(ask(refused_key).await.text(), "done");
    assert_eq!(upstream.connections(), 2);
}

/// Requests one after the other, each when the upstream has ended the connection of the one before.
async fn each_finds_its_way<F, A>(end: F)
where
    F: Fn(Frames, u32) -> A + Clone + Send + 'static,
    A: Future<Output = ()> + Send + 'static,
{
    const ROUNDS: usize = 50;
    let (sender, mut ended) = mpsc::unbounded_channel();
    let upstream = RawUpstream::start(move |raw, _| {
        let (sender, end) = (sender.clone(), end.clone());
        async move {
            let mut frames = Frames::begin(raw).await;
            let stream = frames.next().await;
            frames.answer(stream, "done").await;
            end(frames, stream).await;
            let _ = sender.send(());
        }
    })
    .await;
    let gateway = Setup::at_http2(upstream.address()).start().await;
    let mut client = Client::http1(gateway.address()).await;
    for number in 0..ROUNDS {
        let answer = client.post("/charges", &format!("k{number}"), "{}").await;
        assert_eq!((answer.outcome(), answer.text()), ((200, None), "done"), "round {number}");
        soon(ended.recv()).await.unwrap();
    }
    assert_eq!(upstream.connections(), ROUNDS);
}

#[tokio::test]
async fn an_upstream_that_goes_away_between_requests_is_reconnected() {
    each_finds_its_way(|mut frames, stream| async move {
        frames.go_away(stream, NO_ERROR).await;
        // It waits for the other side to hang up.
        tokio::spawn(async move { frames.next().await });
    })
    .await;
}

#[tokio::test]
async fn an_upstream_that_hangs_up_between_requests_is_reconnected() {
    each_finds_its_way(|frames, _| frames.close()).await;
}
