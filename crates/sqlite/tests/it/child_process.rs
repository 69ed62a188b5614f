//! A child process that loads a store and prints what was acknowledged, for tests that kill it.
//!
//! It is this test binary again; an environment variable makes it run [`child`]. Every
//! acknowledgement becomes one line on its standard output, written before the next operation
//! begins: `G key fence` for a granted claim, `C key fence` for a recorded answer, `O key` for a
//! claim that found the key taken, `E key effect` for an error.

use std::{
    env,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use semel_core::{
    Answer, Caller, Claim, Claimant, Claimed, Effect, Fence, Fenced, Fingerprint, Finish, Key,
    ListQuery, OwnerToken, RecordId, Scope, StateName, StateView, Store, StoredResponse,
};
use semel_sqlite::{Options, SqliteStore};

const FILE: &str = "SEMEL_CHILD_FILE";
const PREFIX: &str = "SEMEL_CHILD_PREFIX";
const TASKS: &str = "SEMEL_CHILD_TASKS";
const KEYS: &str = "SEMEL_CHILD_KEYS";
const DURABLE: &str = "SEMEL_CHILD_DURABLE";
const LIST_ONLY: &str = "SEMEL_CHILD_LOOK";
const BARRIER: &str = "SEMEL_CHILD_BARRIER";

/// So few that a child goes through many checkpoints before it is killed.
const CHECKPOINT_PAGES: u32 = 20;

/// The parameters of a child.
#[derive(Clone, Debug)]
pub(crate) struct ChildJob {
    pub(crate) file: PathBuf,
    /// The prefix of its keys. Children with the same prefix work on the same keys.
    pub(crate) prefix: String,
    pub(crate) tasks: usize,
    /// How many keys it processes before it ends.
    pub(crate) keys: u64,
    pub(crate) durable: bool,
    /// Whether it only prints the records it finds, in the same format, and then waits.
    pub(crate) list_only: bool,
    /// Whether it prints `ready` and waits for a line before it begins.
    pub(crate) barrier: bool,
}

impl ChildJob {
    pub(crate) fn new(file: impl Into<PathBuf>, prefix: impl Into<String>) -> Self {
        Self {
            file: file.into(),
            prefix: prefix.into(),
            tasks: 16,
            keys: 1 << 40,
            durable: true,
            list_only: false,
            barrier: false,
        }
    }

    /// The command that runs the job; a test may add to it before it starts.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(env::current_exe().unwrap());
        command
            .args(["--exact", "child_process::child", "--nocapture"])
            .env(FILE, &self.file)
            .env(PREFIX, &self.prefix)
            .env(TASKS, self.tasks.to_string())
            .env(KEYS, self.keys.to_string())
            .env(DURABLE, self.durable.to_string())
            .env(LIST_ONLY, self.list_only.to_string())
            .env(BARRIER, self.barrier.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit());
        command
    }
}

/// Starts several children that begin at the same time.
pub(crate) fn start_together(jobs: &[ChildJob]) -> Vec<Child> {
    let started =
        jobs.iter().map(|job| ChildJob { barrier: true, ..job.clone() }.command().spawn());
    let mut children: Vec<Child> = started.map(Result::unwrap).collect();
    for child in &mut children {
        // Byte by byte, so that later output is not consumed.
        let mut acknowledged = Vec::new();
        while !acknowledged.ends_with(b"ready\n") {
            let mut byte = [0];
            child.stdout.as_mut().unwrap().read_exact(&mut byte).unwrap();
            acknowledged.extend(byte);
        }
    }
    for child in &mut children {
        child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    }
    children
}

/// What a child acknowledged.
#[derive(Debug, Default)]
pub(crate) struct Acknowledged {
    pub(crate) granted: Vec<(String, Fence)>,
    pub(crate) completed: Vec<(String, Fence)>,
    pub(crate) occupied: Vec<String>,
    /// Errors: the key, and whether the effect was unknown.
    pub(crate) errors: Vec<(String, bool)>,
}

impl Acknowledged {
    /// Reads until the child has ended, calling `each` after each line.
    pub(crate) fn listen(child: &mut Child, mut each: impl FnMut(&Self, &mut Child)) -> Self {
        let mut acknowledged = Self::default();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while lines.read_line(&mut line).unwrap() > 0 {
            // A line cut off by the kill acknowledges nothing.
            if let Some(whole) = line.strip_suffix('\n') {
                acknowledged.take(whole);
                each(&acknowledged, child);
            }
            line.clear();
        }
        child.wait().unwrap();
        acknowledged
    }

    fn take(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let fence = |text: &str| Fence::new(text.parse().unwrap()).unwrap();
        match words[..] {
            ["G", key, number] => self.granted.push((key.to_owned(), fence(number))),
            ["C", key, number] => self.completed.push((key.to_owned(), fence(number))),
            ["O", key] => self.occupied.push(key.to_owned()),
            ["E", key, effect] => self.errors.push((key.to_owned(), effect == "unknown")),
            // What the test harness prints.
            _ => {}
        }
    }

    /// Checks law 10: everything acknowledged is in the file. Returns what is missing.
    pub(crate) async fn missing(&self, store: &SqliteStore) -> Vec<String> {
        let mut missing = Vec::new();
        for (key, fence) in &self.granted {
            match store.get(&id(key)).await.unwrap() {
                Some(seen) if seen.fence == *fence => {}
                seen => missing.push(format!("granted {key} {fence}: {seen:?}")),
            }
        }
        for (key, fence) in &self.completed {
            let expected = answer(key);
            match store.get(&id(key)).await.unwrap().map(|seen| seen.state) {
                Some(StateView::Completed { answer, .. }) if answer == expected => {}
                seen => missing.push(format!("completed {key} {fence}: {seen:?}")),
            }
        }
        missing
    }
}

pub(crate) fn id(key: &str) -> RecordId {
    RecordId::new(
        Scope::new("payments").unwrap(),
        Caller::new("merchant-7").unwrap(),
        Key::new(key).unwrap(),
    )
}

pub(crate) fn claim(key: &str, owner: [u8; 16]) -> Claim {
    let fingerprint = Fingerprint::try_from(&[1; 33][..]).unwrap();
    let mut claim = Claim::new(id(key), fingerprint, OwnerToken::from_bytes(owner));
    claim.retention = Duration::from_secs(3600);
    claim
}

/// The answer that belongs to a key: bytes that no other key has.
pub(crate) fn answer(key: &str) -> Answer {
    let body = key.repeat(500 / key.len() + 1);
    Answer::response(&StoredResponse { status: 201, body: body.into(), ..Default::default() })
}

#[test]
fn child() {
    #[expect(clippy::disallowed_methods, reason = "the parent passes parameters to the child")]
    let text = |name: &str| env::var(name);
    let Ok(file) = text(FILE) else { return };
    // The test harness does not end its own line.
    print_line("");
    let number = |name: &str| -> u64 { text(name).unwrap().parse().unwrap() };
    let mut options = Options::new().checkpoint_pages(CHECKPOINT_PAGES);
    if text(DURABLE).unwrap() == "false" {
        options = options.without_durability();
    }
    let store = Arc::new(options.open(Path::new(&file)).unwrap());
    if text(BARRIER).unwrap() == "true" {
        print_line("ready");
        std::io::stdin().read_line(&mut String::new()).unwrap();
    }
    let prefix = text(PREFIX).unwrap();
    let (tasks, keys) = (number(TASKS), number(KEYS));
    let next = Arc::new(AtomicU64::new(0));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .unwrap();
    if text(LIST_ONLY).unwrap() == "true" {
        return runtime.block_on(list_only(&store));
    }
    runtime.block_on(async {
        let mut running = Vec::new();
        for task in 0..tasks {
            let (store, next, prefix) = (Arc::clone(&store), Arc::clone(&next), prefix.clone());
            running.push(tokio::spawn(async move {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= keys {
                        return;
                    }
                    work(&store, &format!("{prefix}-{number}"), task).await;
                }
            }));
        }
        for task in running {
            task.await.unwrap();
        }
    });
}

/// Prints the records like the children that wrote them, and waits to be killed.
async fn list_only(store: &SqliteStore) {
    let mut query = ListQuery::default();
    loop {
        let page = store.list(&query).await.unwrap();
        for record in page.items {
            let (key, fence) = (record.id.key, record.fence);
            print_line(&format!("G {key} {fence}"));
            if record.state == StateName::Completed {
                print_line(&format!("C {key} {fence}"));
            }
        }
        query.after = page.next;
        if query.after.is_none() {
            break;
        }
    }
    print_line("O end");
    std::future::pending().await
}

/// Claims and completes one key, and retries if the effect is unknown.
async fn work(store: &SqliteStore, key: &str, task: u64) {
    let mut owner = [0; 16];
    owner[..4].copy_from_slice(&std::process::id().to_be_bytes());
    owner[8..].copy_from_slice(&task.to_be_bytes());
    let claim = claim(key, owner);
    let grant = loop {
        match store.claim(&claim).await {
            Ok(Claimed::Granted(grant)) => break grant,
            Ok(Claimed::Occupied(_)) => return print_line(&format!("O {key}")),
            Err(error) => print_line(&failed(key, error.effect())),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    print_line(&format!("G {key} {}", grant.fence));
    complete(store, key, claim.claimant(grant.fence)).await;
}

async fn complete(store: &SqliteStore, key: &str, by: Claimant) {
    let finish = Finish::complete(answer(key));
    loop {
        match store.finish(&id(key), by, &finish).await {
            Ok(Fenced::Applied) => return print_line(&format!("C {key} {}", by.fence)),
            Ok(Fenced::Lost) => panic!("{key}: no other owner exists"),
            Err(error) => print_line(&failed(key, error.effect())),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn failed(key: &str, effect: Effect) -> String {
    let effect = match effect {
        Effect::None => "none",
        Effect::Unknown => "unknown",
    };
    format!("E {key} {effect}")
}

/// One line in one write, so that lines of several threads do not mix.
fn print_line(line: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("{line}\n").as_bytes()).unwrap();
    out.flush().unwrap();
}
