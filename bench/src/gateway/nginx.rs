//! nginx as a plain proxy: what the gateway is held against.

use std::{
    fs,
    net::{Ipv4Addr, TcpListener, TcpStream},
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};

use crate::{
    gateway::upstream::Upstream,
    http::{load::Site, program::Program},
    machine,
};

/// As many as the gateway has threads on the machine that its targets are for.
const WORKERS: usize = 2;

/// It is there in a moment, or something is wrong.
const START: Duration = Duration::from_secs(10);

/// Where packages put it; the second is not on every user's path.
const PROGRAMS: [&str; 2] = ["nginx", "/usr/sbin/nginx"];

/// Starts nginx in front of an upstream. What it needs is in `folder`.
pub(crate) fn start(upstream: &Upstream, folder: &Path) -> anyhow::Result<(Program, Site)> {
    let port = free_port()?;
    let config = folder.join("nginx.conf");
    fs::write(&config, configuration(port, upstream.port))?;
    let mut command = Command::new(program()?);
    command.arg("-p").arg(folder).arg("-c").arg(&config).args(["-e", "stderr"]);
    let mut nginx = Program::start(command.stdin(Stdio::null()))?;
    let begin = Instant::now();
    let workers = loop {
        let listens = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok();
        let workers = machine::children(nginx.id())?;
        if listens && workers.len() == WORKERS {
            break workers;
        }
        if let Some(status) = nginx.child().try_wait()? {
            bail!("nginx did not start ({status})");
        }
        ensure!(begin.elapsed() < START, "nginx does not listen");
        thread::sleep(Duration::from_millis(5));
    };
    let processes = [&[nginx.id()], &workers[..]].concat();
    Ok((nginx, Site { port, processes, behind: vec![upstream.process()] }))
}

/// Its version.
pub(crate) fn version() -> anyhow::Result<String> {
    let output = Command::new(program()?).arg("-v").output()?;
    let text = String::from_utf8(output.stderr)?;
    Ok(text.trim().rsplit('/').next().unwrap_or_default().to_owned())
}

fn program() -> anyhow::Result<&'static str> {
    let works = |program: &&str| Command::new(program).arg("-v").output().is_ok();
    PROGRAMS.into_iter().find(works).context(
        "nginx is not installed: on Debian and Ubuntu `apt-get install nginx-light`, elsewhere any \
         package of it",
    )
}

/// A free port.
fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// Its defaults, but for what a proxy with much to do has: connections to the upstream that are
/// kept, none that end after a thousand requests, and no log.
fn configuration(port: u16, upstream: u16) -> String {
    format!(
        "daemon off;
worker_processes {WORKERS};
pid nginx.pid;
error_log stderr error;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    keepalive_requests 1000000000;
    upstream api {{
        server 127.0.0.1:{upstream};
        keepalive 256;
        keepalive_requests 1000000000;
    }}
    server {{
        listen 127.0.0.1:{port} reuseport;
        location / {{
            proxy_pass http://api;
            proxy_http_version 1.1;
            proxy_set_header Connection \"\";
        }}
    }}
}}
"
    )
}
