//! `semel reload`. Applies a changed configuration to a running server.

use std::process::ExitCode;

use super::{
    client::Client,
    desk::Operator,
    failure::{self, Failure},
    screen::Screen,
};
use crate::{
    api::{form::Reload, view::DoneView},
    ops::escape,
};

/// What can be typed after `semel reload`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The server's API listener; the operator's token comes from `SEMEL_OPERATOR_TOKEN`
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8081")]
    server: String,
    /// Why, for the audit log
    #[arg(long, value_name = "TEXT", default_value = "asked for")]
    why: String,
    /// Apply it although routes have changed so that keys that have run would run again; this is
    /// written to the audit log
    #[arg(long)]
    accept_identity_change: bool,
    #[command(flatten)]
    operator: Operator,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    failure::run(args.json, reload(args))
}

async fn reload(args: Args) -> Result<ExitCode, Failure> {
    let (client, screen) = (Client::new(&args.server)?, Screen::new(args.json));
    let form = Reload {
        why: args.why,
        who: args.operator.name(),
        accept_identity_change: args.accept_identity_change,
    };
    let done: DoneView = client.post("/v1/reload", &form).await?;
    if screen.json {
        screen.json(&done)?;
    } else {
        let changed = done.detail.as_deref().unwrap_or("the configuration is applied");
        screen.line(&escape::lines(changed))?;
    }
    Ok(ExitCode::SUCCESS)
}
