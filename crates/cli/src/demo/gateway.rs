//! The gateway of the demo, started as `semel serve` starts it, with its store in a temporary
//! folder.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::Context as _;
use tempfile::TempDir;

use crate::app::Server;
use data_encoding::HEXLOWER;
use semel_config::{BearerToken, Config, Overrides};

/// Timeout for stopping the gateway.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// A running gateway.
pub(super) struct DemoGateway {
    pub(super) address: SocketAddr,
    /// The address of the operator API and of the dashboard.
    pub(super) api: Option<SocketAddr>,
    /// The operator's token, drawn for this run.
    pub(super) token: BearerToken,
    server: Server,
    // Dropped after the server, so that the store is closed before its folder is removed.
    folder: TempDir,
}

impl DemoGateway {
    /// Starts a gateway on this port of localhost; 0 selects a free port.
    pub(super) async fn open(shop: SocketAddr, port: u16) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir().context("cannot create a folder for the store")?;
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
        let token = draw_token()?;
        let operator = token.clone();
        let load = move || {
            let mut config = Config::load(None, &overrides, &env).map_err(|it| it.to_string())?;
            if let Some(api) = &mut config.api {
                api.operator_token = Some(operator.clone());
            }
            Ok::<_, String>(config)
        };
        let config = load().map_err(anyhow::Error::msg)?;
        let server = crate::app::start(config, Arc::new(load), None).await?;
        let gateway = server.gateway.as_ref().context("there is no gateway")?;
        let address = *gateway.addresses().first().context("the gateway has no listener")?;
        let api = server.api.as_ref().map(|api| api.address);
        Ok(Self { address, api, token, server, folder })
    }

    /// Stops the gateway and removes its store.
    pub(super) async fn close(self) -> anyhow::Result<()> {
        self.server.stop(SHUTDOWN_TIMEOUT).await;
        self.folder.close().context("cannot remove the folder of the store")
    }
}

/// A token that is worth nothing elsewhere.
fn draw_token() -> anyhow::Result<BearerToken> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).context("the system has no random numbers")?;
    Ok(BearerToken(HEXLOWER.encode(&bytes)))
}
