//! A nightly job that bills every customer for a month once, however often it is started.
//!
//! Start it twice, kill it in the middle, start it from two machines: each customer is charged at
//! most once. What is needed for that:
//!
//! - **A key that every start derives again** ([`Bill::key`]): customer and month, no clock.
//! - **`once`** around what must not happen twice, with the amount as the fingerprint.
//! - **A ledger that refuses a zombie** ([`Ledger`]): it remembers the highest fence of each key.
//! - **Numbers that follow from the bill** ([`Bill::invoice`]): each process that writes an
//!   invoice writes the same one.
//! - **A list for a person** ([`Report`]): where the outcome at the bank is unknown, nothing is
//!   charged again until a person has read the statement and [settled](Job::settle) it.

mod bank;
mod ledger;
mod report;

use std::{sync::Arc, time::Duration};

use anyhow::{Context, bail};
use semel::{
    OnceError, OperationError, Outcome, Semel,
    core::{Caller, Key, Policy, RecordId, Resolution, Resolved, Scope, StateView, Store},
    keys,
    once::{self, RunReport},
};
use serde::{Deserialize, Serialize};

pub use bank::{Bank, BankError, ToyBank};
pub use ledger::{Ledger, LedgerError};
pub use report::{BillOutcome, Line, Report};

const SCOPE: &str = "invoicing";

/// A customer's bill for one month.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Bill {
    /// The customer's id.
    pub customer: String,
    /// The month that is billed, such as `2026-02`. It is an argument of the job, not today's
    /// date: a start after midnight is still about the same month.
    pub month: String,
    /// How much.
    pub cents: u32,
}

impl Bill {
    /// The same at every start. The amount is not in it: if that changed meanwhile it must be
    /// noticed, not charged as well.
    #[must_use]
    pub fn key(&self) -> Key {
        keys::from_parts(SCOPE, [&self.customer, &self.month])
    }

    /// The customer's invoice. Its number needs no counter, so it is known before the invoice is
    /// written, and is the same when it is written again.
    #[must_use]
    pub fn invoice(&self) -> Invoice {
        Invoice { number: format!("{}-{}", self.month, self.customer), cents: self.cents }
    }
}

/// What a customer was billed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invoice {
    /// Its number in the ledger.
    pub number: String,
    /// How much was charged.
    pub cents: u32,
}

/// The job.
#[derive(Debug)]
pub struct Job<B> {
    semel: Semel,
    ledger: Ledger,
    bank: Arc<B>,
    policy: Arc<Policy>,
}

impl<B: Bank> Job<B> {
    /// A job on this store, ledger and bank. A start that finds another one at work waits for it
    /// longer than `lease`, and so learns whether it is alive.
    pub fn new(store: impl Store, ledger: Ledger, bank: B, lease: Duration) -> Self {
        let policy = Policy {
            lease,
            wait: lease * 2,
            // Longer than the time in which a month may be started again.
            retention: Duration::from_secs(400 * 24 * 60 * 60),
            ..Policy::default()
        };
        let semel = Semel::new(store);
        Self { semel, ledger, bank: Arc::new(bank), policy: Arc::new(policy) }
    }

    /// Bills everyone who was not billed yet, and says what became of each.
    ///
    /// # Errors
    ///
    /// If the store is away. What was billed is billed; start the job again later.
    pub async fn run(&self, bills: &[Bill]) -> Result<Report, OnceError> {
        let report = self.bill_all(bills).await;
        // What could not be recorded at once is still being tried, and would end with the process.
        // After a lease there is nothing more to lose: it is as after a crash.
        self.semel.drain(self.policy.lease).await;
        report
    }

    async fn bill_all(&self, bills: &[Bill]) -> Result<Report, OnceError> {
        let mut lines = Vec::new();
        for bill in bills {
            lines.push(Line { bill: bill.clone(), outcome: self.bill(bill).await? });
        }
        // A customer who could not be billed is tried a second time, when the others are done.
        for line in lines.iter_mut().filter(|line| matches!(line.outcome, BillOutcome::Later(_))) {
            line.outcome = self.bill(&line.bill).await?;
        }
        Ok(Report { lines })
    }

    async fn bill(&self, bill: &Bill) -> Result<BillOutcome, OnceError> {
        let (bank, ledger, order) = (Arc::clone(&self.bank), self.ledger.clone(), bill.clone());
        let outcome = self
            .semel
            .once(SCOPE, Caller::anonymous(), bill.key())
            .fingerprint(bill)
            .policy(Arc::clone(&self.policy))
            .run(|lease| async move {
                // Without a fence the store is away, and this job does not run unguarded.
                let fence =
                    lease.fence().ok_or_else(|| OperationError::retry("the store is away"))?;
                ledger.open(lease.key(), fence).await.map_err(OperationError::retry)?;
                match bank.charge(lease.key(), &order).await {
                    Ok(()) => {}
                    Err(BankError::Declined(why)) => return Err(OperationError::refused(&why)),
                    Err(BankError::Unreachable) => {
                        return Err(OperationError::retry(BankError::Unreachable));
                    }
                    Err(BankError::Disconnected(error)) => {
                        return Err(OperationError::unknown(error));
                    }
                }
                // The money has moved: an error from here on is an unknown outcome.
                ledger.enter(lease.key(), fence, &order).await?;
                Ok(order.invoice())
            })
            .await?;
        bill_outcome(outcome)
    }

    /// What a person found on the bank's statement about a bill whose outcome is unknown: was the
    /// customer charged? If this fails, look again and repeat it.
    ///
    /// # Errors
    ///
    /// If the outcome is not unknown (any more), the bill is not the one that was begun, or the
    /// store or the ledger is away.
    pub async fn settle(&self, bill: &Bill, charged: bool) -> anyhow::Result<()> {
        let id = RecordId::new(Scope::new(SCOPE)?, Caller::anonymous(), bill.key());
        let seen = self.semel.store().get(&id).await?.context("this was never begun")?;
        if seen.fingerprint != Some(once::fingerprint(bill)?) {
            bail!("this was begun with another amount; look for that one on the statement");
        }
        let answer = once::answer(&bill.invoice());
        match seen.state {
            StateView::Held => {
                let resolution =
                    if charged { Resolution::Completed(answer) } else { Resolution::Released };
                let resolved = self.semel.store().resolve(&id, seen.fence, &resolution).await?;
                if resolved == Resolved::Stale {
                    bail!("another process settled it first; look again");
                }
            }
            // Settled before, perhaps by a process that ended before the ledger entry.
            StateView::Completed { answer: recorded, .. } if charged && recorded == answer => {}
            other @ (StateView::InFlight { .. }
            | StateView::Completed { .. }
            | StateView::Released { .. }) => {
                bail!("there is nothing to settle: the record is {}", other.name());
            }
        }
        // Only when the record says so: a run that was overtaken must not leave an invoice.
        if charged {
            self.ledger.enter(&id.key, seen.fence, bill).await?;
        }
        Ok(())
    }
}

fn bill_outcome(outcome: Outcome<Invoice>) -> Result<BillOutcome, OnceError> {
    Ok(match outcome {
        Outcome::Ran(invoice) => BillOutcome::Billed(invoice),
        Outcome::Replayed(invoice) => BillOutcome::BilledBefore(invoice),
        Outcome::Refused(refusal) => BillOutcome::Declined(refusal.read()?),
        Outcome::Retry(reason) => BillOutcome::Later(reason.to_string()),
        Outcome::InProgress => BillOutcome::Later("another run is charging it".to_owned()),
        Outcome::KeyReused => BillOutcome::Changed,
        Outcome::Unknown(unknown) => BillOutcome::Unknown(unknown.to_string()),
        Outcome::Overtaken(lost) => {
            beside(lost.mine(), "another run took over: have both charged?")
        }
        Outcome::Unguarded(said) => beside(&said, "the store was away: who else has charged?"),
        other => BillOutcome::Unknown(format!("{other:?}")),
    })
}

/// What becomes of a bill when this run is not the one that counts: if it did something, a person
/// must see whether it was done twice.
fn beside(said: &RunReport<Invoice>, question: &str) -> BillOutcome {
    match said {
        RunReport::Retry(reason) => BillOutcome::Later(reason.to_string()),
        RunReport::Value(_) | RunReport::Refused(_) | RunReport::Unknown(_) => {
            BillOutcome::Unknown(question.to_owned())
        }
    }
}
