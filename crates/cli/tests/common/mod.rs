//! What the tests of the real binary work with: a gateway as a process of its own, an upstream that
//! counts, a client. Included by path, so that each test binary has it.

#![allow(dead_code, unused_imports, reason = "each test binary uses a part of it")]

mod client;
mod command;
mod content;
mod gateway;
mod records;
mod setup;
mod upstream;

use std::time::Duration;

pub(crate) use semel_testkit::{
    gate::Gate,
    http::TestResponse,
    program::{CommandOutput, Program},
};

pub(crate) use self::{
    client::{Client, ClientRequest, ORDER, charge, get, local, send},
    command::semel_command,
    content::{Content, Pen, content, empty, text, written},
    gateway::Gateway,
    records::{Records, WriteBlock, fresh_postgres, hold_turn, on_sqlite},
    setup::Setup,
    upstream::{ReceivedRequest, Reply, Upstream},
};

/// How long anything may take that will happen: the machine may be busy with other things.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// The token of the service API in [`Setup::service_api`].
pub(crate) const JOBS_TOKEN: &str = "the-token-of-the-jobs";

/// Waits until `condition` holds.
#[track_caller]
pub(crate) fn wait_until(mut condition: impl FnMut() -> bool) -> impl Future<Output = ()> {
    let caller = std::panic::Location::caller();
    async move {
        let end = tokio::time::Instant::now() + TEST_TIMEOUT;
        while !condition() {
            assert!(tokio::time::Instant::now() < end, "timed out waiting at {caller}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}
