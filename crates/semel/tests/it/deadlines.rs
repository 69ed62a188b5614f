//! Deadlines of clients in many simulated requests, on a clock that is stopped.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use semel::{
    BeginRequest, Lease, Semel,
    core::{ExecutionResult, Fingerprint, OnUnknown, Policy, Problem, Reply},
};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::harness::{Gate, Harness, begin, completed, id, memory};

const ROUNDS: u64 = 100;
const REQUESTS_PER_ROUND: u64 = 1000;

/// A timer of tokio fires up to a millisecond late, and the engine counts milliseconds.
const TIMER: Duration = Duration::from_millis(2);

/// What became of the requests.
#[derive(Debug, Default)]
struct Counts {
    begun: AtomicUsize,
    /// Connected after the deadline.
    late: AtomicUsize,
    /// Arrived after the deadline.
    refused: AtomicUsize,
    exceeded: AtomicUsize,
    answered: AtomicUsize,
}

fn add(counter: &AtomicUsize) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Numbers that look random: `SplitMix64`.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, max: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % max
    }

    fn millis(&mut self, max: u64) -> Duration {
        Duration::from_millis(self.below(max))
    }
}

/// One request: it arrives with a deadline, waits for its body, claims, connects, begins with its
/// first byte, and runs on for as long as it takes.
async fn request(
    semel: Semel,
    key: String,
    [left, body, connect, run]: [Duration; 4],
    counts: Arc<Counts>,
) {
    let deadline = semel.deadline_in(left);
    let until = Instant::now() + left;
    sleep(body).await;
    let arrived = Instant::now();
    let fingerprint = Fingerprint::from_bytes(&[1; 33]).unwrap();
    let policy = Policy { on_unknown: OnUnknown::Rerun, ..Policy::default() };
    let mut operation = BeginRequest::new(id(&key), fingerprint, Arc::new(policy));
    operation.deadline = Some(deadline);
    let seen = Arc::clone(&counts);
    let reply = begin(&semel, operation, move |lease: Lease| async move {
        sleep(connect).await;
        if !lease.can_begin() {
            add(&seen.late);
            return ExecutionResult::NeverReached;
        }
        // The first byte.
        assert!(Instant::now() < until, "it began {:?} late", until.elapsed());
        add(&seen.begun);
        sleep(run).await;
        completed("done")
    });
    let reply = reply.await;
    let answered_at = Instant::now();
    // A request that arrives late may get what is recorded; it waits for nothing.
    assert!(answered_at <= until.max(arrived) + TIMER, "{:?} late: {reply:?}", until.elapsed());
    match reply {
        Reply::Problem(Problem::DeadlineExceeded) => {
            assert!(
                arrived + TIMER >= until,
                "it arrived {:?} before its deadline",
                until - arrived
            );
            add(&counts.refused);
        }
        Reply::Problem(Problem::DeadlineExceededInFlight) => {
            assert!(arrived < until + TIMER, "it did not begin, and the reply says that it did");
            assert!(answered_at + TIMER >= until, "it was given up before its deadline");
            add(&counts.exceeded);
        }
        Reply::Ran(_)
        | Reply::Joined(_)
        | Reply::Unguarded(_)
        | Reply::Replayed(_)
        | Reply::Limited(_)
        | Reply::Problem(_) => add(&counts.answered),
    }
}

#[tokio::test(start_paused = true)]
async fn of_a_hundred_thousand_requests_none_begins_after_its_deadline() {
    let semel = Semel::builder(memory()).upkeep(false).build();
    let (counts, mut numbers) = (Arc::new(Counts::default()), Numbers(22));
    for round in 0..ROUNDS {
        let mut requests = JoinSet::new();
        for _ in 0..REQUESTS_PER_ROUND {
            // Some requests share a key: they join, wait or replay.
            let key = format!("{round}-{}", numbers.below(REQUESTS_PER_ROUND / 2));
            let times = [1000, 400, 800, 1500].map(|max| numbers.millis(max));
            requests.spawn(request(semel.clone(), key, times, Arc::clone(&counts)));
        }
        while let Some(done) = requests.join_next().await {
            done.unwrap();
        }
    }
    assert_eq!(semel.drain(Duration::from_secs(60)).await, 0);
    let Counts { begun, late, refused, exceeded, answered } = &*counts;
    let counted = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
    assert_eq!([refused, exceeded, answered].map(counted).iter().sum::<usize>(), 100_000);
    let all = [begun, late, refused, exceeded, answered];
    assert!(all.map(counted).iter().all(|count| *count > 10_000), "{counts:?}");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_exceeds_its_deadline_is_reported_once() {
    let (harness, gate) = (Harness::new(), Gate::new());
    let operation = |key: &str, left| {
        let mut operation = harness.operation(key, 1);
        operation.deadline = Some(harness.semel.deadline_in(left));
        operation
    };
    let late = operation("late", Duration::ZERO);
    let refused = begin(&harness.semel, late, |_| async { completed("done") }).await;
    assert_eq!(refused, Reply::Problem(Problem::DeadlineExceeded));
    let opened = gate.clone();
    let slow = begin(&harness.semel, operation("slow", Duration::from_secs(1)), |_| async move {
        opened.wait_open().await;
        completed("done")
    });
    assert_eq!(slow.await, Reply::Problem(Problem::DeadlineExceededInFlight));
    gate.open();
    assert_eq!(harness.semel.drain(Duration::from_secs(60)).await, 0);
    let reported = ["Refused(DeadlineExceeded)", "Refused(DeadlineExceededInFlight)", "Answered"];
    assert_eq!(reported.map(|kind| harness.events.count(kind)), [1, 1, 0]);
    assert_eq!((harness.events.count("Claimed"), harness.events.count("Completed")), (1, 1));
}
