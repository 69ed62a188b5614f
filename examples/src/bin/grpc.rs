//! Serves the bank, and asks it.
//!
//! ```text
//! grpc serve FOLDER [ADDRESS]                 with a secret of 16 bytes or more in BANK_SECRET
//! grpc transfer URL KEY FROM TO CENTS         moves money; send it again with the same key
//! grpc balance URL ACCOUNT                    shows what is there
//! ```
#![expect(clippy::print_stdout, reason = "a command speaks to its terminal")]

use std::{env, path::Path};

use anyhow::{Context, anyhow, bail};
use semel_examples::{
    grpc::{Account, BalancesClient, Bank, Transfer, TransfersClient},
    shutdown,
};
use semel_tower::Secret;
use tokio::net::TcpListener;
use tonic::{Request, Status, transport::Endpoint};

/// What an account begins with.
const GIFT: u32 = 10_000;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let words: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["serve", folder] => serve(Path::new(folder), "127.0.0.1:50051").await,
        ["serve", folder, address] => serve(Path::new(folder), address).await,
        ["transfer", url, key, from, to, cents] => {
            let (from, to) = (from.to_owned(), to.to_owned());
            transfer(url, key, Transfer { from, to, cents: cents.parse()? }).await
        }
        ["balance", url, account] => {
            let channel = Endpoint::from_shared(url.to_owned())?.connect().await?;
            let account = Account { name: account.to_owned() };
            let balance = BalancesClient::new(channel).get(account).await.map_err(status_error)?;
            println!("{} cents", balance.get_ref().cents);
            Ok(())
        }
        _ => bail!("usage: grpc serve | transfer | balance ..."),
    }
}

async fn serve(folder: &Path, address: &str) -> anyhow::Result<()> {
    // It names the callers in the store, so it must be the same after a restart.
    #[expect(clippy::disallowed_methods, reason = "configuration is read here, once")]
    let secret = Secret::new(env::var("BANK_SECRET").context("BANK_SECRET")?)?;
    let bank = Bank::open(folder)?;
    for name in ["ada", "grace"] {
        if bank.accounts().balance(name).await.is_err() {
            bank.accounts().deposit(name, GIFT).await?;
        }
    }
    let listener = TcpListener::bind(address).await.context(address.to_owned())?;
    let shutdown_signal = shutdown::requested()?;
    println!("serving http://{}", listener.local_addr()?);
    match bank.serve(listener, &secret, shutdown_signal).await? {
        0 => Ok(()),
        left => bail!("{left} transfers did not finish"),
    }
}

async fn transfer(url: &str, key: &str, order: Transfer) -> anyhow::Result<()> {
    let channel = Endpoint::from_shared(url.to_owned())?.connect().await?;
    let mut request = Request::new(order);
    request.metadata_mut().insert("idempotency-key", key.parse()?);
    request.metadata_mut().insert("authorization", "Bearer sk_shell".parse()?);
    let answer = TransfersClient::new(channel).transfer(request).await.map_err(status_error)?;
    let replayed =
        if answer.metadata().contains_key("idempotent-replayed") { " (replayed)" } else { "" };
    let receipt = answer.get_ref();
    println!("transfer {}, {} cents left{replayed}", receipt.number, receipt.left_cents);
    Ok(())
}

/// A status in one line: the layer's refusals have a name, the bank's own a sentence.
#[expect(clippy::needless_pass_by_value, reason = "the shape of a conversion")]
fn status_error(status: Status) -> anyhow::Error {
    match status.metadata().get("idempotency-problem").and_then(|slug| slug.to_str().ok()) {
        Some(slug) => anyhow!("{:?}, {slug}", status.code()),
        None => anyhow!("{:?}: {}", status.code(), status.message()),
    }
}
