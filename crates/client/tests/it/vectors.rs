//! `clients/vectors.json`: what the clients of all languages must decide and derive, generated
//! from `core::retry`, from the keys and from the fingerprints.
//!
//! `SEMEL_WRITE_VECTORS=1` writes the file again.

use std::{collections::BTreeMap, env, fmt::Write as _, fs, time::Duration};

use semel::core::Fingerprint;
use semel::core::retry::{
    AttemptOutcome, AttemptTiming, ResponseSignals, RetryBudget, RetryDecision, RetryPolicy,
    RetryState,
};
use semel::keys::{self, Uuid};
use serde_json::{Value, json};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../clients/vectors.json");

/// When every script runs, for a `Retry-After` that is a date.
const UNIX_SECONDS: u64 = 784_111_770;

/// The form of RFC 9110 with two spellings of the end of a minute, then what is near to it.
const DATES: [&str; 14] = [
    "Sun, 06 Nov 1994 08:49:37 GMT",
    "Sun, 06 Nov 1994 08:49:60 GMT",
    "Sunday, 06-Nov-94 08:49:37 GMT",
    "Sunday, 06 Nov 1994 08:49:37 GMT",
    "Sun Nov  6 08:49:37 1994",
    "Sun, 6 Nov 1994 8:49:37 GMT",
    "Sun, 06 Nov 1994 08:49:37 UTC",
    "Sun, 06 Nov 1994 08:49:37 GMT now",
    "06 Nov 1994 08:49:37 GMT",
    "Sun, 06 nov 1994 08:49:37 GMT",
    "Sun, 00 Nov 1994 08:49:37 GMT",
    "Sun, 32 Nov 1994 08:49:37 GMT",
    "Sun, 06 Nov 1969 08:49:37 GMT",
    "Sun, 06 Nov 1994 25:49:37 GMT",
];

const NAMESPACE: Uuid = Uuid::from_u128(0x8f8d1a52_2a3f_4a0e_9c43_6b4f3c9f6d10);

/// The calls of one client, and what it must decide after each attempt.
struct Script {
    name: String,
    preset: &'static str,
    policy: RetryPolicy,
    budget: RetryBudget,
    calls: BTreeMap<u32, (RetryState, Duration)>,
    steps: Vec<Value>,
}

impl Script {
    fn new(preset: &'static str, name: &str) -> Self {
        let policy = RetryPolicy::preset(preset).unwrap();
        let (name, budget) = (format!("{preset}: {name}"), RetryBudget::new(policy.budget));
        Self { name, preset, policy, budget, calls: BTreeMap::new(), steps: Vec::new() }
    }

    fn begin(&mut self, call: u32, now_ms: u64) {
        let now = Duration::from_millis(now_ms);
        self.calls.insert(call, (RetryState::begin(&mut self.budget, now), now));
        self.steps.push(json!({ "call": call, "now_ms": now_ms, "begin": true }));
    }

    /// An attempt ends. Returns the delay before the next one.
    fn end(&mut self, call: u32, now_ms: u64, random: f64, outcome: &Value) -> Option<u64> {
        let now = Duration::from_millis(now_ms);
        let (state, began) = self.calls.get_mut(&call).unwrap();
        let at = AttemptTiming { now, elapsed: now - *began, random };
        let decision = self.policy.decide(state, &mut self.budget, &outcome_of(outcome), at);
        let (expected, delay) = match decision {
            RetryDecision::Done => (json!({ "decision": "done" }), None),
            RetryDecision::GiveUp(why) => {
                (json!({ "decision": "give_up", "reason": why.as_str() }), None)
            }
            RetryDecision::Wait(delay) => {
                let micros = u64::try_from(delay.as_micros()).unwrap();
                (json!({ "decision": "wait", "wait_us": micros }), Some(micros.div_ceil(1000)))
            }
        };
        self.steps.push(json!({
            "call": call, "now_ms": now_ms, "random": random, "outcome": outcome,
            "expect": expected,
        }));
        delay
    }

    /// One call, whose attempts end like this until it ends; each attempt takes 10 ms.
    fn one_call(mut self, random: f64, outcomes: &[Value]) -> Self {
        self.begin(0, 0);
        let mut now_ms = 0;
        for outcome in outcomes {
            now_ms += 10;
            let Some(delay) = self.end(0, now_ms, random, outcome) else { break };
            now_ms += delay;
        }
        self
    }

    fn json(self) -> Value {
        json!({ "name": self.name, "preset": self.preset, "steps": self.steps })
    }
}

/// `"not_sent"`, `"broken"`, `"timed_out"`, or a status with headers.
fn outcome_of(outcome: &Value) -> AttemptOutcome {
    match outcome.as_str() {
        Some("not_sent") => AttemptOutcome::NotSent,
        Some("broken") => AttemptOutcome::Broken,
        Some("timed_out") => AttemptOutcome::TimedOut,
        _ => {
            let status = u16::try_from(outcome["status"].as_u64().unwrap()).unwrap();
            let header = |name: &str| outcome["headers"][name].as_str();
            AttemptOutcome::Answered(ResponseSignals::read(status, header, UNIX_SECONDS))
        }
    }
}

fn status(status: u16) -> Value {
    json!({ "status": status, "headers": {} })
}

fn with(status: u16, headers: &[(&str, &str)]) -> Value {
    let headers: BTreeMap<&str, &str> = headers.iter().copied().collect();
    json!({ "status": status, "headers": headers })
}

fn semel_scripts() -> Vec<Script> {
    let one = |name: &str, random: f64, outcomes: &[Value]| {
        Script::new("semel", name).one_call(random, outcomes)
    };
    let broken = || json!("broken");
    let mut scripts: Vec<Script> =
        [200, 201, 302, 400, 401, 403, 404, 409, 410, 412, 422, 423, 501]
            .into_iter()
            .map(|code| one(&format!("{code} is final"), 0.5, &[status(code)]))
            .collect();
    scripts.extend([408, 425, 429, 500, 502, 503, 504].into_iter().map(|code| {
        let outcomes = [status(code), status(code), status(200)];
        one(&format!("{code} is retried"), 0.5, &outcomes)
    }));
    scripts.extend(["not_sent", "broken", "timed_out"].into_iter().map(|outcome| {
        one(&format!("{outcome} is retried"), 0.25, &[json!(outcome), status(201)])
    }));
    let (yes, no) = (("x-should-retry", "true"), ("x-should-retry", "false"));
    let stripe_no = ("stripe-should-retry", "false");
    let date = ("retry-after", "Sun, 06 Nov 1994 08:49:37 GMT");
    let answers = [
        ("409 with Retry-After waits", with(409, &[("retry-after", "1")])),
        ("409 with true waits", with(409, &[yes])),
        ("409 with Retry-After and false is final", with(409, &[no, ("retry-after", "1")])),
        ("423 with Retry-After waits", with(423, &[("retry-after", "30")])),
        ("423 with false is final", with(423, &[no])),
        ("500 with false is final", with(500, &[no])),
        ("500 with stripe-should-retry false is final", with(500, &[stripe_no])),
        ("x-should-retry counts before stripe-should-retry", with(500, &[yes, stripe_no])),
        ("404 with true is retried", with(404, &[yes])),
        ("422 with Retry-After is final", with(422, &[("retry-after", "1")])),
        ("410 with Retry-After is final", with(410, &[("retry-after", "1")])),
        ("200 with true is final", with(200, &[yes])),
        ("504 unrecorded outcome is retried", with(504, &[yes, ("retry-after-ms", "1000")])),
        ("504 upstream-timeout under hold is final", with(504, &[no])),
        (
            "retry-after-ms counts before Retry-After",
            with(503, &[("retry-after-ms", "250"), ("retry-after", "9")]),
        ),
        ("Retry-After may be a date", with(503, &[date])),
        (
            "a date in the past is no delay",
            with(503, &[("retry-after", "Sun, 06 Nov 1994 08:48:00 GMT")]),
        ),
        ("a Retry-After that cannot be read is ignored", with(409, &[("retry-after", "soon")])),
        ("a negative Retry-After is ignored", with(503, &[("retry-after", "-5")])),
        ("a fraction in Retry-After is ignored", with(503, &[("retry-after", "1.5")])),
        ("a should-retry that cannot be read is ignored", with(500, &[("x-should-retry", "yes")])),
        ("a Retry-After after the deadline gives up", with(503, &[("retry-after", "120")])),
        ("429 with Retry-After", with(429, &[("retry-after", "2")])),
        ("the first of two should-retry counts", with(500, &[("x-should-retry", "false, true")])),
        ("the first of two Retry-After counts", with(409, &[("retry-after", "3, 9")])),
        ("the first of two dates counts", with(503, &[("retry-after", &format!("{}, 1", date.1))])),
    ];
    scripts.extend(answers.map(|(name, answer)| one(name, 0.5, &[answer, status(200)])));
    // 409 waits by a Retry-After that can be read, and is final otherwise.
    scripts.extend(DATES.map(|text| {
        let answers = [with(409, &[("retry-after", text)]), status(200)];
        one(&format!("409 with Retry-After {text:?}"), 0.5, &answers)
    }));
    scripts.push(one("five attempts", 0.75, &vec![broken(); 9]));
    scripts.push(one("no jitter at random 0", 0.0, &vec![broken(); 9]));
    scripts.push(one("throttled backoff doubles", 0.5, &vec![status(429); 9]));
    let running = with(409, &[("retry-after", "2")]);
    scripts.push(one("waiting ends at the deadline", 0.5, &vec![running; 60]));
    scripts.push(budget_of_a_busy_client());
    scripts.push(budget_of_an_idle_client());
    scripts
}

/// 20 calls a second: 20 retries in the first ten seconds are a tenth of the 200 calls.
fn budget_of_a_busy_client() -> Script {
    let mut script = Script::new("semel", "a busy client retries a tenth of its calls");
    for call in 0..300 {
        let now_ms = u64::from(call) * 50;
        script.begin(call, now_ms);
        let outcome = if call < 100 { status(200) } else { json!("broken") };
        script.end(call, now_ms + 10, 0.5, &outcome);
    }
    script
}

fn budget_of_an_idle_client() -> Script {
    let mut script = Script::new("semel", "an idle client fills up to one request a second");
    for call in 0..40 {
        let now_ms = u64::from(call) * 500;
        script.begin(call, now_ms);
        script.end(call, now_ms + 10, 0.5, &json!("timed_out"));
    }
    script
}

fn aws_scripts() -> Vec<Script> {
    let one = |name: &str, random: f64, outcomes: &[Value]| {
        Script::new("aws", name).one_call(random, outcomes)
    };
    let mut bucket = Script::new("aws", "500 tokens pay for 35 retries");
    for call in 0..40 {
        bucket.begin(call, 0);
        bucket.end(call, 10, 0.5, &status(500));
    }
    for call in 0..3 {
        bucket.end(call, 100, 0.5, &status(200));
    }
    for call in 40..46 {
        bucket.begin(call, 200);
        bucket.end(call, 210, 0.5, &status(if call == 45 { 429 } else { 503 }));
    }
    let mut refill = Script::new("aws", "a success without a retry adds one token");
    for call in 0..36 {
        refill.begin(call, 0);
        refill.end(call, 10, 0.5, &status(500));
    }
    // Three successes leave 13 tokens, one fewer than a retry costs.
    for call in 100..106 {
        refill.begin(call, 20);
        let outcome = if matches!(call, 103 | 105) { status(500) } else { status(200) };
        refill.end(call, 30, 0.5, &outcome);
    }
    let asked = |milliseconds: &str| with(503, &[("x-amz-retry-after", milliseconds)]);
    vec![
        one("three attempts", 0.5, &vec![status(500); 5]),
        one("throttling begins at a second", 0.5, &vec![status(429); 5]),
        one("409 is final", 0.5, &[status(409)]),
        one("x-amz-retry-after within the span", 0.5, &[asked("1500"), status(200)]),
        one("x-amz-retry-after is at least the backoff", 0.5, &[asked("1"), status(200)]),
        one("x-amz-retry-after is at most 5 s more", 0.5, &[asked("60000"), status(200)]),
        one("Retry-After is not read", 0.5, &[with(503, &[("retry-after", "9")]), status(200)]),
        bucket,
        refill,
    ]
}

fn stripe_scripts() -> Vec<Script> {
    let one = |name: &str, random: f64, outcomes: &[Value]| {
        Script::new("stripe", name).one_call(random, outcomes)
    };
    let says = |code: u16, value: &str| with(code, &[("stripe-should-retry", value)]);
    vec![
        one("two retries", 0.0, &vec![status(500); 5]),
        one("half a second to one", 0.75, &vec![status(503); 5]),
        one("409 is retried", 0.5, &[status(409), status(200)]),
        one("429 is final", 0.5, &[status(429)]),
        one("501 is retried", 0.5, &[status(501), status(200)]),
        one("409 with false is final", 0.5, &[says(409, "false")]),
        one("400 with true is retried", 0.5, &[says(400, "true"), status(200)]),
        one("a broken connection is retried", 0.5, &[json!("broken"), status(200)]),
        one(
            "x-should-retry is not read",
            0.5,
            &[with(409, &[("x-should-retry", "false")]), status(200)],
        ),
    ]
}

fn grpc_scripts() -> Vec<Script> {
    let one = |name: &str, random: f64, outcomes: &[Value]| {
        Script::new("grpc", name).one_call(random, outcomes)
    };
    let grpc = |code: &str| with(200, &[("grpc-status", code)]);
    let pushed = |milliseconds: &str| {
        with(200, &[("grpc-status", "14"), ("grpc-retry-pushback-ms", milliseconds)])
    };
    let mut throttle = Script::new("grpc", "half of ten tokens stop retries");
    for call in 0..8 {
        throttle.begin(call, 0);
        throttle.end(call, 10, 0.5, &grpc("14"));
    }
    for call in 100..150 {
        throttle.begin(call, 20);
        throttle.end(call, 30, 0.5, &grpc("0"));
    }
    throttle.begin(200, 40);
    throttle.end(200, 50, 0.5, &grpc("14"));
    vec![
        one("four attempts", 0.5, &vec![grpc("14"); 6]),
        one("INTERNAL is final", 0.5, &[grpc("13")]),
        one("OK is final", 0.5, &[grpc("0")]),
        one("503 without a gRPC status is UNAVAILABLE", 0.5, &[status(503), grpc("0")]),
        one(
            "push-back resets the backoff",
            0.5,
            &[grpc("14"), pushed("700"), grpc("14"), grpc("0")],
        ),
        one("a negative push-back stops", 0.5, &[pushed("-1")]),
        throttle,
    ]
}

fn derived_keys() -> Vec<Value> {
    let long = "x".repeat(1000);
    let parts: [&[&str]; 8] = [
        &["order-17"],
        &["c-7", "2026-02"],
        &["Zoë", ""],
        &["ab", "c"],
        &["a", "bc"],
        &["1:a,1:b,"],
        &[&long, "emoji 🦀"],
        &[],
    ];
    let derived = parts.map(|parts| {
        json!({
            "domain": "charge",
            "parts": parts,
            "key": keys::from_parts("charge", parts).as_str(),
            "namespace": NAMESPACE.to_string(),
            "uuid": keys::uuid_from(NAMESPACE, parts).as_str(),
        })
    });
    derived.into()
}

fn fingerprints() -> Vec<Value> {
    let parts: [&[&str]; 5] =
        [&["welcome", "zoe@example.org"], &["ab", "c"], &["a", "bc"], &["Zoë"], &[]];
    let hex = |bytes: &[u8]| {
        bytes.iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    };
    let made = parts.map(|parts| {
        let bytes: Vec<&[u8]> = parts.iter().map(|part| part.as_bytes()).collect();
        // The first byte is the version.
        let hash = hex(&Fingerprint::of_parts("email", &bytes).as_bytes()[1..]);
        json!({ "domain": "email", "parts": parts, "sha256": hash })
    });
    made.into()
}

#[test]
fn the_vectors_of_all_languages_are_those_of_the_rule() {
    let scripts = [semel_scripts(), aws_scripts(), stripe_scripts(), grpc_scripts()];
    let scripts: Vec<Value> = scripts.into_iter().flatten().map(Script::json).collect();
    assert!(scripts.len() >= 60, "{}", scripts.len());
    let line = |value: &Value| format!("    {value}");
    let lines = |values: &[Value]| values.iter().map(line).collect::<Vec<_>>().join(",\n");
    let text = format!(
        "{{\n  \"unix_seconds\": {UNIX_SECONDS},\n  \"scripts\": [\n{}\n  ],\n  \
         \"keys\": [\n{}\n  ],\n  \
         \"fingerprints\": [\n{}\n  ]\n}}\n",
        lines(&scripts),
        lines(&derived_keys()),
        lines(&fingerprints()),
    );
    if env::var_os("SEMEL_WRITE_VECTORS").is_some() {
        fs::write(FILE, &text).unwrap();
    }
    let committed = fs::read_to_string(FILE).unwrap_or_default();
    assert!(committed == text, "clients/vectors.json is stale: set SEMEL_WRITE_VECTORS=1");
}
