//! `semel sweep`. Deletes what retention has passed.

use std::process::ExitCode;

use super::{
    desk::{Operator, Place},
    failure::{self, Failure},
    screen::Progress,
};
use crate::api::form::Plain;

/// What can be typed after `semel sweep`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    place: Place,
    /// Why, for the audit log
    #[arg(long, value_name = "TEXT", default_value = "asked for")]
    why: String,
    #[command(flatten)]
    operator: Operator,
    /// Skip the confirmation prompt
    #[arg(long)]
    yes: bool,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    failure::run(args.place.json, sweep(args))
}

async fn sweep(args: Args) -> Result<ExitCode, Failure> {
    let (desk, screen) = (args.place.open().await?, args.place.screen());
    let follows = "Records past their retention are deleted. They count as absent already, \
                   so no request will notice.";
    screen.confirm(follows, args.yes)?;
    let form = Plain { why: args.why, who: args.operator.name() };
    let swept = {
        let mut progress = Progress::new();
        desk.sweep(form, |deleted| progress.say(&format!("{deleted} deleted"))).await?
    };
    if screen.json {
        screen.json(&swept)?;
    } else {
        screen.line(&format!("done: {} deleted", swept.deleted))?;
    }
    Ok(ExitCode::SUCCESS)
}
