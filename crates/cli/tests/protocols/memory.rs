//! Clients that ask for much and take nothing: what they keep in memory is bounded in bytes, their
//! streams are reset, and others do not notice.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use h2::{Reason, RecvStream, client::SendRequest};
use http::{Request, Response};
use http_body_util::Full;
use tokio::{
    net::TcpSocket,
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::{
    client::{Client, guarded},
    common::{Gateway, Setup, Upstream, content, empty, text, written},
    soon, wait_until,
};

const MIB: usize = 1 << 20;

/// How long a stream may make no progress here.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

const LIMITS: &str = "[limits]\nmemory = \"64MiB\"\nanswer_timeout = \"2s\"\n";

/// What the gateway may have beside `limits.memory`, in KiB.
const REST_KIB: u64 = 200 << 10;

/// Where those come from who take nothing.
const ATTACKER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

/// A connection from this address whose streams have so much window.
pub(crate) async fn connect(gateway: &Gateway, from: IpAddr, window: u32) -> SendRequest<Bytes> {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::new(from, 0)).unwrap();
    let stream = socket.connect(gateway.address()).await.unwrap();
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(window).initial_max_send_streams(200);
    let (sender, connection) = builder.handshake(stream).await.unwrap();
    tokio::spawn(connection);
    sender
}

/// Sends a request; what comes is an answer of which nothing is taken.
pub(crate) async fn ask(sender: &SendRequest<Bytes>, request: Request<()>) -> (u16, RecvStream) {
    let mut sender = sender.clone().ready().await.unwrap();
    let (answer, _) = sender.send_request(request, true).unwrap();
    let answer = soon(answer).await.unwrap();
    (answer.status().as_u16(), answer.into_body())
}

fn post(key: &str) -> Request<()> {
    let request = Request::post("http://shop.example/charges").header("idempotency-key", key);
    request.body(()).unwrap()
}

pub(crate) fn get(path: &str) -> Request<()> {
    Request::get(format!("http://shop.example{path}")).body(()).unwrap()
}

/// Takes what has come, and waits until the stream is reset.
async fn reset(mut body: RecvStream) -> Reason {
    soon(async {
        loop {
            match body.data().await.expect("it does not end") {
                Ok(data) => drop(data),
                Err(error) => return error.reason().expect("a reset"),
            }
        }
    })
    .await
}

/// Answers with a mebibyte, or with a word to those who ask for little.
async fn large_answers() -> Upstream {
    let large = Bytes::from(vec![b'x'; MIB]);
    Upstream::serving(move |request| {
        let large = large.clone();
        async move {
            match request.uri().path() {
                "/small" => Response::new(text("small")),
                _ => Response::new(content(Full::new(large))),
            }
        }
    })
    .await
}

/// Asks every 40 ms until it is dropped, each time with a new key and on one connection.
struct Innocent(tokio::task::JoinHandle<()>, Arc<std::sync::Mutex<Vec<(u16, Duration)>>>);

impl Innocent {
    async fn start(gateway: &Gateway) -> Self {
        let mut client = Client::http1(gateway.address()).await;
        let asked = Arc::<std::sync::Mutex<Vec<_>>>::default();
        let answers = Arc::clone(&asked);
        let task = tokio::spawn(async move {
            for number in 0.. {
                let begun = Instant::now();
                let key = format!("innocent-{number}");
                let answer = client.post("/small", &key, "{}").await;
                asked.lock().unwrap().push((answer.status.as_u16(), begun.elapsed()));
                sleep(Duration::from_millis(40)).await;
            }
        });
        Self(task, answers)
    }

    /// None of its requests was refused, and most were not slow for what a debug build on a busy
    /// machine takes. `cargo xtask bench attacks` measures how long they take in a release build.
    fn check(self) {
        self.0.abort();
        let mut asked = self.1.lock().unwrap().clone();
        assert!(asked.len() > 20, "{asked:?}");
        assert!(asked.iter().all(|(status, _)| *status == 200), "{asked:?}");
        asked.sort_by_key(|(_, took)| *took);
        let most = asked[asked.len() * 9 / 10].1;
        assert!(most < ANSWER_TIMEOUT, "{most:?} of {}", asked.len());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_answers_that_no_client_takes_are_bounded_and_reset() {
    let upstream = large_answers().await;
    // An answer without memory waits for it as long as the upstream may take, then it is passed on.
    let url = format!("http://{}", upstream.address());
    let setup = Setup::upstream(format_args!("{{ url = \"{url}\", timeout = \"5s\" }}"));
    let gateway = setup.on_disk().tables(LIMITS).start().await;
    let innocent = Innocent::start(&gateway).await;
    let mut streams = JoinSet::new();
    for connection in 0..2 {
        let sender = connect(&gateway, ATTACKER, 0).await;
        for stream in 0..200 {
            let (sender, key) = (sender.clone(), format!("{connection}-{stream}"));
            streams.spawn(async move {
                let (status, body) = ask(&sender, post(&key)).await;
                (status, reset(body).await)
            });
        }
    }
    let ended = soon(streams.join_all()).await;
    assert_eq!(ended.len(), 400);
    for (status, reason) in ended {
        assert!(matches!(status, 200 | 503), "{status}");
        assert_eq!(reason, Reason::CANCEL);
    }
    let peak = gateway.memory_peak_kib();
    assert!(peak < (64 << 10) + REST_KIB, "{peak} KiB");
    innocent.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replays_that_no_client_takes_are_bounded_and_reset() {
    let upstream = large_answers().await;
    let limits = format!("{LIMITS}cache_bytes = \"16MiB\"\n");
    let gateway = Setup::at(upstream.address()).on_disk().tables(limits).start().await;
    let mut honest = Client::http1(gateway.address()).await;
    for number in 0..100 {
        let first = honest.ask(guarded("/charges", &format!("k{number}"), empty())).await;
        assert_eq!((first.status.as_u16(), first.body.len()), (200, MIB));
    }
    let innocent = Innocent::start(&gateway).await;
    let mut streams = JoinSet::new();
    for _ in 0..4 {
        let sender = connect(&gateway, ATTACKER, 0).await;
        for stream in 0..100 {
            let (sender, key) = (sender.clone(), format!("k{stream}"));
            streams.spawn(async move {
                let (status, body) = ask(&sender, post(&key)).await;
                (status, reset(body).await)
            });
        }
    }
    let ended = soon(streams.join_all()).await;
    let replayed = ended.iter().filter(|(status, _)| *status == 200).count();
    assert!(replayed >= 7, "{replayed}: its share of replays is 8 MiB");
    assert!(ended.iter().all(|(status, _)| matches!(status, 200 | 503)));
    let peak = gateway.memory_peak_kib();
    assert!(peak < (64 << 10) + REST_KIB, "{peak} KiB");
    innocent.check();
    let again = honest.ask(guarded("/charges", "k7", empty())).await;
    assert!(again.is_replayed());
    assert_eq!(again.body.len(), MIB, "a record is whole whatever became of its replays");
}

#[tokio::test]
async fn an_unguarded_answer_that_is_not_taken_is_reset_and_frees_its_upstream() {
    let open = Arc::<AtomicUsize>::default();
    let upstream = Upstream::serving({
        let open = Arc::clone(&open);
        move |_| {
            let open = Arc::clone(&open);
            async move {
                let (pen, body) = written();
                open.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(async move {
                    while pen.is_read() {
                        pen.write(vec![b'x'; 4096]);
                        sleep(Duration::from_millis(20)).await;
                    }
                    open.fetch_sub(1, Ordering::SeqCst);
                });
                Response::new(body)
            }
        }
    })
    .await;
    let gateway = Setup::at(upstream.address()).tables(LIMITS).start().await;
    // Without any window, and with some that is used up.
    for window in [0, 10_000] {
        let sender = connect(&gateway, ATTACKER, window).await;
        let mut bodies = Vec::new();
        for _ in 0..20 {
            bodies.push(ask(&sender, get("/feed")).await.1);
        }
        assert_eq!(open.load(Ordering::SeqCst), 20);
        let begun = Instant::now();
        for mut body in bodies {
            // What is not released gives no new window.
            let ended = soon(async { while let Some(Ok(_)) = body.data().await {} }).await;
            drop((ended, body));
        }
        assert!(begun.elapsed() >= ANSWER_TIMEOUT / 2, "it was not reset for taking nothing");
        wait_until(|| open.load(Ordering::SeqCst) == 0).await;
    }
}

#[tokio::test]
async fn small_answers_are_reset_too_and_their_connection_goes_on() {
    let upstream = large_answers().await;
    let gateway = Setup::at(upstream.address()).tables(LIMITS).start().await;
    let sender = connect(&gateway, ATTACKER, 0).await;
    let (status, stalled) = ask(&sender, get("/small")).await;
    assert_eq!(status, 200);
    assert_eq!(reset(stalled).await, Reason::CANCEL);
    let (_, still) = ask(&sender, get("/small")).await;
    assert_eq!(reset(still).await, Reason::CANCEL, "the connection serves the next one");
}

#[tokio::test]
async fn a_slow_client_and_a_silent_service_are_not_reset() {
    let upstream = Upstream::serving(|request| async move {
        let (pen, body) = written();
        let silent = request.uri().path() == "/silent";
        tokio::spawn(async move {
            pen.write(vec![b'x'; 60]);
            if silent {
                sleep(ANSWER_TIMEOUT * 2).await;
            }
            pen.write(vec![b'y'; 60]);
        });
        Response::new(body)
    })
    .await;
    let gateway = Setup::at(upstream.address()).tables(LIMITS).start().await;
    let slow = async {
        let sender = connect(&gateway, ATTACKER, 20).await;
        let (_, mut body) = ask(&sender, get("/feed")).await;
        let mut read = 0;
        while let Some(data) = soon(body.data()).await {
            let data = data.unwrap();
            read += data.len();
            sleep(ANSWER_TIMEOUT / 2).await;
            body.flow_control().release_capacity(data.len()).unwrap();
        }
        read
    };
    let silent = async {
        let mut client = Client::http2(gateway.address()).await;
        client.get("/silent").await.body.len()
    };
    assert_eq!(tokio::join!(slow, silent), (120, 120));
}

#[tokio::test]
async fn bodies_that_are_announced_and_do_not_come_keep_no_request_out() {
    let upstream = large_answers().await;
    let gateway = Setup::at(upstream.address()).tables(LIMITS).start().await;
    // Both come from one address, as behind a load balancer. Its share is 16 MiB.
    let mut innocent = Client::http1(gateway.address()).await;
    let sender = connect(&gateway, Ipv4Addr::LOCALHOST.into(), 65_535).await;
    let mut stalled = Vec::new();
    for number in 0..60 {
        let mut sender = sender.clone().ready().await.unwrap();
        let mut request = post(&format!("stalled-{number}"));
        request.headers_mut().insert("content-length", (MIB - 1).into());
        stalled.push(sender.send_request(request, false).unwrap());
    }
    for number in 0..10 {
        let answer = innocent.post("/small", &format!("innocent-{number}"), "{}").await;
        assert_eq!(answer.status, 200);
    }
}

#[tokio::test]
async fn bodies_that_stall_are_bounded_in_bytes_and_give_way_to_others_from_their_address() {
    let upstream = large_answers().await;
    let gateway = Setup::at(upstream.address()).tables(LIMITS).start().await;
    let mut innocent = Client::http1(gateway.address()).await;
    let mut answers = JoinSet::new();
    for connection in 0..6 {
        let sender = connect(&gateway, Ipv4Addr::LOCALHOST.into(), 65_535).await;
        for number in 0..10 {
            let mut sender = sender.clone().ready().await.unwrap();
            let mut request = post(&format!("stalled-{connection}-{number}"));
            request.headers_mut().insert("content-length", (MIB - 1).into());
            let (answer, mut body) = sender.send_request(request, false).unwrap();
            body.send_data(vec![b'x'; MIB / 2].into(), false).unwrap();
            answers.spawn(async move { (answer.await, body) });
        }
    }
    // Of 30 MiB that are sent, 16 may stay: the idlest make room for the others.
    let (answer, _) = soon(answers.join_next()).await.unwrap().unwrap();
    assert_eq!(answer.unwrap().status(), 503);
    for number in 0..10 {
        let answer = innocent.post("/small", &format!("innocent-{number}"), "{}").await;
        assert_eq!(answer.status, 200);
    }
    let peak = gateway.memory_peak_kib();
    assert!(peak < (64 << 10) + REST_KIB, "{peak} KiB");
}

/// Asks for large answers that are not taken, until a request is refused.
async fn fill(sender: &SendRequest<Bytes>, name: &str, client: impl Fn(usize) -> String) {
    let mut untaken = Vec::new();
    loop {
        let number = untaken.len();
        assert!(number < 40, "{name} is not bounded");
        let mut request = post(&format!("{name}-{number}"));
        request.headers_mut().insert("x-forwarded-for", client(number).parse().unwrap());
        let (status, body) = ask(sender, request).await;
        // They are forgotten, but not reset: the connection would notice.
        untaken.push(std::mem::ManuallyDrop::new(body));
        if status == 503 {
            return;
        }
        assert_eq!(status, 200);
    }
}

#[tokio::test]
async fn clients_behind_a_trusted_proxy_have_shares_of_their_own() {
    let upstream = large_answers().await;
    let gateway = Setup::at(upstream.address())
        .gateway("trusted_proxies = [\"127.0.0.2\"]")
        .tables("[limits]\nmemory = \"64MiB\"\nanswer_timeout = \"10m\"\n")
        .start()
        .await;
    let proxy = connect(&gateway, ATTACKER, 0).await;
    fill(&proxy, "hog", |number| format!("192.0.2.{number}, 198.51.100.1, 127.0.0.2")).await;
    let mut other = post("other");
    other.headers_mut().insert("x-forwarded-for", "198.51.100.2".parse().unwrap());
    assert_eq!(ask(&proxy, other).await.0, 200, "another client of the same proxy");
    // Who is not a proxy is known by its own address, whatever it says.
    let direct = connect(&gateway, Ipv4Addr::LOCALHOST.into(), 0).await;
    fill(&direct, "direct", |number| format!("198.51.100.{number}")).await;
}
