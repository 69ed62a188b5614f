//! The two state tables of the contract as data, and a run of every row at a level of the stack.
//!
//! [`ENDINGS`] says what the answer of a service makes of its record. [`MEETINGS`] says what a
//! request meets. A level implements [`TableLevel`] with a service that answers as its [`Script`]
//! says. The layer runs the rows in memory, the gateway runs them in its binary over sockets, and
//! the policy in core is compared with the verdicts.

mod script;

use std::future::Future;

use semel_core::{OnUnknown, Verdict};

pub use self::script::Script;
use crate::http::TestResponse;

/// The body of the first request of a row.
pub const FIRST_BODY: &str = r#"{"amount":100,"to":"zoe"}"#;

/// The body of another request under the same key.
pub const OTHER_BODY: &str = r#"{"amount":1000,"to":"zoe"}"#;

/// An answer of the service, and what the default policy makes of it.
#[derive(Clone, Copy, Debug)]
pub struct EndingRow {
    /// The status of the answer.
    pub status: u16,
    /// A header of the answer that counts.
    pub header: Option<(&'static str, &'static str)>,
    /// What the answer proves.
    pub verdict: Verdict,
}

const fn row(status: u16, verdict: Verdict) -> EndingRow {
    EndingRow { status, header: None, verdict }
}

const fn with_header(
    status: u16,
    name: &'static str,
    value: &'static str,
    verdict: Verdict,
) -> EndingRow {
    EndingRow { status, header: Some((name, value)), verdict }
}

/// What ends an execution: the rows in which the service answered.
pub const ENDINGS: [EndingRow; 38] = [
    row(200, Verdict::Completed),
    row(202, Verdict::Completed),
    row(302, Verdict::Completed),
    row(303, Verdict::Completed),
    row(400, Verdict::Completed),
    row(402, Verdict::Completed),
    row(404, Verdict::Completed),
    row(409, Verdict::Completed),
    row(410, Verdict::Completed),
    row(422, Verdict::Completed),
    with_header(500, "idempotency-outcome", "completed", Verdict::Completed),
    with_header(429, "idempotency-outcome", "completed", Verdict::Completed),
    row(401, Verdict::Retry),
    row(403, Verdict::Retry),
    row(405, Verdict::Retry),
    row(425, Verdict::Retry),
    row(429, Verdict::Retry),
    row(501, Verdict::Retry),
    with_header(409, "retry-after", "1", Verdict::Retry),
    with_header(409, "x-should-retry", "true", Verdict::Retry),
    with_header(500, "idempotency-outcome", "retry", Verdict::Retry),
    row(307, Verdict::Forget),
    row(308, Verdict::Forget),
    row(421, Verdict::Forget),
    with_header(500, "idempotency-outcome", "forget", Verdict::Forget),
    // Timeouts of frameworks and proxies send these while the work goes on.
    row(408, Verdict::Unknown),
    row(499, Verdict::Unknown),
    row(500, Verdict::Unknown),
    row(502, Verdict::Unknown),
    row(503, Verdict::Unknown),
    row(504, Verdict::Unknown),
    with_header(503, "retry-after", "1", Verdict::Unknown),
    with_header(503, "x-should-retry", "true", Verdict::Unknown),
    with_header(200, "idempotency-outcome", "unknown", Verdict::Unknown),
    with_header(400, "idempotency-outcome", "unknown", Verdict::Unknown),
    // The client has an answer that says it happened.
    with_header(201, "idempotency-outcome", "retry", Verdict::Unknown),
    with_header(201, "idempotency-outcome", "forget", Verdict::Unknown),
    with_header(302, "idempotency-outcome", "retry", Verdict::Unknown),
];

/// What a record is when a request meets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// The key is new.
    Absent,
    /// The first request runs in the same process.
    InFlight,
    /// It has an answer.
    Completed,
    /// It may run again.
    Released,
    /// Nothing ran under the key.
    Forgotten,
    /// Its outcome is unknown.
    Held,
}

/// What a request gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Met {
    /// It runs as this attempt.
    Runs(u64),
    /// It gets the answer of the request that runs.
    Joins,
    /// It gets the recorded answer.
    Replays,
    /// It gets this problem, and nothing runs.
    Refused(u16, &'static str),
}

/// What a request meets: the state of the record, whether the request is the same, and its answer.
pub const MEETINGS: [(Before, bool, Met); 12] = [
    (Before::Absent, true, Met::Runs(1)),
    (Before::Absent, false, Met::Runs(1)),
    (Before::InFlight, true, Met::Joins),
    (Before::InFlight, false, Met::Refused(422, "key-reused")),
    (Before::Completed, true, Met::Replays),
    (Before::Completed, false, Met::Refused(422, "key-reused")),
    (Before::Released, true, Met::Runs(2)),
    (Before::Released, false, Met::Refused(422, "key-reused")),
    (Before::Forgotten, true, Met::Runs(1)),
    (Before::Forgotten, false, Met::Runs(1)),
    (Before::Held, true, Met::Refused(423, "outcome-unknown")),
    (Before::Held, false, Met::Refused(422, "key-reused")),
];

/// One execution, as the service saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenRun {
    /// The number of the attempt.
    pub attempt: u64,
    /// The fence of the attempt.
    pub fence: u64,
}

/// A level of the stack whose service answers as a [`Script`] says.
pub trait TableLevel {
    /// Sends a request with this key and body.
    fn send(&self, key: &str, body: &'static str) -> impl Future<Output = TestResponse>;

    /// The executions under a key, in order.
    fn runs(&self, key: &str) -> Vec<SeenRun>;

    /// Returns once one request waits for another.
    fn one_waits(&self) -> impl Future<Output = ()>;
}

/// Runs every row of [`ENDINGS`] at a level whose routes say this about unknown outcomes.
///
/// # Panics
///
/// If a row does not hold.
pub async fn check_endings(level: &impl TableLevel, on_unknown: OnUnknown) {
    for (index, row) in ENDINGS.iter().enumerate() {
        let key = Script::ending_key(index);
        let first = level.send(&key, FIRST_BODY).await;
        let second = level.send(&key, FIRST_BODY).await;
        let runs = level.runs(&key);
        let context = format!("{row:?} under {on_unknown:?}");
        let is_final_failure = row.verdict == Verdict::Unknown && on_unknown == OnUnknown::Fail;
        if is_final_failure {
            first.assert_problem(500, "operation-failed");
        } else {
            let (status, text) = (first.status.as_u16(), first.text());
            assert_eq!((status, text), (row.status, "run 1"), "{context}");
        }
        assert_eq!(first.header("idempotency-outcome"), None, "{context}");
        match (row.verdict, on_unknown) {
            (Verdict::Completed, _) => {
                second.assert_replay_of(&first);
                assert_eq!(runs.len(), 1, "{context}");
            }
            (Verdict::Retry, _) | (Verdict::Unknown, OnUnknown::Rerun) => {
                assert_ran_again(&second, &runs, 2, &context);
            }
            (Verdict::Forget, _) => assert_ran_again(&second, &runs, 1, &context),
            (Verdict::Unknown, OnUnknown::Hold) => {
                second.assert_problem(423, "outcome-unknown");
                assert_eq!(runs.len(), 1, "{context}");
            }
            (Verdict::Unknown, OnUnknown::Fail) => {
                second.assert_problem(500, "operation-failed");
                assert!(second.is_replayed(), "{context}");
                assert_eq!(runs.len(), 1, "{context}");
            }
        }
    }
}

/// The second request ran as this attempt, with a higher fence.
fn assert_ran_again(second: &TestResponse, runs: &[SeenRun], attempt: u64, context: &str) {
    assert_eq!((second.status.as_u16(), second.text()), (201, "run 2"), "{context}");
    assert!(!second.is_replayed(), "{context}");
    let [first, again] = runs else { panic!("{} runs: {context}", runs.len()) };
    assert_eq!((first.attempt, again.attempt), (1, attempt), "{context}");
    assert!(first.fence < again.fence, "{context}");
}

/// Runs every row of [`MEETINGS`] at a level whose routes hold unknown outcomes.
///
/// # Panics
///
/// If a row does not hold.
pub async fn check_meetings(level: &impl TableLevel, script: &Script) {
    for (before, same, met) in MEETINGS {
        let key = Script::meeting_key(before, same);
        let context = format!("{before:?}, {}", if same { "the same" } else { "another" });
        let body = if same { FIRST_BODY } else { OTHER_BODY };
        match before {
            Before::Absent => assert_met(&level.send(&key, body).await, None, met, &context),
            Before::InFlight => {
                let meet = async {
                    while level.runs(&key).is_empty() {
                        tokio::task::yield_now().await;
                    }
                    let opens = async {
                        if same {
                            level.one_waits().await;
                        }
                        script.gate().open_for_one();
                    };
                    tokio::join!(level.send(&key, body), opens).0
                };
                let (first, second) = tokio::join!(level.send(&key, FIRST_BODY), meet);
                assert_met(&second, Some(&first), met, &context);
            }
            Before::Completed | Before::Released | Before::Forgotten | Before::Held => {
                let first = level.send(&key, FIRST_BODY).await;
                assert_met(&level.send(&key, body).await, Some(&first), met, &context);
            }
        }
        let attempts: Vec<u64> = level.runs(&key).iter().map(|run| run.attempt).collect();
        let expected: &[u64] = match (before, met) {
            (Before::Absent, _) | (_, Met::Joins | Met::Replays | Met::Refused(..)) => &[1],
            (_, Met::Runs(1)) => &[1, 1],
            (_, Met::Runs(_)) => &[1, 2],
        };
        assert_eq!(attempts, expected, "{context}");
    }
}

fn assert_met(second: &TestResponse, first: Option<&TestResponse>, met: Met, context: &str) {
    match met {
        Met::Runs(_) => {
            assert_eq!(second.status.as_u16(), 201, "{context}");
            assert!(!second.is_replayed(), "{context}");
        }
        Met::Joins => {
            let first = first.expect("the request that runs");
            assert_eq!((second.status, &second.body), (first.status, &first.body), "{context}");
        }
        Met::Replays => second.assert_replay_of(first.expect("the request that ran")),
        Met::Refused(status, slug) => second.assert_problem(status, slug),
    }
}
