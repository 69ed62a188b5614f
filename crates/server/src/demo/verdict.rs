//! Whether the story held. It is judged by the ledger and by bytes, not by what was printed.

use http::StatusCode;

use super::{
    act::Paid,
    client::{Answer, Heard},
    orders::{Fault, ORDERS},
};

/// All that happened.
#[derive(Clone, Debug)]
pub(super) struct Story {
    /// Without Semel.
    pub(super) first: Vec<Paid>,
    /// Through Semel.
    pub(super) second: Vec<Paid>,
    pub(super) reuse: Reuse,
}

/// A key that was used again, for another amount.
#[derive(Clone, Debug)]
pub(super) struct Reuse {
    /// What the client heard, attempt by attempt.
    pub(super) tries: Vec<Heard>,
    /// How many charges its customer has after that.
    pub(super) charges: usize,
}

impl Story {
    /// What did not hold, in sentences; nothing if it did.
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
        let heard = reuse.tries.last();
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
    let Some(last) = paid.tries.last() else { return Some("never tried".to_owned()) };
    // A story in which nothing went wrong shows nothing.
    let met = match (paid.order.fault, paid.tries.first()) {
        (Fault::CardSlow, Some(first)) => *first == Heard::TimedOut,
        (Fault::AnswerLost | Fault::CardLost, _) => paid.tries.len() > 1,
        _ => true,
    };
    if !met {
        return Some("what was to go wrong did not".to_owned());
    }
    if paid.order.fault == Fault::CardLost {
        let honest = said(last, StatusCode::LOCKED, "outcome-unknown");
        return (!honest).then(|| format!("nobody can know, and the client heard {last}"));
    }
    let Heard::Answer(Answer { status: StatusCode::CREATED, replayed, body, .. }) = last else {
        return Some(format!("the client heard {last} in the end"));
    };
    if *body != charge.receipt() {
        return Some("the answer is not the one that the payment API gave".to_owned());
    }
    let lost = paid.order.fault == Fault::AnswerLost;
    (lost && !replayed).then(|| "the lost answer was not replayed".to_owned())
}

fn said(heard: &Heard, status: StatusCode, problem: &str) -> bool {
    let answer = heard.answer();
    answer.is_some_and(|it| it.status == status && it.problem.as_deref() == Some(problem))
}

#[cfg(test)]
mod tests;
