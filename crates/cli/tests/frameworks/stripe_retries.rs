//! The preset `stripe` decides as Stripe's own SDKs for Python and Node do.

use std::{process::Command, time::Duration};

use semel::core::retry::{
    AttemptOutcome, AttemptTiming, ResponseSignals, RetryBudget, RetryDecision, RetryPolicy,
    RetryState,
};
use serde_json::{Value, json};

use crate::{HERE, process::prepared, semel_clients::lines};

/// One call: a number for the jitter, and how its attempts end; null is a broken connection.
fn calls() -> Vec<Value> {
    let mut calls = Vec::new();
    for status in [200, 302, 400, 402, 404, 409, 422, 423, 429, 500, 501, 503, 504] {
        for random in [0.0, 0.25, 0.75] {
            calls.push(json!({ "random": random, "answers": vec![json!([status, {}]); 4] }));
        }
        for advice in ["true", "false", "maybe"] {
            let answer = json!([status, { "stripe-should-retry": advice }]);
            calls.push(json!({ "random": 0.5, "answers": [answer, [200, {}]] }));
        }
    }
    for answers in [
        json!([null, [200, {}]]),
        json!([null, null, null, null]),
        json!([[409, {}], null, [200, {}]]),
        json!([[503, { "retry-after": "7" }], [200, {}]]),
        json!([[500, { "x-should-retry": "false" }], [200, {}]]),
        json!([[500, {}], [400, {}]]),
    ] {
        calls.push(json!({ "random": 0.5, "answers": answers }));
    }
    calls
}

/// The delays in seconds that the preset decides, and the requests that it sends.
fn decided(call: &Value) -> (Vec<f64>, u64) {
    let policy = RetryPolicy::STRIPE;
    let mut budget = RetryBudget::new(policy.budget);
    let mut state = RetryState::begin(&mut budget, Duration::ZERO);
    let (mut delays, mut requests) = (Vec::new(), 0);
    for answer in call["answers"].as_array().unwrap() {
        requests += 1;
        let outcome = match answer[0].as_u64() {
            None => AttemptOutcome::Broken,
            Some(status) => {
                let header = |name: &str| answer[1][name].as_str();
                let status = u16::try_from(status).unwrap();
                AttemptOutcome::Answered(ResponseSignals::read(status, header, 0))
            }
        };
        let at = AttemptTiming::at(Duration::ZERO, call["random"].as_f64().unwrap());
        match policy.decide(&mut state, &mut budget, &outcome, at) {
            RetryDecision::Wait(delay) => delays.push(delay.as_secs_f64()),
            RetryDecision::Done | RetryDecision::GiveUp(_) => break,
        }
    }
    (delays, requests)
}

/// What the SDK that a program uses does in these calls: its delays in seconds, and the requests
/// that it sends.
fn recorded(mut program: Command, calls: &[Value]) -> Vec<(Vec<f64>, u64)> {
    let lines = lines(&mut program, &Value::from(calls.to_vec()));
    assert_eq!(lines.len(), calls.len());
    let read = |line: &Value| {
        let delays = line["delays"].as_array().unwrap();
        let delays = delays.iter().map(|delay| delay.as_f64().unwrap()).collect();
        (delays, line["requests"].as_u64().unwrap())
    };
    lines.iter().map(read).collect()
}

fn is_close(one: f64, other: f64) -> bool {
    (one - other).abs() < 1e-6
}

#[test]
fn the_stripe_preset_decides_as_the_stripe_sdk_for_python_does() {
    let Some(python) = prepared("SEMEL_TEST_PYTHON") else { return };
    let calls = calls();
    let mut python = Command::new(python);
    python.arg(format!("{HERE}/clients/stripe_retries.py")).env("NO_PROXY", "127.0.0.1");
    for (call, (slept, sent)) in calls.iter().zip(recorded(python, &calls)) {
        let (delays, requests) = decided(call);
        assert_eq!((sent, slept.len()), (requests, delays.len()), "{call}: {slept:?}");
        let equal = slept.iter().zip(&delays).all(|(slept, decided)| is_close(*slept, *decided));
        assert!(equal, "{call}: {slept:?} {delays:?}");
    }
}

/// The SDK for Node counts retries from zero in its backoff: its first delay is the same, and no
/// later one is longer.
#[test]
fn the_stripe_preset_decides_as_the_stripe_sdk_for_node_does() {
    let Some(modules) = prepared("SEMEL_TEST_NODE_MODULES") else { return };
    let calls = calls();
    let mut node = Command::new("node");
    node.arg(format!("{HERE}/clients/stripe_retries.js")).env("NODE_PATH", modules);
    for (call, (slept, sent)) in calls.iter().zip(recorded(node, &calls)) {
        let (delays, requests) = decided(call);
        assert_eq!((sent, slept.len()), (requests, delays.len()), "{call}: {slept:?}");
        for (number, (slept, decided)) in slept.iter().zip(&delays).enumerate() {
            let is_first = number == 0;
            let fits = if is_first { is_close(*slept, *decided) } else { slept <= decided };
            assert!(fits && *slept >= 0.5, "{call}: {slept:?} {decided:?}");
        }
    }
}
