//! A story that held, and each way to spoil it.

use bytes::Bytes;

use super::*;
use crate::demo::{
    cards::Charge,
    orders::{Cents, Order},
};

fn answer(status: u16, problem: Option<&str>, body: impl Into<Bytes>) -> Answer {
    Answer {
        status: StatusCode::from_u16(status).unwrap(),
        replayed: false,
        problem: problem.map(str::to_owned),
        body: body.into(),
        retry: false,
    }
}

/// An order that was charged this often, and answered as the first charge.
fn paid(order: &'static Order, times: usize) -> Paid {
    let charge = |number| Charge {
        id: format!("ch_{number}"),
        customer: order.customer.to_owned(),
        amount: order.price,
    };
    let charges: Vec<_> = (1..=times).map(charge).collect();
    let mut last = answer(201, None, charges[0].receipt());
    let mut tries = Vec::new();
    match order.fault {
        Fault::None => {}
        Fault::AnswerLost => {
            tries.push(Heard::Nothing);
            last.replayed = true;
        }
        Fault::CardSlow => tries.push(Heard::TimedOut),
        Fault::CardLost => {
            tries.push(Heard::Answer(answer(504, None, "")));
            last = answer(423, Some("outcome-unknown"), "");
        }
    }
    tries.push(Heard::Answer(last));
    Paid { order, tries, charges }
}

fn told() -> Story {
    let reused = Heard::Answer(answer(422, Some("key-reused"), ""));
    Story {
        first: ORDERS.iter().map(|order| paid(order, 2)).collect(),
        second: ORDERS.iter().map(|order| paid(order, 1)).collect(),
        reuse: Reuse { tries: vec![reused], charges: 1 },
    }
}

/// What is said of the story after it was spoilt.
fn spoilt(spoil: impl FnOnce(&mut Story)) -> String {
    let mut story = told();
    spoil(&mut story);
    story.flaws().join("; ")
}

/// What an order's client heard in the end.
fn last(paid: &mut Paid) -> &mut Answer {
    let Some(Heard::Answer(answer)) = paid.tries.last_mut() else { panic!("no answer") };
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
    let once = |story: &mut Story| story.first = story.second.clone();
    let not = |name| format!("{name}: not charged twice, without Semel");
    assert_eq!(spoilt(once), ["ben", "dan", "eve"].map(not).join("; "));
    let one = |story: &mut Story| story.first[DAN] = paid(&ORDERS[DAN], 1);
    assert_eq!(spoilt(one), not("dan"));
    let lucky = |story: &mut Story| story.first[ANN] = paid(&ORDERS[ANN], 1);
    assert_eq!(spoilt(lucky), "");
}

#[test]
fn a_fault_that_did_not_happen_spoils_it() {
    let did_not = |name| format!("{name}: what was to go wrong did not");
    for (index, name) in [(BEN, "ben"), (DAN, "dan"), (EVE, "eve")] {
        let at_once = spoilt(|story| drop(story.second[index].tries.remove(0)));
        assert_eq!(at_once, did_not(name));
    }
    let quick = spoilt(|story| story.second[DAN].tries[0] = Heard::Nothing);
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
    let lost = spoilt(|story| story.second[ANN].tries = vec![Heard::TimedOut]);
    assert_eq!(lost, "ann: the client heard timed out in the end");
    let never = spoilt(|story| story.second[ANN].tries.clear());
    assert_eq!(never, "ann: never tried");
}

#[test]
fn a_guess_where_nobody_can_know_spoils_it() {
    let guess = |story: &mut Story| *last(&mut story.second[EVE]) = answer(201, None, "{}");
    assert_eq!(spoilt(guess), "eve: nobody can know, and the client heard 201");
}

#[test]
fn a_key_that_may_be_reused_spoils_it() {
    let ran = |story: &mut Story| story.reuse.tries = vec![Heard::Answer(answer(201, None, ""))];
    assert_eq!(spoilt(ran), "a key was used for another amount, and was not refused");
    let charged = spoilt(|story| story.reuse.charges = 2);
    assert_eq!(charged, "a key was used for another amount: 2 charges");
}

#[test]
fn orders_that_were_left_out_spoil_it() {
    assert_eq!(spoilt(|story| drop(story.second.pop())), "4 of 5 orders were paid");
    assert_eq!(spoilt(|story| drop(story.first.pop())), "4 of 5 orders were paid");
}
