//! The database file of a serving gateway is removed, moved away or replaced.

use std::{fs, path::PathBuf};

use tokio::time::{Instant, sleep};

use crate::common::{
    Gateway, ORDER, Setup, TEST_TIMEOUT, TestResponse, Upstream, charge, local, on_sqlite, send,
};

/// A gateway with the completed key `known`, and its files.
struct Served {
    upstream: Upstream,
    setup: Setup,
    gateway: Gateway,
    known: TestResponse,
}

impl Served {
    async fn new() -> Self {
        let upstream = Upstream::plain().await;
        let setup = Setup::new(&upstream.url());
        let gateway = setup.start().await;
        let known = gateway.send(charge("known", ORDER)).await;
        assert_eq!(known.status, 201);
        Self { upstream, setup, gateway, known }
    }

    fn files(&self) -> [PathBuf; 3] {
        ["", "-wal", "-shm"].map(|suffix| {
            let mut name = self.setup.database().into_os_string();
            name.push(suffix);
            name.into()
        })
    }

    /// Asserts that a new key is refused, that the known one does not run again, and that the
    /// gateway reports itself as not ready.
    async fn refuses(&self, key: &str) {
        for _ in 0..3 {
            let refused = self.gateway.send(charge(key, ORDER)).await;
            refused.assert_problem(503, "store-unavailable");
        }
        self.gateway.send(charge("known", ORDER)).await.assert_replay_of(&self.known);
        assert_eq!(self.upstream.request_count(), 1);
        assert_eq!(send(self.gateway.api(), local("/readyz")).await.status, 503);
    }
}

#[tokio::test]
async fn a_removed_file_refuses_new_keys_and_is_not_recreated() {
    if !on_sqlite() {
        return;
    }
    let served = Served::new().await;
    for file in served.files() {
        fs::remove_file(file).unwrap();
    }
    served.refuses("new").await;
    assert!(!served.setup.database().exists());
    assert!(served.gateway.log_lines().join("\n").contains("was removed while it was open"));
    drop(served.gateway);
    let again = served.setup.spawn();
    assert_eq!(again.wait_for_exit().await.code(), Some(1));
    again.wait_for_log("--new-store").await;
}

#[tokio::test]
async fn an_empty_store_in_the_place_of_the_file_is_not_written_to() {
    if !on_sqlite() {
        return;
    }
    let served = Served::new().await;
    let other = Setup::new(&served.upstream.url());
    other.start().await.assert_clean_shutdown().await;
    for file in served.files() {
        fs::remove_file(file).unwrap();
    }
    fs::copy(other.database(), served.setup.database()).unwrap();
    let replaced = fs::read(served.setup.database()).unwrap();
    served.refuses("new").await;
    assert_eq!(fs::read(served.setup.database()).unwrap(), replaced);
    assert!(served.gateway.log_lines().join("\n").contains("another file has taken the place"));
}

#[tokio::test]
async fn a_file_that_was_moved_away_and_back_is_served_again() {
    if !on_sqlite() {
        return;
    }
    let served = Served::new().await;
    let away = served.setup.database().with_file_name("away");
    fs::rename(served.setup.database(), &away).unwrap();
    served.refuses("new").await;
    assert!(!served.setup.database().exists());
    fs::rename(&away, served.setup.database()).unwrap();
    let end = Instant::now() + TEST_TIMEOUT;
    while served.gateway.send(charge("new", ORDER)).await.status != 201 {
        assert!(Instant::now() < end, "the file is back: {:?}", served.gateway.log_lines());
        sleep(std::time::Duration::from_millis(50)).await;
    }
    served.gateway.send(charge("known", ORDER)).await.assert_replay_of(&served.known);
    for key in ["known", "new"] {
        assert_eq!(served.upstream.requests_with_key(key).len(), 1, "{key}");
    }
    served.gateway.assert_clean_shutdown().await;
}
