//! The service API: claims and completions over HTTP, one at a time and in batches, beside guarded
//! requests of the gateway.

use std::{
    fmt::Write as _,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
};

use crate::{
    gateway,
    http::exchange::{ANSWER, ORDER},
    measure::{as_f64, ratios, turns},
    random::Random,
    report::{Report, Target},
    settings::{Settings, progress, progress_end},
    sqlite::files,
};

const FAMILY: &str = "api";
const ROUNDS: usize = 5;

/// The token of the load.
const TOKEN: &str = "a-token-of-the-benchmark-0123456789";

/// How the API is called.
#[derive(Clone, Copy, Debug)]
struct ApiLoad {
    connections: usize,
    /// How many operations one call has; one of them needs no batch.
    units: usize,
}

const SINGLE: ApiLoad = ApiLoad { connections: 64, units: 1 };
/// With more connections a caller would have more in flight than it may by default.
const BATCHED: ApiLoad = ApiLoad { connections: 16, units: 100 };

pub(crate) fn run(settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
    if !settings.wants(FAMILY) {
        return Ok(());
    }
    let mut rates = [const { Vec::new() }; 3];
    for round in 0..ROUNDS {
        for at in turns(round, rates.len()) {
            progress(&format!("{FAMILY}: {at} of 3, round {} of {ROUNDS}", round + 1));
            rates[at].push(match at {
                0 => gateway::guarded_rate(settings, SINGLE.connections)?,
                1 => measure(settings, SINGLE)?,
                _ => measure(settings, BATCHED)?,
            });
        }
    }
    progress_end();
    let [guarded, single, batched] = rates;
    report.line(FAMILY, "c=64: the gateway, unique keys", "req/s", &guarded);
    report.line(FAMILY, "c=64: claim and complete", "units/s", &single);
    let share = ratios(&single, &guarded);
    report.judge(FAMILY, "c=64: claim and complete / gateway", "x", &share, Target::AtLeast(0.6));
    report.line(FAMILY, "c=16: in batches of 100", "units/s", &batched);
    let gain = ratios(&batched, &single);
    report.judge(FAMILY, "c=16: in batches of 100 / single", "x", &gain, Target::AtLeast(3.0));
    report.note(
        "A unit of the service API is a claim and its completion: two calls over a kept \
         connection, or two batches for a hundred units, with a payload of 200 and a result of \
         300 bytes of JSON, each on the disk before its reply. The server is new in each round, \
         as is the gateway beside it."
            .to_owned(),
    );
    Ok(())
}

/// Units per second.
fn measure(settings: &Settings, load: ApiLoad) -> anyhow::Result<f64> {
    let folder = files::scratch_folder(settings)?;
    let mut command = Command::new(&settings.program);
    let (_server, port) =
        gateway::start_service_api(command.env("BENCH_TOKEN", TOKEN), folder.path())?;
    let (warm_up, length) = settings.cell();
    let begin = Instant::now() + warm_up * 2;
    let end = begin + length;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let done = runtime.block_on(async {
        let mut tasks = JoinSet::new();
        for _ in 0..load.connections {
            tasks.spawn(work(port, load.units, begin, end));
        }
        let mut done = 0;
        while let Some(units) = tasks.join_next().await {
            done += units.context("a connection stopped")??;
        }
        anyhow::Ok(done)
    })?;
    Ok(as_f64(done) / length.as_secs_f64())
}

/// Claims and completes on one connection; the units between the two instants.
async fn work(port: u16, units: usize, begin: Instant, end: Instant) -> anyhow::Result<usize> {
    let mut client = ApiClient { stream: TcpStream::connect(("127.0.0.1", port)).await? };
    client.stream.set_nodelay(true)?;
    let (mut random, mut done) = (Random::new(), 0);
    while Instant::now() < end {
        let claims: Vec<String> = (0..units).map(|_| claim(&mut random)).collect();
        let granted = client.call("claims", "claim", &claims).await?;
        let claims: Vec<&str> = granted.split("\"claim\":\"").skip(1).collect();
        ensure!(claims.len() == units, "a claim was not granted: {granted}");
        let texts = claims.iter().filter_map(|rest| rest.split('"').next());
        let results: Vec<String> = texts.map(completion).collect();
        let ended = client.call("claims/complete", "complete", &results).await?;
        let count = ended.matches("\"outcome\":\"completed\",\"retained\":true").count();
        ensure!(count == units, "a claim was not completed: {ended}");
        let now = Instant::now();
        if now >= begin && now < end {
            done += units;
        }
    }
    Ok(done)
}

fn claim(random: &mut Random) -> String {
    let (key, mut id) = (random.key(), [0; 16]);
    random.fill(&mut id);
    let (key, id) = (String::from_utf8_lossy(&key), data_encoding::HEXLOWER.encode(&id));
    format!("\"scope\":\"payments\",\"key\":\"{key}\",\"attempt_id\":\"{id}\",\"payload\":{ORDER}")
}

fn completion(claim: &str) -> String {
    format!("\"claim\":\"{claim}\",\"result\":{{\"body\":{ANSWER}}}")
}

struct ApiClient {
    stream: TcpStream,
}

impl ApiClient {
    /// Sends operations, whose members are given, and returns the body of the answer.
    async fn call(&mut self, path: &str, op: &str, members: &[String]) -> anyhow::Result<String> {
        let (path, body) = match members {
            [one] => (path, format!("{{{one}}}")),
            many => {
                let mut body = "[".to_owned();
                for members in many {
                    let comma = if body.len() > 1 { "," } else { "" };
                    write!(body, "{comma}{{\"op\":\"{op}\",{members}}}")?;
                }
                ("batch", body + "]")
            }
        };
        let request = format!(
            "POST /v1/{path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {TOKEN}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        self.stream.write_all(request.as_bytes()).await?;
        self.answer().await
    }

    async fn answer(&mut self) -> anyhow::Result<String> {
        const HEAD_END: &[u8] = b"\r\n\r\n";
        let mut bytes = Vec::with_capacity(4096);
        loop {
            let read = self.stream.read_buf(&mut bytes);
            let read = tokio::time::timeout(Duration::from_secs(10), read).await;
            ensure!(read.context("no answer")?? > 0, "the server closed the connection");
            let end = bytes.windows(HEAD_END.len()).position(|window| window == HEAD_END);
            let Some(end) = end else { continue };
            let head = str::from_utf8(&bytes[..end])?;
            ensure!(head.starts_with("HTTP/1.1 200 "), "{head}");
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let length: usize = length.context("an answer without a length")?.parse()?;
            let body = end + HEAD_END.len();
            if bytes.len() >= body + length {
                return Ok(String::from_utf8(bytes.split_off(body))?);
            }
        }
    }
}
