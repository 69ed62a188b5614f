//! Services that refuse a zombie: an attempt that wakes up after a later one has written.
//!
//! The first attempt is paused beyond `upstream_timeout`, so its route lets the next request run
//! with a higher fence. Then the first wakes up and writes.

use std::{fs, net::SocketAddr, process::Command, thread, time::Duration};

use serde::Deserialize;

use crate::{
    HERE, axum_fences,
    gateway::Gateway,
    http::Connection,
    process::{Process, prepared},
};

/// Where users find the helpers.
const HELPERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib/fence");

/// How often the ledger is read until the zombie has ended.
const LEDGER_READS_MAX: usize = 1500;
const LEDGER_INTERVAL: Duration = Duration::from_millis(20);

/// What `GET /ledger` answers: the attempt of each charge, and how many writes were refused.
#[derive(Debug, Deserialize)]
struct Ledger {
    attempts: Vec<u64>,
    refused: usize,
}

#[test]
fn a_zombie_loses_at_a_fastapi_service() {
    let Some(python) = prepared("SEMEL_TEST_PYTHON") else { return };
    let mut command = Command::new(python);
    command.args(["-m", "uvicorn", "fastapi_fences:app", "--port", "0", "--app-dir"]);
    command.arg(format!("{HERE}/fences")).env("PYTHONPATH", HELPERS);
    let service = Process::start(command.env("PYTHONDONTWRITEBYTECODE", "1"));
    refuses_a_zombie(service.address);
}

#[test]
fn a_zombie_loses_at_an_express_service() {
    let Some(modules) = prepared("SEMEL_TEST_NODE_MODULES") else { return };
    let mut command = Command::new("node");
    command.env("NODE_PATH", modules).env("HELPER", format!("{HELPERS}/express_fence.js"));
    let service = Process::start(command.arg(format!("{HERE}/fences/express_fences.js")));
    refuses_a_zombie(service.address);
}

#[test]
fn a_zombie_loses_at_an_axum_service() {
    refuses_a_zombie(axum_fences::start());
}

fn refuses_a_zombie(service: SocketAddr) {
    let gateway = Gateway::configured(&format!(
        "[gateway]\nupstream = \"http://{}\"\n\n[[route]]\nmatch = \"POST /charges\"\n\
         scope = \"payments\"\ncaller = [\"anonymous\"]\non_unknown = \"rerun\"\n\
         upstream_timeout = \"1s\"\n",
        service
    ));
    let mut client = Connection::open(gateway.address());
    let first = client.charge("zoe", 100).unwrap();
    assert_eq!(first.header("idempotency-problem"), Some("upstream-timeout"));
    let second = client.charge("zoe", 100).unwrap();
    assert!(matches!(second.status.as_u16(), 200 | 201), "{second:?}");
    assert_eq!(ledger(service).attempts, [2]);
    Connection::open(service).get("/open-gate").unwrap();
    for _ in 0..LEDGER_READS_MAX {
        if ledger(service).refused > 0 || ledger(service).attempts.len() > 1 {
            break;
        }
        thread::sleep(LEDGER_INTERVAL);
    }
    let Ledger { attempts, refused } = ledger(service);
    assert_eq!((attempts, refused), (vec![2], 1), "the zombie wrote");
    let replay = client.charge("zoe", 100).unwrap();
    assert_eq!(replay.header("idempotent-replayed"), Some("true"));
    assert_eq!(replay.body, second.body);
}

fn ledger(service: SocketAddr) -> Ledger {
    let answer = Connection::open(service).get("/ledger").unwrap();
    serde_json::from_slice(&answer.body).unwrap()
}

#[test]
fn the_guide_shows_the_helpers_that_are_tested() {
    let guide = format!("{HERE}/../../../../docs/guide/refusing-a-zombie.md");
    let guide = fs::read_to_string(guide).unwrap();
    for (language, file) in [
        ("sql", "fence.sql"),
        ("python", "fastapi_fence.py"),
        ("js", "express_fence.js"),
        ("rust,ignore", "axum_fence.rs"),
    ] {
        let text = fs::read_to_string(format!("{HELPERS}/{file}")).unwrap();
        assert!(guide.contains(&format!("```{language}\n{text}```\n")), "{file} is not shown");
    }
}
