//! Operations with a record under a former identity: in another scope, under another caller, or
//! observed.

use std::{sync::atomic::Ordering, time::Duration};

use semel::core::{
    Answer, Caller, ExecutionResult, OnUnknown, Problem, Reason, RecordId, Reply, Scope, Verdict,
};
use semel_testkit::flaky_store::{StoreCall, StoreCondition};

use crate::harness::{
    Gate, Harness, PendingReply, begin, broken, completed, ended, id, problem, run_ready_tasks,
    sleep_for, text,
};

/// The record id of a key before its route was renamed.
fn before(key: &str) -> RecordId {
    RecordId { scope: Scope::new("default").unwrap(), ..id(key) }
}

fn observed(key: &str) -> RecordId {
    RecordId { scope: id(key).scope.observed(), ..id(key) }
}

impl Harness {
    /// An operation under its former identity.
    fn once_before(&self, key: &str, end: ExecutionResult) -> PendingReply {
        let mut operation = self.operation(key, 1);
        operation.id = before(key);
        begin(&self.semel, operation, |_| async { end })
    }

    /// An operation that looks its former identity up.
    fn now(&self, key: &str, meaning: u8, former: Vec<RecordId>) -> PendingReply {
        let mut operation = self.operation(key, meaning);
        operation.former = former;
        let runs = self.runs.clone();
        begin(&self.semel, operation, move |_| async move {
            runs.fetch_add(1, Ordering::SeqCst);
            completed("now")
        })
    }

    fn calls(&self) -> (u64, u64) {
        (self.store.count(StoreCall::Claim), self.store.count(StoreCall::Get))
    }
}

#[tokio::test(start_paused = true)]
async fn a_former_record_is_met_like_the_record_itself() {
    let replayed = |answer: &str| Reply::Replayed(text(answer));
    for (end, on_unknown, meaning, expected) in [
        (completed("before"), OnUnknown::Hold, 1, replayed("before")),
        (completed("before"), OnUnknown::Hold, 2, problem(Problem::KeyReused)),
        (broken(), OnUnknown::Hold, 1, problem(Problem::OutcomeUnknown)),
        (broken(), OnUnknown::Fail, 1, Reply::Replayed(Answer::failed())),
        (broken(), OnUnknown::Rerun, 1, Reply::Ran(text("now"))),
        (ended(Verdict::Retry, "429"), OnUnknown::Hold, 1, Reply::Ran(text("now"))),
        (ended(Verdict::Retry, "429"), OnUnknown::Hold, 2, problem(Problem::KeyReused)),
        (ended(Verdict::Forget, "307"), OnUnknown::Hold, 2, Reply::Ran(text("now"))),
        (ExecutionResult::NeverReached, OnUnknown::Hold, 2, Reply::Ran(text("now"))),
    ] {
        let harness = Harness::new().on_unknown(on_unknown);
        let _ = harness.once_before("a", end.clone()).await;
        // In another process, so that nothing of it is cached.
        let harness = harness.second_process();
        for _ in 0..2 {
            let reply = harness.now("a", meaning, vec![before("a")]).await;
            let ran = expected == Reply::Ran(text("now")) && harness.runs() == 1;
            let ok = reply == expected || ran && reply == Reply::Replayed(text("now"));
            assert!(ok, "{end:?} {on_unknown:?} {meaning}: {reply:?}");
        }
        let runs = u32::from(expected == Reply::Ran(text("now")));
        assert_eq!(harness.runs(), runs, "{end:?} {on_unknown:?} {meaning}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_operation_that_runs_under_its_former_name_is_in_progress() {
    let harness = Harness::new();
    let gate = Gate::new();
    let (held, mut operation) = (gate.clone(), harness.operation("a", 1));
    operation.id = before("a");
    let first = begin(&harness.semel, operation, move |_| async move {
        held.wait_open().await;
        completed("before")
    });
    run_ready_tasks().await;
    let begun = tokio::time::Instant::now();
    let now = || harness.now("a", 1, vec![before("a")]);
    assert_eq!(now().await, problem(Problem::InProgress));
    assert_eq!(begun.elapsed(), Duration::ZERO, "no request waits for it");
    gate.open();
    assert_eq!(first.await, Reply::Ran(text("before")));
    assert_eq!(now().await, Reply::Replayed(text("before")));
    assert_eq!(harness.runs(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_record_of_its_own_comes_before_every_former_one() {
    let harness = Harness::new();
    assert_eq!(harness.now("a", 1, vec![before("a")]).await, Reply::Ran(text("now")));
    // The key is used under the former name for something else.
    let _ = harness.once_before("a", completed("before")).await;
    let harness = harness.second_process();
    let reply = harness.now("a", 1, vec![before("a")]).await;
    assert_eq!(reply, Reply::Replayed(text("now")));
}

#[tokio::test(start_paused = true)]
async fn former_records_are_looked_up_in_order_and_only_where_there_are_some() {
    let harness = Harness::new();
    harness.answer("warm", "up").await;
    run_ready_tasks().await;
    let _ = harness.once_before("a", completed("before")).await;
    let other = RecordId { caller: Caller::new("shop-8").unwrap(), ..id("a") };
    let (claims, gets) = harness.calls();
    let reply = harness.now("a", 1, vec![other, before("a")]).await;
    assert_eq!(reply, Reply::Replayed(text("before")));
    assert_eq!(harness.calls(), (claims, gets + 3), "the record itself, and two former ones");

    assert_eq!(harness.now("b", 1, Vec::new()).await, Reply::Ran(text("now")));
    assert_eq!(harness.calls(), (claims + 1, gets + 3));
    assert_eq!(harness.now("c", 1, vec![before("c")]).await, Reply::Ran(text("now")));
    assert_eq!(harness.calls(), (claims + 2, gets + 5));
    // A cached record is not looked up.
    assert_eq!(harness.now("c", 1, vec![before("c")]).await, Reply::Replayed(text("now")));
    assert_eq!(harness.calls(), (claims + 2, gets + 5));
}

#[tokio::test(start_paused = true)]
async fn joined_requests_get_the_former_record_without_a_lookup() {
    let harness = Harness::new();
    let _ = harness.once_before("a", completed("before")).await;
    harness.store.set(StoreCall::Get, StoreCondition::Hanging);
    let gets = harness.store.count(StoreCall::Get);
    let all: Vec<_> = (0..50).map(|_| harness.now("a", 1, vec![before("a")])).collect();
    run_ready_tasks().await;
    harness.store.set(StoreCall::Get, StoreCondition::Available);
    for pending in all {
        assert_eq!(pending.await, Reply::Replayed(text("before")));
    }
    assert_eq!((harness.store.count(StoreCall::Get) - gets, harness.runs()), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn a_look_that_fails_is_a_claim_that_fails() {
    for weather in [StoreCondition::Unavailable, StoreCondition::Hanging] {
        let harness = Harness::new();
        let _ = harness.once_before("a", completed("before")).await;
        harness.store.set(StoreCall::Get, weather);
        let claims = harness.store.count(StoreCall::Claim);
        let begun = tokio::time::Instant::now();
        let reply = harness.now("a", 1, vec![before("a")]).await;
        assert_eq!(reply, problem(Problem::StoreUnavailable), "{weather:?}");
        assert!(begun.elapsed() <= harness.policy.store_timeout + Duration::from_millis(50));
        assert_eq!(harness.store.count(StoreCall::Claim), claims, "nothing was claimed");
        assert_eq!(harness.semel.drain(Duration::ZERO).await, 0, "and nothing is to be given back");
        harness.store.set(StoreCall::Get, StoreCondition::Available);
        sleep_for(Duration::from_secs(1)).await;
        let reply = harness.now("a", 1, vec![before("a")]).await;
        assert_eq!(reply, Reply::Replayed(text("before")), "{weather:?}");
        assert_eq!(harness.runs(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn observed_records_count_when_the_route_starts_to_guard() {
    let status = Answer::encode(201, &[], &[], &[]);
    let answered = |verdict| {
        let (answer, reason) = (status.clone(), Reason::Answered(201));
        ExecutionResult::Answered { verdict, answer, reason }
    };
    let not_retained = Reply::Replayed(Answer::not_retained(201));
    for (end, on_unknown, meaning, expected) in [
        (answered(Verdict::Completed), OnUnknown::Hold, 1, not_retained),
        (answered(Verdict::Completed), OnUnknown::Hold, 2, problem(Problem::KeyReused)),
        (answered(Verdict::Retry), OnUnknown::Hold, 1, Reply::Ran(text("now"))),
        (broken(), OnUnknown::Hold, 1, problem(Problem::OutcomeUnknown)),
        (broken(), OnUnknown::Fail, 1, Reply::Replayed(Answer::failed())),
        (broken(), OnUnknown::Rerun, 1, Reply::Ran(text("now"))),
    ] {
        let harness = Harness::new().on_unknown(on_unknown);
        harness.semel.observe(harness.operation("a", 1), async { end.clone() }).await;
        let reply = harness.now("a", meaning, vec![observed("a")]).await;
        assert_eq!(reply, expected, "{end:?} {on_unknown:?} {meaning}");
        assert_eq!(harness.runs(), u32::from(expected == Reply::Ran(text("now"))));
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_with_a_former_record_leaves_the_probe_of_the_breaker_to_new_keys() {
    let harness = Harness::with(|builder| builder.cache_bytes_max(0));
    harness.once_before("k", completed("before")).await;
    harness.store.set_all(StoreCondition::Unavailable);
    assert_eq!(harness.answer("first", "one").await, problem(Problem::StoreUnavailable));
    harness.store.set_all(StoreCondition::Available);
    sleep_for(Duration::from_secs(1)).await;
    for _ in 0..10 {
        let repeat = harness.now("k", 1, vec![before("k")]).await;
        assert_eq!(repeat, Reply::Replayed(text("before")));
    }
    assert_eq!(harness.answer("new", "two").await, Reply::Ran(text("two")));
}
