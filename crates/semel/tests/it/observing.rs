//! Observed operations: what is reported and what is recorded.

use std::{future::pending, time::Duration};

use semel::{
    Semel,
    core::{
        Answer, ExecutionResult, ListQuery, OnStoreDown, OnUnknown, Problem, Reason, Reply,
        StateName, Store, Summary, Verdict,
    },
};
use semel_testkit::flaky_store::{StoreCall, StoreCondition};

use crate::harness::{Gate, Harness, begin, broken, completed, run_ready_tasks, sleep_for, text};

const LEASE: Duration = Duration::from_secs(30);

impl Harness {
    /// Observes an operation with this result.
    async fn observe(&self, key: &str, meaning: u8, ended: ExecutionResult) {
        self.semel.observe(self.operation(key, meaning), async { ended }).await;
    }

    fn would(&self, what: &str) -> usize {
        self.events.count(&format!("Observed({what})"))
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
    let harness = Harness::new();
    harness.observe("a", 1, answered(Verdict::Completed)).await;
    assert_eq!(harness.would("Run"), 1);
    for repeats in 1..=2 {
        harness.observe("a", 1, answered(Verdict::Completed)).await;
        assert_eq!((harness.would("Run"), harness.would("Replay")), (1, repeats));
    }
    harness.observe("a", 2, answered(Verdict::Completed)).await;
    assert_eq!(harness.would("Refuse(KeyReused)"), 1);
    harness.observe("b", 2, answered(Verdict::Completed)).await;
    assert_eq!((harness.would(""), harness.would("Run")), (0, 2));
}

#[tokio::test(start_paused = true)]
async fn a_concurrent_repeat_would_join_the_first_or_be_refused() {
    let mut harness = Harness::new();
    let gate = Gate::new();
    let (semel, operation, held) = (harness.semel.clone(), harness.operation("a", 1), gate.clone());
    let first = tokio::spawn(async move {
        let ended = async {
            held.wait_open().await;
            answered(Verdict::Completed)
        };
        semel.observe(operation, ended).await;
    });
    run_ready_tasks().await;
    harness.observe("a", 1, answered(Verdict::Completed)).await;
    assert_eq!(harness.would("Join"), 1);
    // However long the first takes, its lease is renewed.
    sleep_for(LEASE * 10).await;
    harness.policy.wait = Duration::ZERO;
    harness.observe("a", 1, answered(Verdict::Completed)).await;
    assert_eq!(harness.would("Refuse(InProgress)"), 1);
    gate.open();
    first.await.unwrap();
    harness.observe("a", 1, answered(Verdict::Completed)).await;
    assert_eq!((harness.would("Run"), harness.would("Replay")), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_repeat_after_the_answer_would_be_replayed_though_the_store_is_slow() {
    // The store is slow to record the answer, or to reply to the claim.
    for (verb, weather) in [
        (StoreCall::Finish, StoreCondition::Hanging),
        (StoreCall::Claim, StoreCondition::ReplyDelayed),
    ] {
        let harness = Harness::new();
        harness.store.set(verb, weather);
        let observe = || {
            let (semel, operation) = (harness.semel.clone(), harness.operation("a", 1));
            let ended = async { answered(Verdict::Completed) };
            tokio::spawn(async move { semel.observe(operation, ended).await })
        };
        let mut requests = Vec::new();
        for _ in 0..3 {
            requests.push(observe());
            run_ready_tasks().await;
        }
        harness.store.set(verb, StoreCondition::Available);
        for request in requests {
            request.await.unwrap();
        }
        let counted = (harness.would("Run"), harness.would("Replay"), harness.would("Join"));
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
        let harness = Harness::new().on_unknown(on_unknown);
        harness.observe("a", 1, ended.clone()).await;
        let before = harness.would(expected);
        harness.observe("a", 1, ended.clone()).await;
        assert_eq!(harness.would(expected), before + 1, "{ended:?} {on_unknown:?}");
        let records = harness.records().await;
        assert_eq!(records.len(), 1);
        assert_ne!(records[0].state, StateName::Held, "{ended:?} {on_unknown:?}");
        assert_eq!(harness.events.count("Held"), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn observed_and_guarded_records_are_separate() {
    let harness = Harness::new();
    harness.observe("a", 1, answered(Verdict::Completed)).await;
    assert_eq!(harness.answer("a", "one").await, Reply::Ran(text("one")));
    assert_eq!(harness.answer("b", "two").await, Reply::Ran(text("two")));
    harness.observe("b", 2, answered(Verdict::Completed)).await;
    assert_eq!((harness.would("Run"), harness.runs()), (2, 2));
    let observed = harness.records().await.into_iter().filter(|one| one.id.scope.is_observed());
    assert_eq!(observed.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_unavailable_store_is_reported_and_its_possible_grant_is_given_back() {
    for weather in [StoreCondition::Unavailable, StoreCondition::Hanging, StoreCondition::ReplyLost]
    {
        let mut harness = Harness::new();
        harness.store.set(StoreCall::Claim, weather);
        let (semel, operation) = (harness.semel.clone(), harness.operation("a", 1));
        let away = tokio::spawn(async move {
            semel.observe(operation, async { answered(Verdict::Completed) }).await;
        });
        sleep_for(LEASE / 2).await;
        assert_eq!(harness.would("Refuse(StoreUnavailable)"), 1, "{weather:?}");
        harness.store.set(StoreCall::Claim, StoreCondition::Available);
        away.await.unwrap();
        assert_eq!(harness.semel.drain(LEASE).await, 0, "{weather:?}: it is given back");
        harness.observe("a", 1, answered(Verdict::Completed)).await;
        assert_eq!(harness.would("Run"), 1, "{weather:?}: a guarded one would not have run");
        harness.store.set(StoreCall::Claim, weather);
        harness.policy.on_store_down = OnStoreDown::Pass;
        harness.observe("b", 1, answered(Verdict::Completed)).await;
        assert_eq!(harness.would("Pass"), 1, "{weather:?}");
    }
    let harness = Harness::new();
    harness.store.set(StoreCall::Claim, StoreCondition::Busy);
    harness.observe("a", 1, answered(Verdict::Completed)).await;
    assert_eq!(harness.would("Refuse(TooManyInFlight)"), 1);
}

#[tokio::test(start_paused = true)]
async fn an_observed_record_after_a_crash_is_judged_by_the_policy_and_never_held() {
    for (on_unknown, expected) in [
        (OnUnknown::Hold, "Refuse(OutcomeUnknown)"),
        (OnUnknown::Rerun, "Run"),
        (OnUnknown::Fail, "Refuse(OperationFailed)"),
    ] {
        let harness = Harness::new().on_unknown(on_unknown);
        let (semel, operation) = (harness.semel.clone(), harness.operation("a", 1));
        let crashed = tokio::spawn(async move { semel.observe(operation, pending()).await });
        run_ready_tasks().await;
        crashed.abort();
        sleep_for(LEASE * 2).await;
        let before = harness.would(expected);
        harness.observe("a", 1, answered(Verdict::Completed)).await;
        assert_eq!(harness.would(expected), before + 1, "{on_unknown:?}");
        let state = harness.records().await[0].state;
        assert_eq!(state, StateName::Completed, "{on_unknown:?}: so that it is swept");
    }
}

#[tokio::test(start_paused = true)]
async fn observed_requests_do_not_count_against_guarded_ones() {
    let harness = Harness::with(|builder| builder.in_flight_max(1));
    let (semel, operation) = (harness.semel.clone(), harness.operation("a", 1));
    let endless = tokio::spawn(async move { semel.observe(operation, pending()).await });
    run_ready_tasks().await;
    harness.observe("b", 1, answered(Verdict::Completed)).await;
    assert_eq!(harness.would("Refuse(TooManyInFlight)"), 1);
    assert_eq!(harness.semel.in_flight(), 0);
    assert_eq!(harness.answer("c", "one").await, Reply::Ran(text("one")));
    endless.abort();
}

#[tokio::test(start_paused = true)]
async fn draining_waits_until_the_end_is_remembered() {
    let harness = Harness::new();
    harness.store.set(StoreCall::Finish, StoreCondition::Hanging);
    let (semel, operation): (Semel, _) = (harness.semel.clone(), harness.operation("a", 1));
    tokio::spawn(async move { semel.observe(operation, async { completed("one") }).await });
    run_ready_tasks().await;
    let (store, semel) = (harness.store.clone(), harness.semel.clone());
    let drained = tokio::spawn(async move { semel.drain(LEASE).await });
    run_ready_tasks().await;
    assert!(!drained.is_finished());
    store.set(StoreCall::Finish, StoreCondition::Available);
    assert_eq!(drained.await.unwrap(), 0);
    assert_eq!(harness.records().await[0].state, StateName::Completed);
}

#[tokio::test(start_paused = true)]
async fn guarded_and_observed_operations_share_one_drain_deadline() {
    let harness = Harness::new();
    let (semel, observed) = (harness.semel.clone(), harness.operation("a", 1));
    tokio::spawn(async move { semel.observe(observed, pending()).await });
    let _guarded = begin(&harness.semel, harness.operation("b", 1), |_| pending());
    run_ready_tasks().await;
    let began = tokio::time::Instant::now();
    assert_eq!(harness.semel.drain(LEASE).await, 1);
    assert_eq!(began.elapsed().as_millis(), LEASE.as_millis());
}

#[tokio::test(start_paused = true)]
async fn a_repeat_of_what_is_known_needs_no_room_to_run() {
    let harness = Harness::with(|builder| builder.in_flight_max(1));
    harness.observe("done", 1, answered(Verdict::Completed)).await;
    let (semel, operation) = (harness.semel.clone(), harness.operation("runs", 1));
    let endless = tokio::spawn(async move { semel.observe(operation, pending()).await });
    run_ready_tasks().await;
    for (key, meaning, expected) in [
        ("done", 1, "Replay"),
        ("runs", 1, "Join"),
        ("done", 2, "Refuse(KeyReused)"),
        ("new", 1, "Refuse(TooManyInFlight)"),
    ] {
        harness.observe(key, meaning, answered(Verdict::Completed)).await;
        assert_eq!(harness.would(expected), 1, "{key}");
    }
    endless.abort();
}

/// Each observed request claims, and the claim of a repeat proves no write.
#[tokio::test(start_paused = true)]
async fn repeats_of_an_observed_key_leave_the_probe_of_the_breaker_to_new_keys() {
    let harness = Harness::new();
    harness.observe("seen", 1, answered(Verdict::Completed)).await;
    harness.store.set_all(StoreCondition::Unavailable);
    assert_eq!(harness.answer("first", "one").await, Reply::Problem(Problem::StoreUnavailable));
    harness.store.set_all(StoreCondition::Available);
    sleep_for(Duration::from_secs(1)).await;
    for repeats in 1..=10 {
        harness.observe("seen", 1, answered(Verdict::Completed)).await;
        assert_eq!(harness.would("Replay"), repeats);
    }
    assert_eq!(harness.answer("new", "two").await, Reply::Ran(text("two")));
}
