//! `semel key`. Prints an idempotency key: random, ordered by time, or derived from existing ids.

use std::process::ExitCode;

use anyhow::Context as _;
use semel::keys::{self, Uuid};

use super::output::Output;

/// How many keys one command prints at most.
const COUNT_MAX: u64 = 1_000_000;

/// Arguments of `semel key`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    kind: Kind,
}

#[derive(Debug, clap::Subcommand)]
enum Kind {
    /// A random key, a UUID of version 4
    Random(Count),
    /// A key that sorts by the time it was made, a UUID of version 7
    Time(Count),
    /// The key of an operation that existing ids name: a SHA-256, or a UUID with --namespace
    Derive(Derive),
}

#[derive(Debug, clap::Args)]
struct Count {
    /// How many keys, one a line
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=COUNT_MAX))]
    count: u64,
}

#[derive(Debug, clap::Args)]
struct Derive {
    /// Print the UUID of version 5 in this namespace: a UUID, or `url`, `dns`, `oid`, `x500`
    #[arg(long, value_name = "UUID", value_parser = namespace)]
    namespace: Option<Uuid>,
    /// The name of the operation, then the ids. With --namespace, the ids alone
    #[arg(required = true, value_name = "PART")]
    parts: Vec<String>,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let output = Output::new(false);
    match &args.kind {
        Kind::Random(Count { count }) => {
            for _ in 0..*count {
                output.line(keys::random().as_str())?;
            }
        }
        Kind::Time(Count { count }) => {
            for _ in 0..*count {
                output.line(keys::time_ordered().as_str())?;
            }
        }
        Kind::Derive(derive) => {
            let key = match derive.namespace {
                Some(namespace) => keys::uuid_from(namespace, &derive.parts),
                None => {
                    let (domain, parts) = derive.parts.split_first().context("no parts")?;
                    keys::from_parts(domain, parts)
                }
            };
            output.line(key.as_str())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn namespace(text: &str) -> Result<Uuid, String> {
    match text {
        "url" => Ok(Uuid::NAMESPACE_URL),
        "dns" => Ok(Uuid::NAMESPACE_DNS),
        "oid" => Ok(Uuid::NAMESPACE_OID),
        "x500" => Ok(Uuid::NAMESPACE_X500),
        _ => Uuid::parse_str(text).map_err(|_| "not a UUID, url, dns, oid or x500".to_owned()),
    }
}
