//! Serves payments: `payments DATABASE [ADDRESS [separate | outbox MAILBOX | publish MAILBOX]]`.
#![expect(clippy::print_stdout, reason = "a command speaks to its terminal")]

use std::{env, process::ExitCode};

use anyhow::Context;
use semel_examples::{
    payments::{self, Mode},
    shutdown,
};
use tokio::net::TcpListener;

const USAGE: &str =
    "usage: payments DATABASE [ADDRESS [separate | outbox MAILBOX | publish MAILBOX]]";

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let mut words = env::args().skip(1);
    let database = words.next().context(USAGE)?;
    let address = words.next().unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    let mode = match words.next().as_deref() {
        Some("separate") => Mode::Separate,
        Some("outbox") => Mode::Outbox(words.next().context(USAGE)?.into()),
        Some("publish") => Mode::Publish(words.next().context(USAGE)?.into()),
        _ => Mode::OneTransaction,
    };
    let (app, semel) = payments::open(&database, mode).await?;
    let listener = TcpListener::bind(&address).await.context(address)?;
    let shutdown_signal = shutdown::requested()?;
    println!("serving http://{}", listener.local_addr()?);
    let left = payments::serve(app, semel, listener, shutdown_signal).await?;
    println!("stopped; {left} payments did not finish");
    Ok(if left == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
