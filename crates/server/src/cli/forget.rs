//! `semel forget`. Forgets a record.

use std::process::ExitCode;

use clap::builder::NonEmptyStringValueParser;

use super::{
    desk::{self, Place},
    failure::{self, Failure},
    find::{self, Named},
};
use crate::api::{
    form::{Forget, Plain},
    view::RecordView,
};

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
    failure::run(args.place.json, forget(args))
}

async fn forget(args: Args) -> Result<ExitCode, Failure> {
    let (desk, screen) = (args.place.open().await?, args.place.screen());
    let record = args.named.record(&desk).await?;
    let follows = match record.line.state.as_str() {
        "in_flight" => return Err(Failure::Stale(in_flight(&record).to_owned())),
        "completed" => "it was carried out, and the next request with it is carried out AGAIN",
        "held" => "nobody knows whether it was carried out, and the next request with it will be",
        _ => "the next request with it runs as if it were the first",
    };
    let follows = format!("the key {} is forgotten; {follows}.", record.line.key);
    screen.confirm(&follows, args.yes)?;
    let words = Plain { why: args.why, who: desk::user_name() };
    let form = Forget::new(find::target(&record), words);
    let done = desk.forget(form).await?;
    if screen.json {
        screen.json(&done)?
    } else {
        screen.line(&format!("done: {follows}"))?
    }
    Ok(ExitCode::SUCCESS)
}

/// Why a record that is in flight is not forgotten.
fn in_flight(record: &RecordView) -> &'static str {
    if record.has_lapsed() {
        "its owner was not heard of again, and it need not be forgotten: the next retry decides, \
         and where its route says rerun, runs it"
    } else {
        "somebody may be running it: wait until it is completed, released or held"
    }
}
