//! Large bodies on unguarded routes: they flow through, and memory stays small.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use sha2::{Digest as _, Sha256};
use tokio::io::AsyncWriteExt as _;

use crate::{
    client::Client,
    common::{Gateway, Setup, Upstream, content, empty, text},
    raw::{Raw, RawUpstream},
    soon,
};

const PIECE: usize = 64 << 10;
const LARGE: usize = 64 << 20;

/// How much more memory it may have than at its start: windows and buffers, a fraction of what
/// passes through.
const GROWTH_MAX_KIB: u64 = 20 << 10;

/// Numbered pieces, made while they are sent.
struct Pieces(u32);

impl Pieces {
    fn piece(number: u32) -> Bytes {
        let mut piece = vec![b'.'; PIECE];
        piece[..4].copy_from_slice(&number.to_be_bytes());
        piece.into()
    }
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.0 as usize == LARGE / PIECE {
            return Poll::Ready(None);
        }
        self.0 += 1;
        Poll::Ready(Some(Ok(Frame::data(Self::piece(self.0)))))
    }
}

/// What all pieces together hash to.
static DIGEST: LazyLock<[u8; 32]> = LazyLock::new(|| {
    let count = u32::try_from(LARGE / PIECE).unwrap();
    let pieces = (1..=count).map(Pieces::piece);
    pieces.fold(Sha256::new(), Sha256::chain_update).finalize().into()
});

/// Reads a body to its end and says whether it is those pieces.
async fn is_large(mut body: Incoming) -> bool {
    let mut digest = Sha256::new();
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return false };
        digest.update(frame.into_data().unwrap());
    }
    digest.finalize().as_slice() == *DIGEST
}

fn setups(upstream: &Upstream) -> [(Setup, bool); 2] {
    [(Setup::at(upstream.address()), false), (Setup::at_http2(upstream.address()), true)]
}

#[track_caller]
fn assert_small(gateway: &Gateway, before_kib: u64) {
    let growth = gateway.memory_peak_kib() - before_kib;
    assert!(growth < GROWTH_MAX_KIB, "it took {growth} KiB");
}

#[tokio::test]
async fn a_large_upload_flows_through() {
    let upstream = Upstream::serving(|request| async {
        let whole = is_large(request.into_body()).await;
        Response::new(text(whole.to_string()))
    })
    .await;
    for (setup, http2) in setups(&upstream) {
        let gateway = setup.start().await;
        let before = gateway.memory_peak_kib();
        let mut client = Client::connect(gateway.address(), http2).await;
        let request = Request::put("/large").body(content(Pieces(0))).unwrap();
        assert_eq!(client.ask(request).await.text(), "true");
        assert_small(&gateway, before);
    }
}

#[tokio::test]
async fn a_large_download_flows_through() {
    let upstream = Upstream::serving(|_| async { Response::new(content(Pieces(0))) }).await;
    for (setup, http2) in setups(&upstream) {
        let gateway = setup.start().await;
        let before = gateway.memory_peak_kib();
        let mut client = Client::connect(gateway.address(), http2).await;
        let response = client.send(Request::get("/large").body(empty()).unwrap()).await;
        assert!(soon(is_large(response.into_body())).await);
        assert_small(&gateway, before);
    }
}

#[tokio::test]
async fn a_client_that_does_not_read_holds_the_upstream_back() {
    let written = Arc::<AtomicU64>::default();
    let upstream = RawUpstream::start({
        let written = Arc::clone(&written);
        move |mut raw: Raw, _| {
            let written = Arc::clone(&written);
            async move {
                raw.read_to("\r\n\r\n").await;
                raw.write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").await;
                let chunk = format!("{PIECE:x}\r\n{}\r\n", ".".repeat(PIECE));
                // Until the gateway stops reading, or the body is far too long.
                while written.load(Ordering::SeqCst) < 2 * LARGE as u64
                    && raw.stream.write_all(chunk.as_bytes()).await.is_ok()
                {
                    written.fetch_add(chunk.len() as u64, Ordering::SeqCst);
                }
            }
        }
    })
    .await;
    let gateway = Gateway::at(upstream.address()).await;
    let before = gateway.memory_peak_kib();
    let mut client = Raw::connect(gateway.address()).await;
    client.write("GET /large HTTP/1.1\r\nHost: shop.example\r\n\r\n").await;
    client.read_head().await;
    let mut taken = u64::MAX;
    soon(async {
        while taken != written.load(Ordering::SeqCst) {
            taken = written.load(Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    })
    .await;
    assert!(taken < LARGE as u64, "{taken} bytes were taken without a reader");
    assert_small(&gateway, before);
}

#[tokio::test]
async fn a_client_that_reads_slowly_is_served_and_one_that_stops_is_given_up() {
    let (left, gone) = tokio::sync::oneshot::channel::<()>();
    let left = std::sync::Mutex::new(Some(left));
    let upstream = RawUpstream::start(move |mut raw: Raw, _| {
        let left = left.lock().unwrap().take();
        async move {
            raw.read_to("\r\n\r\n").await;
            raw.write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").await;
            let chunk = format!("{PIECE:x}\r\n{}\r\n", ".".repeat(PIECE));
            while raw.stream.write_all(chunk.as_bytes()).await.is_ok() {}
            drop(left);
        }
    })
    .await;
    let setup = Setup::at(upstream.address()).tables("[limits]\nanswer_timeout = \"3s\"");
    let gateway = setup.start().await;
    let mut client = Raw::connect(gateway.address()).await;
    client.write("GET /large HTTP/1.1\r\nHost: shop.example\r\n\r\n").await;
    client.read_head().await;
    for _ in 0..40 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        client.read(8 * PIECE).await;
    }
    // The upstream's writer fails when the gateway takes no more.
    soon(gone).await.unwrap_err();
}
