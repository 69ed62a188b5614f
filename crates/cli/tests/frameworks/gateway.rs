//! The gateway: the real program, in front of an app.

use std::{fs::File, net::SocketAddr, time::Duration};

use crate::{
    app::App,
    common::{self, Records, Setup, hold_turn},
};

/// A running gateway with a store of its own.
#[derive(Debug)]
pub(crate) struct Gateway(common::Gateway);

impl Gateway {
    /// Started as the first page of the documentation does.
    pub(crate) fn in_front_of(upstream: SocketAddr) -> Self {
        let setup = Setup::without_config_file_on(Records::Sqlite, &format!("http://{upstream}"));
        Self(setup.argument("--caller=anonymous").start_blocking())
    }

    /// With one thread, so that every request meets the connections that the one before it left.
    /// They are used again until they have been idle for so long.
    pub(crate) fn of_one_thread_before(app: &App, pool_idle: Option<Duration>) -> Self {
        let url = format!("url = \"http://{}\"", app.address());
        let idle = pool_idle.map(|time| format!(", pool_idle = \"{}ms\"", time.as_millis()));
        let setup = Setup::upstream(format_args!("{{ {url}{} }}", idle.unwrap_or_default()));
        Self(setup.on_disk().gateway("threads = 1").start_blocking())
    }

    /// By a file. Callers are distinguished by their credentials.
    pub(crate) fn configured(text: &str) -> Self {
        let setup = Setup::configured(text).argument("--store=sqlite:semel.db");
        let (name, secret) = ("SEMEL_TEST_WEBHOOK_SECRET", "whsec_a_secret_of_the_tests");
        Self(setup.environment(name, secret).start_blocking())
    }

    /// Keeps the gateway from writing to its store for as long as what it returns lives.
    pub(crate) fn stop_store(&self) -> File {
        hold_turn(&self.0.setup.database())
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.0.address()
    }
}
