//! The gateway itself: the program `semel serve`, as a payment API would have it.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    path::Path,
    process::{Command, Stdio},
    thread,
};

use anyhow::{Context as _, bail};

use crate::{
    gateway::upstream::Upstream,
    http::{exchange::CALLER, load::Site, program::Program},
};

/// What the gateway and the API say once they can be reached.
const LISTENING: &str = "listening on http://";
const SERVING_API: &str = "api on http://";

/// Words of the lines that it should not have to write.
const ALARMS: [&str; 3] = ["WARN", "ERROR", "panicked"];

/// Starts a gateway in front of an upstream, with a new store in `folder`. The command is the
/// program, or what runs it.
pub(crate) fn start(
    command: Command,
    upstream: &Upstream,
    folder: &Path,
) -> anyhow::Result<(Program, Site)> {
    start_with(command, upstream, folder, &format!("{{ header = \"{CALLER}\" }}"))
}

/// The same with this caller rule.
pub(crate) fn start_with(
    mut command: Command,
    upstream: &Upstream,
    folder: &Path,
    caller: &str,
) -> anyhow::Result<(Program, Site)> {
    let store = folder.join("semel.db");
    let text = configuration(upstream.port, &store.display().to_string(), caller);
    let (semel, port) = launch(&mut command, folder, &text, LISTENING)?;
    let site = Site { port, processes: vec![semel.id()], behind: vec![upstream.process()] };
    Ok((semel, site))
}

/// Starts a server of the service API alone, with a new store in `folder`, and returns its port.
/// The variable `BENCH_TOKEN` of the command has the token.
pub(crate) fn start_service_api(
    command: &mut Command,
    folder: &Path,
) -> anyhow::Result<(Program, u16)> {
    let store = folder.join("semel.db");
    let text = format!(
        "store = \"sqlite:{}\"\n[api]\nlisten = \"127.0.0.1:0\"\n\
         [[api.token]]\nname = \"bench\"\nrole = \"app\"\nsecret_env = \"BENCH_TOKEN\"\n",
        store.display()
    );
    launch(command, folder, &text, SERVING_API)
}

/// The same, with the port of the API.
pub(crate) fn start_with_api(
    mut command: Command,
    upstream: &Upstream,
    folder: &Path,
) -> anyhow::Result<(Program, Site, u16)> {
    let store = folder.join("semel.db");
    let caller = format!("{{ header = \"{CALLER}\" }}");
    let text = configuration(upstream.port, &store.display().to_string(), &caller);
    let (semel, ports) = launch_all(&mut command, folder, &text, &[LISTENING, SERVING_API])?;
    let [port, api] = ports[..] else { bail!("the gateway announced {ports:?}") };
    let site = Site { port, processes: vec![semel.id()], behind: vec![upstream.process()] };
    Ok((semel, site, api))
}

/// Starts the program with this configuration, and returns the port that it announces.
fn launch(
    command: &mut Command,
    folder: &Path,
    text: &str,
    announcement: &str,
) -> anyhow::Result<(Program, u16)> {
    let (semel, ports) = launch_all(command, folder, text, &[announcement])?;
    Ok((semel, ports.first().copied().context("the gateway announced no port")?))
}

/// The same for several announcements, which come in this order.
fn launch_all(
    command: &mut Command,
    folder: &Path,
    text: &str,
    announcements: &[&str],
) -> anyhow::Result<(Program, Vec<u16>)> {
    let config = folder.join("semel.toml");
    fs::write(&config, text)?;
    command.arg("serve").arg("--config").arg(&config).args(["--log-level", "warn"]);
    let mut semel = Program::start(command.stdin(Stdio::null()).stderr(Stdio::piped()))?;
    let output = semel.child().stderr.take().context("the gateway has no output")?;
    let mut lines = BufReader::new(output).lines();
    let mut ports = Vec::new();
    while let Some(announcement) = announcements.get(ports.len()) {
        let line = lines.next().context("the gateway did not start")??;
        let rest = line.split_once(announcement).map(|(_, rest)| rest);
        match rest.and_then(|rest| rest.split_whitespace().next()) {
            Some(address) => {
                let address: SocketAddr = address.parse().context("reading its address")?;
                ports.push(address.port());
            }
            None => eprintln!("{line}"),
        }
    }
    // It never waits for a reader, and what it warns of is not lost.
    thread::spawn(move || {
        let lines = lines.map_while(Result::ok);
        let alarming = |line: &String| ALARMS.iter().any(|word| line.contains(word));
        lines.filter(alarming).for_each(|line| eprintln!("{line}"));
    });
    Ok((semel, ports))
}

/// Its defaults: every POST with a key is guarded, and its record is durable before its answer.
fn configuration(upstream: u16, store: &str, caller: &str) -> String {
    format!(
        "store = \"sqlite:{store}\"

[gateway]
listen = \"127.0.0.1:0\"
upstream = \"http://127.0.0.1:{upstream}\"

[api]
listen = \"127.0.0.1:0\"

[defaults]
caller = [{caller}]
"
    )
}
