//! Many HTTP/2 streams of one address, and clients with large windows that do not read their
//! socket: what they take is bounded, and others do not notice.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use bytes::Bytes;
use h2::{
    Reason,
    client::{Connection, SendRequest},
};
use http::{Request, Response};
use tokio::{
    net::{TcpSocket, TcpStream},
    sync::oneshot,
    task::JoinSet,
    time::sleep,
};

use crate::{
    client::Client,
    common::{Gateway, Setup, Upstream, text, written},
    soon, wait_until,
};

/// Where the other clients come from.
const ATTACKER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

/// The largest window of HTTP/2.
const WINDOW_MAX: u32 = (1 << 31) - 1;

async fn connect(gateway: &Gateway) -> (SendRequest<Bytes>, Connection<TcpStream>) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::new(ATTACKER, 0)).unwrap();
    let stream = socket.connect(gateway.address()).await.unwrap();
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(WINDOW_MAX).initial_connection_window_size(WINDOW_MAX);
    builder.initial_max_send_streams(200).handshake(stream).await.unwrap()
}

#[tokio::test]
async fn one_address_has_a_share_of_all_streams_and_more_are_refused_before_anything_is_done() {
    let upstream = Upstream::serving(|_| async { Response::new(text("small")) }).await;
    let gateway = Setup::at(upstream.address()).tables("[limits]\nconnections = 10").start().await;
    let (mut open, mut answers) = (Vec::new(), JoinSet::new());
    // Half of a thousand streams may be open. The bodies do not come.
    for connection in 0..3 {
        let (sender, driver) = connect(&gateway).await;
        tokio::spawn(driver);
        for stream in 0..190 {
            let request = Request::post("http://shop.example/charges")
                .header("idempotency-key", format!("{connection}-{stream}"))
                .header("content-length", "10");
            let mut sender = sender.clone().ready().await.unwrap();
            let (answer, body) = sender.send_request(request.body(()).unwrap(), false).unwrap();
            answers.spawn(answer);
            open.push(body);
        }
    }
    for _ in 0..70 {
        let refused = soon(answers.join_next()).await.unwrap().unwrap().unwrap_err();
        assert_eq!(refused.reason(), Some(Reason::REFUSED_STREAM));
    }
    let mut innocent = Client::http2(gateway.address()).await;
    for number in 0..10 {
        let answer = innocent.post("/charges", &format!("innocent-{number}"), "{}").await;
        assert_eq!(answer.status, 200);
    }
    assert_eq!((answers.len(), upstream.request_count()), (500, 10));
}

/// By default hyper buffers 400 KiB for each stream, 80 MB here.
#[tokio::test]
async fn a_client_that_does_not_read_its_socket_takes_little_memory_for_each_stream() {
    let large = Bytes::from(vec![b'x'; 8192]);
    let upstream = Upstream::serving(move |_| {
        let large = large.clone();
        async move {
            let (pen, body) = written();
            tokio::spawn(async move {
                for _ in 0..64 {
                    pen.write(large.clone());
                }
                while pen.is_read() {
                    sleep(Duration::from_millis(50)).await;
                }
            });
            Response::new(body)
        }
    })
    .await;
    let gateway = Setup::at(upstream.address()).start().await;
    Client::http2(gateway.address()).await;
    let before = gateway.memory_peak_kib();
    for connection in 1..=2 {
        let (sender, driver) = connect(&gateway).await;
        let (stop, stopped) = oneshot::channel::<()>();
        tokio::spawn(async move {
            tokio::pin!(driver);
            tokio::select! {
                _ = &mut driver => {}
                // It stays open and is not read any more.
                _ = stopped => std::future::pending().await,
            }
        });
        for _ in 0..100 {
            let request = Request::get("http://shop.example/feed").body(()).unwrap();
            let mut sender = sender.clone().ready().await.unwrap();
            std::mem::forget(sender.send_request(request, true).unwrap());
        }
        wait_until(|| upstream.request_count() == 100 * connection).await;
        stop.send(()).unwrap();
        std::mem::forget(sender);
    }
    // Until the gateway reads no more.
    let mut peak = 0;
    while gateway.memory_peak_kib() > peak {
        peak = gateway.memory_peak_kib();
        sleep(Duration::from_secs(1)).await;
    }
    let grown = peak - before;
    assert!(grown < 48 << 10, "{grown} KiB");
}
