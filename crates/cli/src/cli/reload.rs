//! `semel reload`. Applies a changed configuration to a running server.

use std::process::ExitCode;

use super::{
    client::ApiClient,
    command_error::{self, CommandError},
    output::Output,
    target::Operator,
};
use semel_admin::{requests::ReloadRequest, responses::ActionResultView};
use semel_telemetry::escape;

/// Arguments of `semel reload`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// URL of the server's API listener; the operator token comes from `SEMEL_OPERATOR_TOKEN`
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8081")]
    server: String,
    /// Reason for the audit log
    #[arg(long, value_name = "TEXT", default_value = "requested by the operator")]
    why: String,
    /// Apply a configuration that loses records: keys that have run may run again. The audit log
    /// records this approval
    #[arg(long)]
    accept_identity_change: bool,
    #[command(flatten)]
    operator: Operator,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    command_error::run(args.json, reload(args))
}

async fn reload(args: Args) -> Result<ExitCode, CommandError> {
    let (client, output) = (ApiClient::new(&args.server)?, Output::new(args.json));
    let request = ReloadRequest {
        why: args.why,
        who: args.operator.name(),
        accept_identity_change: args.accept_identity_change,
    };
    let done: ActionResultView = client.post("/v1/reload", &request).await?;
    if output.json {
        output.json(&done)?;
    } else {
        let changed = done.detail.as_deref().unwrap_or("the configuration was applied");
        output.line(&escape::lines(changed))?;
    }
    Ok(ExitCode::SUCCESS)
}
