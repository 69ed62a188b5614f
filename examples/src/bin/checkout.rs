//! Serves the checkout: `checkout FOLDER [ADDRESS]`.
#![expect(clippy::print_stdout, reason = "a command speaks to its terminal")]

use std::{env, path::Path, process::ExitCode, time::Duration};

use anyhow::Context;
use semel_examples::{
    checkout::{Merchants, Shop},
    shutdown,
};
use tokio::net::TcpListener;

/// So that there is a middle in which one can hang up, send it again, or stop the service.
const A_CHARGE_TAKES: Duration = Duration::from_secs(1);

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let mut words = env::args().skip(1);
    let folder = words.next().context("usage: checkout FOLDER [ADDRESS]")?;
    let address = words.next().unwrap_or_else(|| "127.0.0.1:8080".to_owned());

    let merchants = Merchants::new([("sk_ada", "ada"), ("sk_grace", "grace")]);
    let shop = Shop::open(Path::new(&folder), merchants, A_CHARGE_TAKES)?;
    let listener = TcpListener::bind(&address).await.context(address)?;
    let shutdown_signal = shutdown::requested()?;
    println!("serving http://{}", listener.local_addr()?);

    let left = shop.serve(listener, shutdown_signal).await?;
    println!("stopped; {left} checkouts did not finish");
    Ok(if left == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
