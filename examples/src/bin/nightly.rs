//! Bills every customer for a month once.
//!
//! ```text
//! nightly FOLDER MONTH                                  bill everyone who was not billed yet
//! nightly FOLDER MONTH settle CUSTOMER charged          the statement shows the charge
//! nightly FOLDER MONTH settle CUSTOMER not-charged      it does not
//! ```
#![expect(clippy::print_stdout, reason = "a command speaks to its terminal")]

use std::{env, fs, path::Path, process::ExitCode, time::Duration};

use anyhow::{Context, bail};
use semel_examples::nightly::{Bill, Job, Ledger, ToyBank};
use semel_sqlite::SqliteStore;

/// How long a run may be silent before it counts as gone. Short, so that the example need not be
/// waited for.
const LEASE: Duration = Duration::from_secs(2);
const A_CHARGE_TAKES: Duration = Duration::from_millis(300);

const CUSTOMERS: [(&str, u32); 6] = [
    ("ada", 4_900),
    ("grace", 12_050),
    ("edsger", 990),
    ("mallory", 4_900),
    ("zoë", 100_000),
    ("barbara", 7),
];

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let words: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (folder, month) = match words[..] {
        [folder, month, ..] => (Path::new(folder), month),
        _ => bail!("usage: nightly FOLDER MONTH [settle CUSTOMER charged|not-charged]"),
    };
    let job = job(folder)?;
    let bills = CUSTOMERS.map(|(customer, cents)| Bill {
        customer: customer.to_owned(),
        month: month.to_owned(),
        cents,
    });
    match words[2..] {
        [] => {
            let report = job.run(&bills).await?;
            print!("{report}");
            if report.unresolved().next().is_some() {
                println!("Look at the bank's statement, then: nightly FOLDER MONTH settle ...");
            }
            Ok(if report.is_settled() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        ["settle", customer, found @ ("charged" | "not-charged")] => {
            let bill = bills.iter().find(|bill| bill.customer == customer);
            job.settle(bill.context("there is no such customer")?, found == "charged").await?;
            Ok(ExitCode::SUCCESS)
        }
        _ => bail!("settle takes a customer, and charged or not-charged"),
    }
}

fn job(folder: &Path) -> anyhow::Result<Job<ToyBank>> {
    fs::create_dir_all(folder)?;
    let store = SqliteStore::open(folder.join("semel.db"))?;
    let ledger = Ledger::at(&folder.join("ledger.db"))?;
    let bank = ToyBank::new(folder.join("statement.txt"), A_CHARGE_TAKES);
    Ok(Job::new(store, ledger, bank, LEASE))
}
