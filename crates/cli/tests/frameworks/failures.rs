//! Services that charge and then answer with an error, or answer while they still charge.
//!
//! Such an answer does not prove that nothing happened, so no retry may reach the service. Each
//! test sends a request and retries it ten times under one key, through a gateway with default
//! settings, and counts the charges at the service.

use std::{net::SocketAddr, process::Command, thread, time::Duration};

use serde::Deserialize;

use crate::{
    HERE, axum_failures,
    gateway::Gateway,
    http::Connection,
    process::{Process, prepared},
};

const RETRIES: usize = 10;

/// How often the ledger is read until no charge is under way. One takes less than a second; the
/// machine may be busy.
const LEDGER_READS_MAX: usize = 1500;
const LEDGER_INTERVAL: Duration = Duration::from_millis(20);

#[test]
fn a_handler_over_the_limit_of_gos_timeout_handler_charges_once() {
    charges_once(Service::go(), "/slow", 503);
}

#[test]
fn a_handler_over_the_limit_of_tower_https_timeout_layer_charges_once() {
    charges_once(Some(Service::axum()), "/slow", 408);
}

#[test]
fn a_fastapi_handler_that_charges_and_raises_charges_once() {
    charges_once(Service::fastapi(), "/raise", 500);
}

#[test]
fn a_fastapi_handler_that_answers_while_it_charges_charges_once() {
    charges_once(Service::fastapi(), "/slow", 503);
}

#[test]
fn an_express_handler_that_charges_and_throws_charges_once() {
    charges_once(Service::express(), "/raise", 500);
}

#[test]
fn an_express_handler_over_the_limit_of_connect_timeout_charges_once() {
    charges_once(Service::express(), "/slow", 503);
}

/// Sends a request and its retries. The first gets what the service answers; the others get
/// that the outcome is unknown.
fn charges_once(service: Option<Service>, path: &str, status: u16) {
    let Some(service) = service else { return };
    let gateway = Gateway::in_front_of(service.address);
    let mut client = Connection::open(gateway.address());
    let answers: Vec<(u16, Option<String>)> = (0..=RETRIES)
        .map(|_| client.post(path, "order-1").unwrap())
        .map(|answer| {
            (answer.status.as_u16(), answer.header("idempotency-problem").map(str::to_owned))
        })
        .collect();
    let charges = service.charges_when_idle();
    assert_eq!(charges, 1, "charges for one key; the answers were {answers:?}");
    assert_eq!(answers.first(), Some(&(status, None)));
    for (_, problem) in answers.iter().skip(1) {
        assert_eq!(problem.as_deref(), Some("outcome-unknown"), "{answers:?}");
    }
}

/// A service that counts its charges.
#[derive(Debug)]
struct Service {
    address: SocketAddr,
    /// `None` where it runs in the process of the test.
    _process: Option<Process>,
}

/// What `GET /ledger` answers.
#[derive(Debug, Deserialize)]
struct Ledger {
    charges: usize,
    running: usize,
}

impl Service {
    fn go() -> Option<Self> {
        Some(Self::start(&mut Command::new(prepared("SEMEL_TEST_GO")?.join("failures"))))
    }

    fn fastapi() -> Option<Self> {
        let mut command = Command::new(prepared("SEMEL_TEST_PYTHON")?);
        command.args(["-m", "uvicorn", "fastapi_failures:app", "--port", "0", "--app-dir"]);
        command.arg(format!("{HERE}/failures")).env("PYTHONDONTWRITEBYTECODE", "1");
        Some(Self::start(&mut command))
    }

    fn express() -> Option<Self> {
        let mut command = Command::new("node");
        command.env("NODE_PATH", prepared("SEMEL_TEST_NODE_MODULES")?);
        command.arg(format!("{HERE}/failures/express_failures.js"));
        Some(Self::start(&mut command))
    }

    fn axum() -> Self {
        Self { address: axum_failures::start(), _process: None }
    }

    fn start(command: &mut Command) -> Self {
        let process = Process::start(command);
        Self { address: process.address, _process: Some(process) }
    }

    /// The number of charges, once no request runs any more.
    fn charges_when_idle(&self) -> usize {
        for _ in 0..LEDGER_READS_MAX {
            let answer = Connection::open(self.address).get("/ledger").unwrap();
            let ledger: Ledger = serde_json::from_slice(&answer.body).unwrap();
            if ledger.running == 0 {
                return ledger.charges;
            }
            thread::sleep(LEDGER_INTERVAL);
        }
        panic!("the service is not idle");
    }
}
