//! `semel delete`. Deletes a record.

use std::process::ExitCode;

use clap::builder::NonEmptyStringValueParser;

use super::{
    desk::{Operator, Place},
    failure::{self, Failure},
    find::{self, Named},
};
use crate::api::{
    form::{Delete, Plain},
    view::RecordView,
};

/// What can be typed after `semel delete`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    named: Named,
    #[command(flatten)]
    place: Place,
    /// Why, for the audit log
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    why: String,
    #[command(flatten)]
    operator: Operator,
    /// Skip the confirmation prompt
    #[arg(long)]
    yes: bool,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    failure::run(args.place.json, delete(args))
}

async fn delete(args: Args) -> Result<ExitCode, Failure> {
    let (desk, screen) = (args.place.open().await?, args.place.screen());
    let record = args.named.record(&desk).await?;
    let follows = match record.line.state.as_str() {
        "in_flight" => return Err(Failure::Stale(in_flight(&record).to_owned())),
        "completed" => "it was carried out, and the next request with this key runs it AGAIN",
        "held" => "its outcome is unknown, and the next request with this key runs it",
        _ => "the next request with this key runs as if it were the first",
    };
    let follows = format!("The record of {} is deleted; {follows}.", record.line.key);
    screen.confirm(&follows, args.yes)?;
    let words = Plain { why: args.why, who: args.operator.name() };
    let form = Delete::new(find::target(&record), words);
    let done = desk.delete(form).await?;
    if screen.json {
        screen.json(&done)?
    } else {
        screen.line(&format!("done: {follows}"))?
    }
    Ok(ExitCode::SUCCESS)
}

/// Why a record that is in flight is not deleted.
const fn in_flight(record: &RecordView) -> &'static str {
    if record.line.lapsed {
        "its lease has expired, and it need not be deleted: the next retry decides, and where its \
         route says rerun, runs it"
    } else {
        "somebody may be running it: wait until it is completed, released or held"
    }
}
