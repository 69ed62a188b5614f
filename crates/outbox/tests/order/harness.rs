//! Runs a service and relays as processes, kills them, and compares what was delivered with what
//! was committed.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use semel_testkit::servers::Postgres;
use tempfile::TempDir;
use tokio::time::Instant;

/// How long the last messages may take.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(60);

/// Which relay runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RelayKind {
    Semel,
    /// Reads what is above the last number.
    AfterLast,
    /// Locks what is not sent, and skips what others have locked.
    SkipLocked,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) relay: RelayKind,
    pub(crate) relays: usize,
    pub(crate) messages: usize,
    pub(crate) kills: bool,
}

/// What was found.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    pub(crate) committed: usize,
    pub(crate) delivered: usize,
    pub(crate) lost: usize,
    /// Delivered, and never committed.
    pub(crate) invented: usize,
    /// Keys with another order than that of their commits.
    pub(crate) inverted: usize,
    pub(crate) kills: [u32; 3],
}

impl Verdict {
    pub(crate) const fn is_clean(&self) -> bool {
        self.lost == 0 && self.invented == 0 && self.inverted == 0
    }
}

/// A process that is this test program again, killed when it is dropped.
pub(crate) struct ChildProcess(Child);

impl ChildProcess {
    fn start(test: &str, role: &str, url: &str, file: &Path) -> Self {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", test, "--nocapture", "--test-threads=1"]);
        command.env("OUTBOX_ROLE", role).env("OUTBOX_URL", url).env("OUTBOX_FILE", file);
        Self(command.stdout(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// The role of this process, if it is a child: its role, the database and the file of deliveries.
pub(crate) fn child_role() -> Option<(String, String, String)> {
    let text = |name| env::var_os(name).map(|value| value.into_string().unwrap());
    Some((text("OUTBOX_ROLE")?, text("OUTBOX_URL")?, text("OUTBOX_FILE")?))
}

impl Run {
    pub(crate) fn execute(self, schema: &str) -> Verdict {
        let settings = [("track_commit_timestamp", "on"), ("log_min_messages", "fatal")];
        let mut server = Postgres::start(&settings);
        let url = server.url("postgres");
        server.sql("postgres", schema);
        server.sql("postgres", "CREATE TABLE sent (number bigint PRIMARY KEY)");
        let folder = TempDir::new().unwrap();
        let file = folder.path().join("delivered");
        fs::write(&file, "").unwrap();
        let relay = || {
            let role = format!("{:?}", self.relay);
            let test = "relay_process::a_relay_process_does_nothing_by_itself";
            ChildProcess::start(test, &role, &url, &file)
        };
        let service = || {
            let test = "service_process::a_service_process_does_nothing_by_itself";
            ChildProcess::start(test, "service", &url, &file)
        };
        let mut relays: Vec<_> = (0..self.relays).map(|_| relay()).collect();
        let mut writing = service();
        let (begun, mut kills, mut round) = (Instant::now(), [0; 3], 0_u32);
        while self.count(&server) < self.messages {
            round += 1;
            thread::sleep(Duration::from_millis(u64::from(150 + round * 37 % 200)));
            if !self.kills {
                continue;
            }
            if round.is_multiple_of(9) {
                server.kill();
                server.start_again();
                kills[2] += 1;
            } else if round.is_multiple_of(4) {
                drop(writing);
                writing = service();
                kills[1] += 1;
            } else {
                let place = round as usize % relays.len();
                relays[place] = relay();
                kills[0] += 1;
            }
        }
        drop(writing);
        // A killed service leaves transactions behind, until the server notices.
        server.wait_for(
            "SELECT 1 WHERE NOT EXISTS (SELECT FROM pg_stat_activity
             WHERE application_name = 'outbox service')",
        );
        let wrote = begun.elapsed();
        let mut verdict = self.wait_for_delivery(&server, &file);
        verdict.kills = kills;
        println!(
            "{:?}: {verdict:?}, written in {wrote:?}, all in {:?}",
            self.relay,
            begun.elapsed()
        );
        drop(relays);
        verdict
    }

    /// The messages so far, about.
    fn count(self, server: &Postgres) -> usize {
        let sql = "SELECT count(*) FROM semel_outbox_message";
        server.sql("postgres", sql).parse().unwrap()
    }

    /// Waits until everything is delivered, or for the planted relays until nothing more comes.
    fn wait_for_delivery(self, server: &Postgres, file: &Path) -> Verdict {
        let committed = committed(server);
        let mut waited = Instant::now();
        let mut before = 0;
        loop {
            let verdict = compare(&committed, &fs::read_to_string(file).unwrap());
            if verdict.delivered > before {
                (before, waited) = (verdict.delivered, Instant::now());
            }
            let timeout = match self.relay {
                RelayKind::AfterLast => Duration::from_secs(1),
                RelayKind::Semel | RelayKind::SkipLocked => DELIVERY_TIMEOUT,
            };
            if verdict.lost == 0 || waited.elapsed() > timeout {
                return verdict;
            }
            thread::sleep(Duration::from_millis(100));
        }
    }
}

/// The committed messages of each key, in the order of the commits.
fn committed(server: &Postgres) -> BTreeMap<String, Vec<String>> {
    let sql = "SELECT key, id FROM semel_outbox_message
        ORDER BY key, pg_xact_commit_timestamp(xmin), number";
    let mut keys: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in server.sql("postgres", sql).lines() {
        let (key, id) = line.split_once('|').unwrap();
        keys.entry(key.to_owned()).or_default().push(id.to_owned());
    }
    keys
}

/// Compares the first delivery of each message with the commits.
fn compare(committed: &BTreeMap<String, Vec<String>>, file: &str) -> Verdict {
    let mut first: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    // A killed relay may have written half of its last line.
    for line in file.lines() {
        let Some((key, id)) = line.split_once(' ').filter(|(_, id)| id.len() == 36) else {
            continue;
        };
        if seen.insert(id) {
            first.entry(key).or_default().push(id);
        }
    }
    let mut verdict = Verdict { delivered: seen.len(), ..Verdict::default() };
    for (key, ids) in committed {
        verdict.committed += ids.len();
        let got = first.remove(key.as_str()).unwrap_or_default();
        let known: BTreeSet<&str> = ids.iter().map(String::as_str).collect();
        let arrived: BTreeSet<&str> = got.iter().copied().collect();
        verdict.lost += known.difference(&arrived).count();
        verdict.invented += arrived.difference(&known).count();
        let wanted = ids.iter().map(String::as_str).filter(|id| arrived.contains(id));
        verdict.inverted += usize::from(!wanted.eq(got.iter().copied()));
    }
    verdict.invented += first.values().map(Vec::len).sum::<usize>();
    verdict
}
