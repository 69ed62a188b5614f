//! `semel forget`. Forgets a record.

use std::process::ExitCode;

use anyhow::anyhow;
use clap::builder::NonEmptyStringValueParser;

use super::{
    desk::{self, Place},
    failure::{self, Failure},
    find::{self, Named},
};
use crate::api::form::Forget;

/// What can be typed after `semel forget`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    named: Named,
    #[command(flatten)]
    place: Place,
    /// Why, for the audit log
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    why: String,
    /// Do not ask
    #[arg(long)]
    yes: bool,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    failure::run(forget(args))
}

async fn forget(args: Args) -> Result<ExitCode, Failure> {
    let (desk, screen) = (args.place.open()?, args.place.screen());
    let record = args.named.record(&desk).await?;
    let follows = match record.line.state.as_str() {
        "in_flight" => {
            let wrong = "somebody may be running it: wait until it is completed, released or held";
            return Err(anyhow!(wrong).into());
        }
        "completed" => "it was carried out, and the next request with it is carried out AGAIN",
        "held" => "nobody knows whether it was carried out, and the next request with it will be",
        _ => "the next request with it runs as if it were the first",
    };
    let follows = format!("the key {} is forgotten; {follows}.", record.line.key);
    screen.confirm(&follows, args.yes)?;
    let who = desk::user_name();
    let form = Forget { target: find::target(&record), why: args.why, who };
    let done = desk.forget(form).await?;
    if screen.json {
        screen.json(&done)?
    } else {
        screen.line(&format!("done: {follows}"))?
    }
    Ok(ExitCode::SUCCESS)
}
