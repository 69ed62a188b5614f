//! Checks the demo by the ledger and by bytes, not by what was printed.

use http::StatusCode;

use super::{
    act::Paid,
    client::{AttemptResult, ReceivedAnswer},
    orders::{ORDERS, ScriptedFault},
};

/// The results of all acts.
#[derive(Clone, Debug)]
pub(super) struct DemoTranscript {
    /// Without Semel.
    pub(super) first: Vec<Paid>,
    /// Through Semel.
    pub(super) second: Vec<Paid>,
    pub(super) reuse: Reuse,
}

/// A key that was used again, for another amount.
#[derive(Clone, Debug)]
pub(super) struct Reuse {
    /// The result of each attempt.
    pub(super) attempts: Vec<AttemptResult>,
    /// How many charges its customer has after that.
    pub(super) charges: usize,
}

impl DemoTranscript {
    /// What went wrong; empty if the demo succeeded.
    pub(super) fn flaws(&self) -> Vec<String> {
        let Self { first, second, reuse } = self;
        let mut flaws = Vec::new();
        for act in [first, second] {
            if act.len() != ORDERS.len() {
                flaws.push(format!("{} of {} orders were paid", act.len(), ORDERS.len()));
            }
        }
        for paid in first.iter().filter(|paid| paid.is_unlucky() && paid.charges.len() < 2) {
            flaws.push(format!("{}: not charged twice, without Semel", paid.order.customer));
        }
        for paid in second {
            flaws.extend(flaw(paid).map(|flaw| format!("{}: {flaw}", paid.order.customer)));
        }
        let heard = reuse.attempts.last();
        if !heard.is_some_and(|it| said(it, StatusCode::UNPROCESSABLE_ENTITY, "key-reused")) {
            flaws.push("a key was used for another amount, and was not refused".to_owned());
        }
        if reuse.charges != 1 {
            flaws.push(format!("a key was used for another amount: {} charges", reuse.charges));
        }
        flaws
    }
}

/// What is wrong with an order that was paid through Semel.
pub(super) fn flaw(paid: &Paid) -> Option<String> {
    let [charge] = &paid.charges[..] else {
        return Some(format!("charged {} times, through Semel", paid.charges.len()));
    };
    if charge.amount != paid.order.price {
        return Some(format!("charged {} and not {}", charge.amount, paid.order.price));
    }
    let Some(last) = paid.attempts.last() else { return Some("never tried".to_owned()) };
    // A demo without its faults shows nothing.
    let met = match (paid.order.fault, paid.attempts.first()) {
        (ScriptedFault::CardSlow, Some(first)) => *first == AttemptResult::TimedOut,
        (ScriptedFault::AnswerLost | ScriptedFault::CardLost, _) => paid.attempts.len() > 1,
        _ => true,
    };
    if !met {
        return Some("the scripted fault did not happen".to_owned());
    }
    if paid.order.fault == ScriptedFault::CardLost {
        let honest = said(last, StatusCode::LOCKED, "outcome-unknown");
        return (!honest).then(|| format!("the outcome is unknown, and the client got {last}"));
    }
    let AttemptResult::Answered(ReceivedAnswer {
        status: StatusCode::CREATED, replayed, body, ..
    }) = last
    else {
        return Some(format!("the last result of the client is {last}"));
    };
    if *body != charge.receipt() {
        return Some("the answer is not the one that the payment API gave".to_owned());
    }
    let lost = paid.order.fault == ScriptedFault::AnswerLost;
    (lost && !replayed).then(|| "the lost answer was not replayed".to_owned())
}

fn said(heard: &AttemptResult, status: StatusCode, problem: &str) -> bool {
    let answer = heard.answer();
    answer.is_some_and(|it| it.status == status && it.problem.as_deref() == Some(problem))
}

#[cfg(test)]
mod tests;
