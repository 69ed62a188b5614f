//! A process with a journal is killed between every two steps of a call: nothing is lost, and
//! nothing is done twice.

use std::{
    collections::BTreeMap,
    env,
    fs::{self, File},
    io::Write as _,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use bytes::Bytes;
use semel_client::{Journal, RetryClient};
use tempfile::TempDir;

use crate::{
    gateway::Gateway,
    misbehaving_proxy::{MisbehavingProxy, Misbehaviour},
    scripted_api::ScriptedApi,
};

const ORDERS: [&str; 3] = ["order-1", "order-2", "order-3"];

/// The order in whose call the process is killed.
const KILLED: &str = "order-2";

const NOTIFY_MAX: Duration = Duration::from_secs(60);

/// Variables of the child process.
const URL: &str = "SEMEL_TEST_JOURNAL_URL";
const FOLDER: &str = "SEMEL_TEST_JOURNAL_FOLDER";
const KILL_AT: &str = "SEMEL_TEST_JOURNAL_KILL_AT";

/// The program that is killed; as a test of its own it does nothing.
#[test]
fn a_child_process_that_keeps_a_journal() {
    let Some(url) = env::var_os(URL) else { return };
    let folder = env::var_os(FOLDER).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(process_orders(url.to_str().unwrap(), folder.as_ref()));
}

async fn process_orders(url: &str, folder: &Path) {
    let kill_at = |order: &str, step: &str| {
        if order == KILLED && env::var_os(KILL_AT).is_some_and(|wanted| wanted == step) {
            let me = std::process::id().to_string();
            Command::new("kill").args(["-9", &me]).status().unwrap();
            thread::sleep(NOTIFY_MAX);
        }
    };
    let (client, journal) = (RetryClient::new().unwrap(), journal_in(folder));
    let done = done(folder);
    for call in journal.unfinished() {
        if done.contains_key(&call.name) {
            journal.finish(&call.name).unwrap();
        }
    }
    for order in ORDERS.into_iter().filter(|order| !done.contains_key(*order)) {
        let request = http::Request::post(format!("{url}/{order}")).body(Bytes::from(order));
        kill_at(order, "before the journal");
        let request = journal.prepare(order, request.unwrap()).unwrap();
        kill_at(order, "after the journal");
        let answer = client.send(request).await.unwrap();
        kill_at(order, "after the answer");
        let mut file = File::options().create(true).append(true).open(folder.join("done")).unwrap();
        let line = [order.as_bytes(), b" ", answer.body(), b"\n"].concat();
        file.write_all(&line).unwrap();
        file.sync_all().unwrap();
        kill_at(order, "after the result");
        journal.finish(order).unwrap();
        kill_at(order, "after the end");
    }
}

fn journal_in(folder: &Path) -> Journal {
    Journal::open(folder.join("calls.journal")).unwrap()
}

/// The stored results, by order.
fn done(folder: &Path) -> BTreeMap<String, String> {
    let text = fs::read_to_string(folder.join("done")).unwrap_or_default();
    let lines: Vec<_> = text.lines().map(|line| line.split_once(' ').unwrap()).collect();
    let done = lines.iter().map(|(order, result)| ((*order).to_owned(), (*result).to_owned()));
    let done: BTreeMap<_, _> = done.collect();
    assert_eq!(done.len(), lines.len(), "an order is stored twice: {text}");
    done
}

fn child(proxy: &MisbehavingProxy, folder: &TempDir, kill_at: &str) -> Child {
    let mut child = Command::new(env::current_exe().unwrap());
    child.args(["--exact", "journal::a_child_process_that_keeps_a_journal"]);
    child.env(URL, format!("http://{}", proxy.address)).env(FOLDER, folder.path());
    child.env(KILL_AT, kill_at).env("NO_PROXY", "127.0.0.1").stdout(Stdio::null());
    child.spawn().unwrap()
}

/// The first process is killed, at a step of its own or when the proxy notifies; the second one
/// finishes the work.
fn kill_once(kill_at: &str, script: &'static [Misbehaviour]) {
    let api = ScriptedApi::start();
    let gateway = Gateway::in_front_of(api.address);
    let proxy = MisbehavingProxy::start(gateway.address(), [(KILLED, script)]);
    let folder = TempDir::new().unwrap();
    let mut first = child(&proxy, &folder, kill_at);
    if !script.is_empty() {
        proxy.notified.recv_timeout(NOTIFY_MAX).unwrap();
        first.kill().unwrap();
    }
    assert!(!first.wait().unwrap().success(), "{kill_at}: it was not killed");
    let journal = folder.path().join("calls.journal");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        assert_eq!(fs::metadata(&journal).unwrap().permissions().mode() & 0o777, 0o600);
    }
    assert!(child(&proxy, &folder, "").wait().unwrap().success(), "{kill_at}");
    let done = done(folder.path());
    for order in ORDERS {
        let arrivals = proxy.arrivals(order);
        let key = &arrivals[0].key;
        assert!(arrivals.iter().all(|it| it.key == *key), "{kill_at}: {order} changed its key");
        assert_eq!(api.runs(key), 1, "{kill_at}: {order}");
        assert!(done[order].contains(&format!("made for {key}")), "{kill_at}: {order}");
    }
    assert!(journal_in(folder.path()).unfinished().is_empty(), "{kill_at}");
}

#[test]
fn a_process_with_a_journal_is_killed_between_every_two_steps() {
    for step in [
        "before the journal",
        "after the journal",
        "after the answer",
        "after the result",
        "after the end",
    ] {
        kill_once(step, &[]);
    }
    kill_once("before the execution", &[Misbehaviour::NotifyBefore]);
    kill_once("after the execution", &[Misbehaviour::NotifyAfter]);
}
