//! The gateway in front of the payment API, as `semel serve` would start it, with its store in a
//! folder that is gone afterwards.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use semel::{
    Semel,
    core::{FingerprintRule, Policy, Scope},
    keys,
};
use semel_sqlite::SqliteStore;
use semel_tower::{Secret, header::IDEMPOTENCY_KEY};
use tempfile::TempDir;

use crate::{
    config::{
        CallerRule, Config, Gateway, Guard, KeySource, Limits, Match, Required, Route,
        SecretSource, StoreUrl, Upstream,
    },
    gateway,
};

/// How long it may take to stop.
const PATIENCE: Duration = Duration::from_secs(2);

/// A gateway at work.
#[derive(Debug)]
pub(super) struct Front {
    pub(super) address: SocketAddr,
    gateway: gateway::Running,
    // After the gateway, so that the store is closed before its folder goes.
    folder: TempDir,
}

impl Front {
    /// Starts one on this port of this machine, 0 for a free one.
    pub(super) fn open(shop: SocketAddr, port: u16) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir().context("cannot make a folder for the store")?;
        let store = folder.path().join("semel.db");
        let semel = Semel::new(SqliteStore::open(&store)?);
        // Nobody in the story has a credential, so what would hash one may be anything.
        let secret = Secret::new(keys::random().as_str())?;
        let config = config(&store, shop, port)?;
        let gateway = gateway::start(&config, &semel, &secret)?;
        let address = *gateway.addresses().first().context("the gateway listens nowhere")?;
        Ok(Self { address, gateway, folder })
    }

    /// Stops it, and removes its store.
    pub(super) async fn close(self) -> anyhow::Result<()> {
        self.gateway.stop(PATIENCE).await;
        self.folder.close().context("cannot remove the folder of the store")
    }
}

/// `semel serve --upstream http://SHOP --caller anonymous`
fn config(store: &Path, shop: SocketAddr, port: u16) -> anyhow::Result<Config> {
    let upstream = Upstream::at(&format!("http://{shop}")).map_err(anyhow::Error::msg)?;
    let upstream = Arc::new(upstream);
    let guard = Guard {
        scope: Scope::new("payments")?,
        key: vec![KeySource::Header(IDEMPOTENCY_KEY)],
        required: Required::No,
        callers: vec![CallerRule::Anonymous],
        fingerprint: FingerprintRule::default(),
        policy: Policy::default(),
        keep_headers: Vec::new(),
    };
    let matches = Match::parse("POST,PATCH /**").map_err(anyhow::Error::msg)?;
    let gateway = Gateway {
        listen: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, port))],
        tls: None,
        upstream: Arc::clone(&upstream),
        threads: 1,
        drain: PATIENCE,
        trust_forwarded: false,
        docs: None,
    };
    Ok(Config {
        store: StoreUrl::Sqlite(store.to_owned()),
        gateway,
        api: None,
        limits: Limits::default(),
        sweep_every: Duration::from_secs(900),
        secret: SecretSource::BesideStore,
        routes: vec![Route { matches, guard: Some(guard), upstream }],
    })
}
