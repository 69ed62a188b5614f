//! Operations that are only observed: what would have become of them, and what is remembered.

use std::{future::pending, time::Duration};

use semel::{
    Semel,
    core::{
        Answer, ExecutionResult, ListQuery, OnStoreDown, OnUnknown, Reason, Reply, StateName,
        Store, Summary, Verdict,
    },
};
use semel_testkit::unsteady::{Verb, Weather};

use crate::bench::{Bench, Gate, broken, completed, pass, settle, text};

const LEASE: Duration = Duration::from_secs(30);

impl Bench {
    /// Observes an operation that has ended so.
    async fn observe(&self, key: &str, meaning: u8, ended: ExecutionResult) {
        self.semel.observe(self.operation(key, meaning), async { ended }).await;
    }

    fn would(&self, what: &str) -> usize {
        self.events.count(&format!("Would({what})"))
    }

    async fn records(&self) -> Vec<Summary> {
        self.store.list(&ListQuery::default()).await.unwrap().items
    }
}

fn answered(verdict: Verdict) -> ExecutionResult {
    let answer = Answer::encode(200, &[], &[], &[]);
    ExecutionResult::Answered { verdict, answer, reason: Reason::Answered(200) }
}

#[tokio::test(start_paused = true)]
async fn a_repeat_would_be_replayed_and_another_meaning_refused() {
    let bench = Bench::new();
    bench.observe("a", 1, answered(Verdict::Completed)).await;
    assert_eq!(bench.would("Run"), 1);
    for repeats in 1..=2 {
        bench.observe("a", 1, answered(Verdict::Completed)).await;
        assert_eq!((bench.would("Run"), bench.would("Replay")), (1, repeats));
    }
    bench.observe("a", 2, answered(Verdict::Completed)).await;
    assert_eq!(bench.would("Refuse(KeyReused)"), 1);
    bench.observe("b", 2, answered(Verdict::Completed)).await;
    assert_eq!((bench.would(""), bench.would("Run")), (0, 2));
}

#[tokio::test(start_paused = true)]
async fn a_repeat_beside_the_first_would_join_it_or_be_told_to_wait() {
    let mut bench = Bench::new();
    let gate = Gate::new();
    let (semel, operation, held) = (bench.semel.clone(), bench.operation("a", 1), gate.clone());
    let first = tokio::spawn(async move {
        let ended = async {
            held.pass().await;
            answered(Verdict::Completed)
        };
        semel.observe(operation, ended).await;
    });
    settle().await;
    bench.observe("a", 1, answered(Verdict::Completed)).await;
    assert_eq!(bench.would("Join"), 1);
    // However long the first takes: its lease is renewed.
    pass(LEASE * 10).await;
    bench.policy.wait = Duration::ZERO;
    bench.observe("a", 1, answered(Verdict::Completed)).await;
    assert_eq!(bench.would("Refuse(InProgress)"), 1);
    gate.open();
    first.await.unwrap();
    bench.observe("a", 1, answered(Verdict::Completed)).await;
    assert_eq!((bench.would("Run"), bench.would("Replay")), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_repeat_after_the_answer_would_be_replayed_though_the_store_is_slow() {
    // The store is slow to record the answer, or to say that it has granted the claim.
    for (verb, weather) in [(Verb::Record, Weather::Stuck), (Verb::Claim, Weather::Late)] {
        let bench = Bench::new();
        bench.store.set(verb, weather);
        let observe = || {
            let (semel, operation) = (bench.semel.clone(), bench.operation("a", 1));
            let ended = async { answered(Verdict::Completed) };
            tokio::spawn(async move { semel.observe(operation, ended).await })
        };
        let mut requests = Vec::new();
        for _ in 0..3 {
            requests.push(observe());
            settle().await;
        }
        bench.store.set(verb, Weather::Fair);
        for request in requests {
            request.await.unwrap();
        }
        let counted = (bench.would("Run"), bench.would("Replay"), bench.would("Join"));
        assert_eq!(counted, (1, 2, 0), "{verb:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn how_it_ended_decides_what_a_repeat_would_get_and_nothing_is_ever_held() {
    let not_retained = Answer::not_retained(200);
    let large = ExecutionResult::Answered {
        verdict: Verdict::Completed,
        answer: not_retained,
        reason: Reason::Answered(200),
    };
    let (hold, rerun, fail) = (OnUnknown::Hold, OnUnknown::Rerun, OnUnknown::Fail);
    for (ended, on_unknown, expected) in [
        (answered(Verdict::Completed), hold, "Replay"),
        (answered(Verdict::Retry), hold, "Run"),
        (ExecutionResult::NeverReached, hold, "Run"),
        (large, hold, "Refuse(ResponseNotRetained)"),
        (answered(Verdict::Unknown), hold, "Refuse(OutcomeUnknown)"),
        (broken(), hold, "Refuse(OutcomeUnknown)"),
        (broken(), rerun, "Run"),
        (broken(), fail, "Refuse(OperationFailed)"),
    ] {
        let bench = Bench::new().on_unknown(on_unknown);
        bench.observe("a", 1, ended.clone()).await;
        let before = bench.would(expected);
        bench.observe("a", 1, ended.clone()).await;
        assert_eq!(bench.would(expected), before + 1, "{ended:?} {on_unknown:?}");
        let records = bench.records().await;
        assert_eq!(records.len(), 1);
        assert_ne!(records[0].state, StateName::Held, "{ended:?} {on_unknown:?}");
        assert_eq!(bench.events.count("Held"), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_observed_and_what_is_guarded_never_meet() {
    let bench = Bench::new();
    bench.observe("a", 1, answered(Verdict::Completed)).await;
    assert_eq!(bench.answer("a", "one").await, Reply::Ran(text("one")));
    assert_eq!(bench.answer("b", "two").await, Reply::Ran(text("two")));
    bench.observe("b", 2, answered(Verdict::Completed)).await;
    assert_eq!((bench.would("Run"), bench.runs()), (2, 2));
    let observed = bench.records().await.into_iter().filter(|one| one.id.scope.is_observed());
    assert_eq!(observed.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_is_told_and_what_it_may_have_granted_is_given_back() {
    for weather in [Weather::Away, Weather::Stuck, Weather::Deaf] {
        let mut bench = Bench::new();
        bench.store.set(Verb::Claim, weather);
        let (semel, operation) = (bench.semel.clone(), bench.operation("a", 1));
        let away = tokio::spawn(async move {
            semel.observe(operation, async { answered(Verdict::Completed) }).await;
        });
        pass(LEASE / 2).await;
        assert_eq!(bench.would("Refuse(StoreUnavailable)"), 1, "{weather:?}");
        bench.store.set(Verb::Claim, Weather::Fair);
        away.await.unwrap();
        assert_eq!(bench.semel.drain(LEASE).await, 0, "{weather:?}: it is given back");
        bench.observe("a", 1, answered(Verdict::Completed)).await;
        assert_eq!(bench.would("Run"), 1, "{weather:?}: a guarded one would not have run");
        bench.store.set(Verb::Claim, weather);
        bench.policy.on_store_down = OnStoreDown::Pass;
        bench.observe("b", 1, answered(Verdict::Completed)).await;
        assert_eq!(bench.would("Pass"), 1, "{weather:?}");
    }
    let bench = Bench::new();
    bench.store.set(Verb::Claim, Weather::Busy);
    bench.observe("a", 1, answered(Verdict::Completed)).await;
    assert_eq!(bench.would("Refuse(TooManyInFlight)"), 1);
}

#[tokio::test(start_paused = true)]
async fn what_a_crash_leaves_behind_is_judged_by_the_policy_and_never_held() {
    for (on_unknown, expected) in [
        (OnUnknown::Hold, "Refuse(OutcomeUnknown)"),
        (OnUnknown::Rerun, "Run"),
        (OnUnknown::Fail, "Refuse(OperationFailed)"),
    ] {
        let bench = Bench::new().on_unknown(on_unknown);
        let (semel, operation) = (bench.semel.clone(), bench.operation("a", 1));
        let crashed = tokio::spawn(async move { semel.observe(operation, pending()).await });
        settle().await;
        crashed.abort();
        pass(LEASE * 2).await;
        let before = bench.would(expected);
        bench.observe("a", 1, answered(Verdict::Completed)).await;
        assert_eq!(bench.would(expected), before + 1, "{on_unknown:?}");
        let state = bench.records().await[0].state;
        assert_eq!(state, StateName::Completed, "{on_unknown:?}: so that it is swept");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_observed_takes_no_room_from_what_is_guarded() {
    let bench = Bench::with(|builder| builder.in_flight_max(1));
    let (semel, operation) = (bench.semel.clone(), bench.operation("a", 1));
    let endless = tokio::spawn(async move { semel.observe(operation, pending()).await });
    settle().await;
    bench.observe("b", 1, answered(Verdict::Completed)).await;
    assert_eq!(bench.would("Refuse(TooManyInFlight)"), 1);
    assert_eq!(bench.semel.in_flight(), 0);
    assert_eq!(bench.answer("c", "one").await, Reply::Ran(text("one")));
    endless.abort();
}

#[tokio::test(start_paused = true)]
async fn draining_waits_until_the_end_is_remembered() {
    let bench = Bench::new();
    bench.store.set(Verb::Record, Weather::Stuck);
    let (semel, operation): (Semel, _) = (bench.semel.clone(), bench.operation("a", 1));
    tokio::spawn(async move { semel.observe(operation, async { completed("one") }).await });
    settle().await;
    let (store, semel) = (bench.store.clone(), bench.semel.clone());
    let drained = tokio::spawn(async move { semel.drain(LEASE).await });
    settle().await;
    assert!(!drained.is_finished());
    store.set(Verb::Record, Weather::Fair);
    assert_eq!(drained.await.unwrap(), 0);
    assert_eq!(bench.records().await[0].state, StateName::Completed);
}

#[tokio::test(start_paused = true)]
async fn what_is_guarded_and_what_is_observed_have_one_deadline() {
    let bench = Bench::new();
    let (semel, observed) = (bench.semel.clone(), bench.operation("a", 1));
    tokio::spawn(async move { semel.observe(observed, pending()).await });
    let _guarded = bench.semel.begin(bench.operation("b", 1), |_| pending());
    settle().await;
    let began = tokio::time::Instant::now();
    assert_eq!(bench.semel.drain(LEASE).await, 1);
    assert_eq!(began.elapsed().as_millis(), LEASE.as_millis());
}

#[tokio::test(start_paused = true)]
async fn a_repeat_of_what_is_known_needs_no_room_to_run() {
    let bench = Bench::with(|builder| builder.in_flight_max(1));
    bench.observe("done", 1, answered(Verdict::Completed)).await;
    let (semel, operation) = (bench.semel.clone(), bench.operation("runs", 1));
    let endless = tokio::spawn(async move { semel.observe(operation, pending()).await });
    settle().await;
    for (key, meaning, expected) in [
        ("done", 1, "Replay"),
        ("runs", 1, "Join"),
        ("done", 2, "Refuse(KeyReused)"),
        ("new", 1, "Refuse(TooManyInFlight)"),
    ] {
        bench.observe(key, meaning, answered(Verdict::Completed)).await;
        assert_eq!(bench.would(expected), 1, "{key}");
    }
    endless.abort();
}
