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
    body::Bytes,
    http::StatusCode,
    routing::{any, get, post},
};
use tokio::net::TcpListener;

use crate::{attacks::MEMORY_MIB, http::program::Program};

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
            .route("/free", post(async |_: Bytes| StatusCode::OK))
            .route("/", get(async || "here"));
        runtime.spawn(async move { axum::serve(listener, routes).await });
        Ok(Self { port, _runtime: runtime })
    }
}

/// A running gateway.
#[derive(Debug)]
pub(super) struct Gateway {
    pub(super) address: SocketAddr,
    program: Program,
}

impl Gateway {
    /// Starts a gateway with low limits, on a new store in `folder`.
    pub(super) fn start(program: &Path, upstream: u16, folder: &Path) -> anyhow::Result<Self> {
        let config = folder.join("semel.toml");
        let store = folder.join("semel.db");
        fs::write(&config, configuration(upstream, &store.display().to_string()))?;
        let mut command = Command::new(program);
        command.arg("serve").arg("--config").arg(&config).args(["--log-level", "error"]);
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

fn configuration(upstream: u16, store: &str) -> String {
    format!(
        "store = \"sqlite:{store}\"

[gateway]
listen = \"127.0.0.1:0\"
upstream = \"http://127.0.0.1:{upstream}\"

[api]
listen = \"off\"

[limits]
memory = \"{MEMORY_MIB}MiB\"
in_flight = 120
per_caller = 100
waiting = 120
connections = 300
body_timeout = \"60s\"
body_start_timeout = \"60s\"
answer_timeout = \"2s\"

[defaults]
caller = [{{ header = \"x-merchant-id\" }}, \"anonymous\"]
"
    )
}
