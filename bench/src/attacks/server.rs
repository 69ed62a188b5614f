//! The gateway under attack, and the service behind it.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::Context as _;
use axum::{
    Router,
    body::{Body, Bytes},
    extract::Request,
    http::{Response, StatusCode, header},
    routing::{any, get, post},
};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use crate::{
    attacks::{MEMORY_MIB, event},
    http::program::Program,
};

/// The size of a large answer.
const LARGE_BYTES: usize = 1 << 20;

/// How long the slow service takes.
const SLOW: Duration = Duration::from_secs(5);

/// What the gateway says once it can be reached.
const LISTENING: &str = "listening on http://";

/// A service on threads of its own.
#[derive(Debug)]
pub(super) struct AttackedUpstream {
    pub(super) port: u16,
    _runtime: tokio::runtime::Runtime,
}

impl AttackedUpstream {
    pub(super) fn start() -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("upstream")
            .enable_all()
            .build()?;
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?;
        let port = listener.local_addr()?.port();
        let large = Bytes::from(vec![b'x'; LARGE_BYTES]);
        let large = move || std::future::ready(large.clone());
        let slow = async || {
            tokio::time::sleep(SLOW).await;
            StatusCode::CREATED
        };
        let routes = Router::new()
            .route("/large", any(large))
            .route("/slow", post(slow))
            .route("/charges", post(async |_: Bytes| (StatusCode::CREATED, "{\"paid\":true}")))
            .route(event::PATH, post(async |_: Bytes| (StatusCode::CREATED, "taken")))
            .route("/free", post(async |_: Bytes| StatusCode::OK))
            .route("/broken", post(async || StatusCode::INTERNAL_SERVER_ERROR))
            .route("/socket", get(socket))
            .route("/stuck", post(stuck))
            .route("/", get(async || "here"));
        runtime.spawn(async move { axum::serve(listener, routes).await });
        Ok(Self { port, _runtime: runtime })
    }
}

/// Does not take the body of a request until the client is gone.
async fn stuck(_: Request) {
    std::future::pending().await
}

/// Takes a WebSocket and is silent on it. All clients send the same key.
async fn socket(request: Request) -> Response<Body> {
    let upgrade = hyper::upgrade::on(request);
    tokio::spawn(async move {
        if let Ok(upgraded) = upgrade.await {
            let _ = tokio::io::copy(&mut TokioIo::new(upgraded), &mut tokio::io::sink()).await;
        }
    });
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    for (name, value) in [
        (header::CONNECTION, "upgrade"),
        (header::UPGRADE, "websocket"),
        (header::SEC_WEBSOCKET_ACCEPT, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="),
    ] {
        answer.headers_mut().insert(name, header::HeaderValue::from_static(value));
    }
    answer
}

/// What a gateway allows its clients.
#[derive(Clone, Copy, Debug)]
pub(super) enum GatewayLimits {
    /// So little that one client can reach it.
    Low,
    Default,
}

impl GatewayLimits {
    const fn text(self) -> &'static str {
        match self {
            Self::Low => {
                "in_flight = 120
per_caller = 100
waiting = 120
connections = 300
body_timeout = \"60s\"
body_start_timeout = \"60s\"
answer_timeout = \"2s\"
held_per_caller = 200
"
            }
            Self::Default => "",
        }
    }
}

/// A running gateway.
#[derive(Debug)]
pub(super) struct Gateway {
    pub(super) address: SocketAddr,
    program: Program,
}

impl Gateway {
    /// Starts a gateway on a new store in `folder`.
    pub(super) fn start(
        program: &Path,
        upstream: u16,
        folder: &Path,
        limits: GatewayLimits,
    ) -> anyhow::Result<Self> {
        let config = folder.join("semel.toml");
        let store = folder.join("semel.db");
        fs::write(&config, configuration(upstream, &store.display().to_string(), limits))?;
        let mut command = Command::new(program);
        command.arg("serve").arg("--config").arg(&config).args(["--log-level", "error"]);
        command.env(event::SECRET_VARIABLE, event::SECRET);
        let mut program = Program::start(command.stdin(Stdio::null()).stderr(Stdio::piped()))?;
        let output = program.child().stderr.take().context("the gateway has no output")?;
        let mut lines = BufReader::new(output).lines();
        let mut said = String::new();
        let address = loop {
            let Some(line) = lines.next().transpose()? else {
                anyhow::bail!("the gateway did not start:\n{said}");
            };
            if let Some((_, rest)) = line.split_once(LISTENING) {
                let address = rest.split_whitespace().next().unwrap_or_default();
                break address.parse().context("reading its address")?;
            }
            said.push_str(&line);
            said.push('\n');
        };
        // It never waits for a reader.
        thread::spawn(move || lines.map_while(Result::ok).for_each(|line| eprintln!("{line}")));
        Ok(Self { address, program })
    }

    pub(super) fn process(&self) -> u32 {
        self.program.id()
    }
}

fn configuration(upstream: u16, store: &str, limits: GatewayLimits) -> String {
    format!(
        "store = \"sqlite:{store}\"

[gateway]
listen = \"127.0.0.1:0\"
upstream = \"http://127.0.0.1:{upstream}\"

[api]
listen = \"off\"

[limits]
memory = \"{MEMORY_MIB}MiB\"
{limits}
[defaults]
caller = [{{ header = \"x-merchant-id\" }}, \"anonymous\"]

[[route]]
match = \"POST {events}\"
scope = \"events\"
signature = {{ scheme = \"github\", secret_env = \"{secret}\" }}

[[route]]
match = \"POST /**\"
scope = \"default\"
",
        limits = limits.text(),
        events = event::PATH,
        secret = event::SECRET_VARIABLE,
    )
}
