//! A successful demo, and each way to fail it.

use bytes::Bytes;

use super::*;
use crate::demo::{
    cards::Charge,
    orders::{Cents, DemoOrder},
};

fn answer(status: u16, problem: Option<&str>, body: impl Into<Bytes>) -> ReceivedAnswer {
    ReceivedAnswer {
        status: StatusCode::from_u16(status).unwrap(),
        replayed: false,
        problem: problem.map(str::to_owned),
        body: body.into(),
        retry: false,
    }
}

/// An order that was charged this often, and answered as the first charge.
fn paid(order: &'static DemoOrder, times: usize) -> Paid {
    let charge = |number| Charge {
        id: format!("ch_{number}"),
        customer: order.customer.to_owned(),
        amount: order.price,
    };
    let charges: Vec<_> = (1..=times).map(charge).collect();
    let mut last = answer(201, None, charges[0].receipt());
    let mut attempts = Vec::new();
    match order.fault {
        ScriptedFault::None => {}
        ScriptedFault::AnswerLost => {
            attempts.push(AttemptResult::Nothing);
            last.replayed = true;
        }
        ScriptedFault::CardSlow => attempts.push(AttemptResult::TimedOut),
        ScriptedFault::CardLost => {
            attempts.push(AttemptResult::Answered(answer(504, None, "")));
            last = answer(423, Some("outcome-unknown"), "");
        }
    }
    attempts.push(AttemptResult::Answered(last));
    Paid { order, attempts, charges }
}

fn successful() -> DemoTranscript {
    let reused = AttemptResult::Answered(answer(422, Some("key-reused"), ""));
    DemoTranscript {
        first: ORDERS.iter().map(|order| paid(order, 2)).collect(),
        second: ORDERS.iter().map(|order| paid(order, 1)).collect(),
        reuse: Reuse { attempts: vec![reused], charges: 1 },
    }
}

/// What is said of the story after it was spoilt.
fn spoilt(spoil: impl FnOnce(&mut DemoTranscript)) -> String {
    let mut story = successful();
    spoil(&mut story);
    story.flaws().join("; ")
}

/// The last answer of an order's client.
fn last(paid: &mut Paid) -> &mut ReceivedAnswer {
    let Some(AttemptResult::Answered(answer)) = paid.attempts.last_mut() else {
        panic!("no answer")
    };
    answer
}

const ANN: usize = 0;
const BEN: usize = 1;
const DAN: usize = 3;
const EVE: usize = 4;

#[test]
fn a_story_that_held_has_no_flaw() {
    assert_eq!(spoilt(|_| {}), "");
}

#[test]
fn without_semel_each_of_the_unlucky_is_charged_twice() {
    let once = |story: &mut DemoTranscript| story.first = story.second.clone();
    let not = |name| format!("{name}: not charged twice, without Semel");
    assert_eq!(spoilt(once), ["ben", "dan", "eve"].map(not).join("; "));
    let one = |story: &mut DemoTranscript| story.first[DAN] = paid(&ORDERS[DAN], 1);
    assert_eq!(spoilt(one), not("dan"));
    let lucky = |story: &mut DemoTranscript| story.first[ANN] = paid(&ORDERS[ANN], 1);
    assert_eq!(spoilt(lucky), "");
}

#[test]
fn a_fault_that_did_not_happen_spoils_it() {
    let did_not = |name| format!("{name}: the scripted fault did not happen");
    for (index, name) in [(BEN, "ben"), (DAN, "dan"), (EVE, "eve")] {
        let at_once = spoilt(|story| drop(story.second[index].attempts.remove(0)));
        assert_eq!(at_once, did_not(name));
    }
    let quick = spoilt(|story| story.second[DAN].attempts[0] = AttemptResult::Nothing);
    assert_eq!(quick, did_not("dan"));
}

#[test]
fn one_double_charge_through_semel_spoils_it() {
    let twice = spoilt(|story| story.second[BEN] = paid(&ORDERS[BEN], 2));
    assert_eq!(twice, "ben: charged 2 times, through Semel");
    let never = spoilt(|story| story.second[ANN].charges.clear());
    assert_eq!(never, "ann: charged 0 times, through Semel");
}

#[test]
fn another_amount_spoils_it() {
    let other = spoilt(|story| story.second[ANN].charges[0].amount = Cents(1));
    assert_eq!(other, "ann: charged $0.01 and not $19.99");
}

#[test]
fn an_answer_with_other_bytes_spoils_it() {
    let other = spoilt(|story| last(&mut story.second[BEN]).body = "{}".into());
    assert_eq!(other, "ben: the answer is not the one that the payment API gave");
}

#[test]
fn a_lost_answer_that_was_not_replayed_spoils_it() {
    let ran = spoilt(|story| last(&mut story.second[BEN]).replayed = false);
    assert_eq!(ran, "ben: the lost answer was not replayed");
}

#[test]
fn a_client_that_never_gets_its_answer_spoils_it() {
    let lost = spoilt(|story| story.second[ANN].attempts = vec![AttemptResult::TimedOut]);
    assert_eq!(lost, "ann: the last result of the client is timed out");
    let never = spoilt(|story| story.second[ANN].attempts.clear());
    assert_eq!(never, "ann: never tried");
}

#[test]
fn a_guess_for_an_unknown_outcome_is_a_flaw() {
    let guess =
        |story: &mut DemoTranscript| *last(&mut story.second[EVE]) = answer(201, None, "{}");
    assert_eq!(spoilt(guess), "eve: the outcome is unknown, and the client got 201");
}

#[test]
fn a_key_that_may_be_reused_spoils_it() {
    let ran = |story: &mut DemoTranscript| {
        story.reuse.attempts = vec![AttemptResult::Answered(answer(201, None, ""))]
    };
    assert_eq!(spoilt(ran), "a key was used for another amount, and was not refused");
    let charged = spoilt(|story| story.reuse.charges = 2);
    assert_eq!(charged, "a key was used for another amount: 2 charges");
}

#[test]
fn orders_that_were_left_out_spoil_it() {
    assert_eq!(spoilt(|story| drop(story.second.pop())), "4 of 5 orders were paid");
    assert_eq!(spoilt(|story| drop(story.first.pop())), "4 of 5 orders were paid");
}
