//! The sample APIs, each under the server that its framework is used with.
//!
//! Neither knows anything of keys: every `POST /charges` that reaches it is a charge, and
//! `GET /charges` tells them all.

use std::{collections::BTreeMap, net::SocketAddr, process::Command, time::Duration};

use serde_json::Value;

use crate::{
    HERE,
    http::Connection,
    process::{Process, prepared},
};

/// What an app is written in.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Framework {
    FastApi,
    Express,
}

/// A running app.
#[derive(Debug)]
pub(crate) struct App {
    framework: Framework,
    process: Process,
}

impl App {
    /// Starts one that closes idle connections after this time, or after the one that its server
    /// thinks right. `None` where the language is not there.
    pub(crate) fn start(framework: Framework, keep_alive: Option<Duration>) -> Option<Self> {
        let mut command = match framework {
            Framework::FastApi => uvicorn(keep_alive)?,
            Framework::Express => node(keep_alive)?,
        };
        Some(Self { framework, process: Process::start(&mut command) })
    }

    pub(crate) const fn framework(&self) -> Framework {
        self.framework
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.process.address
    }

    /// How often each customer was charged.
    pub(crate) fn charges(&self) -> BTreeMap<String, usize> {
        let ledger = Connection::open(self.address()).get("/charges").unwrap();
        let ledger: Vec<Value> = serde_json::from_slice(&ledger.body).unwrap();
        let mut charges = BTreeMap::new();
        for charge in ledger {
            let customer = charge["customer"].as_str().unwrap().to_owned();
            *charges.entry(customer).or_default() += 1;
        }
        charges
    }
}

fn uvicorn(keep_alive: Option<Duration>) -> Option<Command> {
    let mut command = Command::new(prepared("SEMEL_TEST_PYTHON")?);
    command.args(["-m", "uvicorn", "app:app", "--port", "0", "--app-dir"]);
    command.arg(format!("{HERE}/fastapi")).env("PYTHONDONTWRITEBYTECODE", "1");
    if let Some(time) = keep_alive {
        command.args(["--timeout-keep-alive", &time.as_secs().to_string()]);
    }
    Some(command)
}

fn node(keep_alive: Option<Duration>) -> Option<Command> {
    let mut command = Command::new("node");
    command.env("NODE_PATH", prepared("SEMEL_TEST_NODE_MODULES")?).env("PORT", "0");
    command.arg(format!("{HERE}/express/start.js"));
    if let Some(time) = keep_alive {
        command.env("KEEP_ALIVE_SECONDS", time.as_secs().to_string());
    }
    Some(command)
}
