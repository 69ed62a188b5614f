//! The server in front of the payment API, as `semel serve` starts it, with its store in a folder
//! that is gone afterwards.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::Context as _;
use tempfile::TempDir;

use crate::app::Server;
use semel_config::{Config, Overrides};

/// Timeout for stopping the gateway.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// A running gateway.
pub(super) struct DemoGateway {
    pub(super) address: SocketAddr,
    /// The address of the operator API.
    pub(super) api: Option<SocketAddr>,
    server: Server,
    // After the server, so that the store is closed before its folder goes.
    folder: TempDir,
}

impl DemoGateway {
    /// Starts one on this port of this machine, 0 for a free one.
    pub(super) async fn open(shop: SocketAddr, port: u16) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir().context("cannot make a folder for the store")?;
        let overrides = Overrides {
            upstream: Some(format!("http://{shop}")),
            caller: vec!["anonymous".to_owned()],
            listen: Some(format!("127.0.0.1:{port}")),
            api: Some("127.0.0.1:0".to_owned()),
            store: Some(format!("sqlite:{}", folder.path().join("semel.db").display())),
            cache: None,
        };
        // The demo must not depend on the environment.
        let env = |_: &str| None;
        let load = move || Config::load(None, &overrides, &env).map_err(|error| error.to_string());
        let config = load().map_err(anyhow::Error::msg)?;
        let server = crate::app::start(config, Arc::new(load), None).await?;
        let address = *server.gateway.addresses().first().context("it listens nowhere")?;
        let api = server.api.as_ref().map(|api| api.address);
        Ok(Self { address, api, server, folder })
    }

    /// Stops it, and removes its store.
    pub(super) async fn close(self) -> anyhow::Result<()> {
        self.server.stop(SHUTDOWN_TIMEOUT).await;
        self.folder.close().context("cannot remove the folder of the store")
    }
}
