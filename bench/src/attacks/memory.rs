//! The memory of a gateway that has as many connections as it admits by default.
//!
//! One client takes them all, in a way that keeps something in memory for each. Only the memory for
//! guarded requests is limited lower than by default, so that the limit counts on any machine.

use std::{any::Any, iter::repeat_n, net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context as _, ensure};
use axum::http::Request;
use bytes::Bytes;
use rustix::process::{Resource, getrlimit};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::Semaphore,
    task::JoinSet,
    time::timeout,
};

use super::{
    MEMORY_MIB, REST_MIB,
    attack::connect,
    server::{AttackedUpstream, Gateway, GatewayLimits},
};
use crate::{
    machine,
    report::{Report, Target},
    settings::{Settings, progress},
    sqlite::files,
};

pub(super) const PART: &str = "attacks.memory";

/// The default of `limits.connections`.
const CONNECTIONS: usize = 10_000;

/// With a connection to the upstream for each. All four ends of the two are on this machine, and
/// two of them in this process.
const FORWARDED: usize = 4000;

/// Open files of this process beside its connections.
const OTHER_FILES: u64 = 200;

/// Connections that are made at the same time.
const CONNECTING: usize = 128;

/// How long one connection may take until it holds what it can.
const HOLD_TIMEOUT: Duration = Duration::from_secs(60);

/// How long nothing is taken before a stalled connection counts as full.
const STALL: Duration = Duration::from_millis(500);

/// How long the gateway is watched after the last connection was made.
const SETTLE: Duration = Duration::from_secs(3);

/// A little less than the longest head.
const HEAD_BYTES: usize = 31 << 10;

/// The default window of HTTP/2, and more than a socket takes.
const UPLOAD_BYTES: usize = 16 << 20;

/// Streams of one connection.
const STREAMS: usize = 100;

/// A way to keep something in memory for each connection.
#[derive(Clone, Copy, Debug)]
enum Hold {
    Idle,
    IdleHttp2,
    UnfinishedHeads,
    HeadsWithoutBodies,
    StreamsWithoutBodies,
    UntakenUploads,
    UntakenUploadsHttp2,
    UnreadAnswers,
}

impl Hold {
    const ALL: [Self; 8] = [
        Self::Idle,
        Self::IdleHttp2,
        Self::UnfinishedHeads,
        Self::HeadsWithoutBodies,
        Self::StreamsWithoutBodies,
        Self::UntakenUploads,
        Self::UntakenUploadsHttp2,
        Self::UnreadAnswers,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle after a request",
            Self::IdleHttp2 => "idle after a request, HTTP/2",
            Self::UnfinishedHeads => "unfinished heads of 31 KiB",
            Self::HeadsWithoutBodies => "heads of 31 KiB without bodies",
            Self::StreamsWithoutBodies => "streams, heads of 31 KiB without bodies",
            Self::UntakenUploads => "uploads that the upstream does not take",
            Self::UntakenUploadsHttp2 => "uploads that the upstream does not take, HTTP/2",
            Self::UnreadAnswers => "large answers that are not read",
        }
    }

    /// How many connections do it.
    const fn connections(self) -> usize {
        match self {
            Self::Idle | Self::IdleHttp2 | Self::UnfinishedHeads | Self::HeadsWithoutBodies => {
                CONNECTIONS
            }
            // An address has half of the streams.
            Self::StreamsWithoutBodies => CONNECTIONS / 2 / STREAMS,
            Self::UntakenUploads | Self::UntakenUploadsHttp2 | Self::UnreadAnswers => FORWARDED,
        }
    }

    /// A connection that does it, and goes on until it is dropped.
    async fn begin(self, to: SocketAddr, number: usize) -> anyhow::Result<Box<dyn Any + Send>> {
        let head = |line: &str, rest: &str| {
            format!("{line} HTTP/1.1\r\nhost: shop.example\r\n{rest}").into_bytes()
        };
        let key = format!("idempotency-key: key-{number}\r\ncontent-length: 10\r\n");
        match self {
            Self::Idle => {
                let mut stream = sent(to, &head("GET /", "\r\n")).await?;
                ensure!(stream.read(&mut [0; 1024]).await? > 0, "the connection ended");
                Ok(Box::new(stream))
            }
            Self::IdleHttp2 => {
                let (mut client, all) = http2(to).await?;
                let request = Request::get("http://shop.example/").body(())?;
                client.send_request(request, true)?.0.await?;
                Ok(Box::new((client, all)))
            }
            Self::UnfinishedHeads => Ok(Box::new(sent(to, &head("GET /", &padding())).await?)),
            Self::HeadsWithoutBodies => {
                let rest = format!("{key}{}\r\n", padding());
                Ok(Box::new(sent(to, &head("POST /charges", &rest)).await?))
            }
            Self::StreamsWithoutBodies => {
                let (client, mut all) = http2(to).await?;
                for stream in 0..STREAMS {
                    let request = Request::post("http://shop.example/charges")
                        .header("idempotency-key", format!("key-{number}-{stream}"))
                        .header("content-length", 10)
                        .header("x-padding", "x".repeat(HEAD_BYTES));
                    let mut client = client.clone().ready().await?;
                    let opened = client.send_request(request.body(())?, false)?;
                    all.spawn(async {
                        let (answer, _body) = opened;
                        drop(answer.await);
                    });
                }
                Ok(Box::new((client, all)))
            }
            Self::UntakenUploads => {
                let rest = format!("content-length: {UPLOAD_BYTES}\r\n\r\n");
                let mut stream = sent(to, &head("POST /stuck", &rest)).await?;
                let piece = vec![b'x'; 64 << 10];
                while let Ok(written) = timeout(STALL, stream.write(&piece)).await {
                    written?;
                }
                Ok(Box::new(stream))
            }
            Self::UntakenUploadsHttp2 => {
                let (mut client, all) = http2(to).await?;
                let request = Request::post("http://shop.example/stuck").body(())?;
                let (answer, mut body) = client.send_request(request, false)?;
                // It sends as much as the windows let it.
                body.send_data(vec![b'x'; UPLOAD_BYTES].into(), false)?;
                tokio::time::sleep(STALL).await;
                Ok(Box::new((client, all, answer, body)))
            }
            Self::UnreadAnswers => {
                let requests = head("GET /large", "\r\n").repeat(8);
                Ok(Box::new(sent(to, &requests).await?))
            }
        }
    }
}

/// A field that makes a head almost as long as it may be.
fn padding() -> String {
    format!("x-padding: {}\r\n", repeat_n('x', HEAD_BYTES).collect::<String>())
}

async fn sent(to: SocketAddr, bytes: &[u8]) -> anyhow::Result<TcpStream> {
    let mut stream = connect(to).await;
    stream.write_all(bytes).await?;
    Ok(stream)
}

/// A connection by HTTP/2, and the task that drives it.
async fn http2(to: SocketAddr) -> anyhow::Result<(h2::client::SendRequest<Bytes>, JoinSet<()>)> {
    let (client, connection) = h2::client::handshake(connect(to).await).await?;
    let mut all = JoinSet::new();
    all.spawn(async { drop(connection.await) });
    Ok((client.ready().await?, all))
}

pub(super) fn run(
    settings: &Settings,
    report: &mut Report,
    upstream: &AttackedUpstream,
) -> anyhow::Result<()> {
    let most = settings.or_quick(CONNECTIONS, 1000);
    let files_max = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let files = u64::try_from(most)? + OTHER_FILES;
    ensure!(files <= files_max, "{files_max} files may be open, {files} are needed: ulimit -n");
    let mut table = vec![["connections", "number", "peak MiB", "KiB each"].map(str::to_owned)];
    for hold in Hold::ALL {
        progress(&format!("{PART}: {}", hold.name()));
        let connections = hold.connections().min(most);
        let [before, peak] = measure(hold, connections, settings, upstream)
            .with_context(|| format!("measuring {}", hold.name()))?;
        let line = |what: &str| format!("{}: {what}", hold.name());
        let each = (peak - before) / f64::from(u32::try_from(connections)?);
        let memory_max = Target::AtMost(f64::from(MEMORY_MIB + REST_MIB));
        report.judge(PART, line("peak memory"), "MiB", &[peak / 1024.0], memory_max);
        report.line(PART, line("each"), "KiB", &[each]);
        table.push([
            hold.name().to_owned(),
            connections.to_string(),
            format!("{:.0}", peak / 1024.0),
            format!("{each:.1}"),
        ]);
    }
    report.note(super::text_of(&table));
    Ok(())
}

/// The most memory of a gateway before and with so many connections, in KiB.
fn measure(
    hold: Hold,
    connections: usize,
    settings: &Settings,
    upstream: &AttackedUpstream,
) -> anyhow::Result<[f64; 2]> {
    let folder = files::scratch_folder(settings)?;
    let limits = GatewayLimits::Default;
    let gateway = Gateway::start(&settings.program, upstream.port, folder.path(), limits)?;
    let before = machine::peak_kilobytes(gateway.process())?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("attacker")
        .enable_all()
        .build()?;
    let to = gateway.address;
    let held = runtime.block_on(async {
        let (permits, mut all) = (Arc::new(Semaphore::new(CONNECTING)), JoinSet::new());
        for number in 0..connections {
            let permits = Arc::clone(&permits);
            all.spawn(async move {
                let _permit = permits.acquire_owned().await?;
                timeout(HOLD_TIMEOUT, hold.begin(to, number)).await?
            });
        }
        let mut held = Vec::with_capacity(connections);
        while let Some(one) = all.join_next().await {
            held.push(one??);
        }
        tokio::time::sleep(SETTLE).await;
        anyhow::Ok(held)
    })?;
    let peak = machine::peak_kilobytes(gateway.process())?;
    drop(held);
    runtime.shutdown_background();
    Ok([before, peak])
}
