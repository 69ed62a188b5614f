//! Operations that were remembered elsewhere before: in another scope, under another caller, or
//! while the route only observed.

use std::{sync::atomic::Ordering, time::Duration};

use semel::{
    Pending,
    core::{
        Answer, Caller, ExecutionResult, OnUnknown, Problem, Reason, RecordId, Reply, Scope,
        Verdict,
    },
};
use semel_testkit::unsteady::{Verb, Weather};

use crate::bench::{Bench, Gate, broken, completed, ended, id, pass, problem, settle, text};

/// The address of a key before its route was renamed.
fn before(key: &str) -> RecordId {
    RecordId { scope: Scope::new("default").unwrap(), ..id(key) }
}

fn observed(key: &str) -> RecordId {
    RecordId { scope: id(key).scope.observed(), ..id(key) }
}

impl Bench {
    /// An operation as it was before.
    fn once_before(&self, key: &str, end: ExecutionResult) -> Pending {
        let mut operation = self.operation(key, 1);
        operation.id = before(key);
        self.semel.begin(operation, |_| async { end })
    }

    /// An operation now, which looks where it was before.
    fn now(&self, key: &str, meaning: u8, former: Vec<RecordId>) -> Pending {
        let mut operation = self.operation(key, meaning);
        operation.former = former;
        let runs = self.runs.clone();
        self.semel.begin(operation, move |_| async move {
            runs.fetch_add(1, Ordering::SeqCst);
            completed("now")
        })
    }

    fn calls(&self) -> (u64, u64) {
        (self.store.count(Verb::Claim), self.store.count(Verb::Get))
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
        let bench = Bench::new().on_unknown(on_unknown);
        let _ = bench.once_before("a", end.clone()).await;
        // In another process, so that nothing of it is cached.
        let bench = bench.neighbour();
        for _ in 0..2 {
            let reply = bench.now("a", meaning, vec![before("a")]).await;
            let ran = expected == Reply::Ran(text("now")) && bench.runs() == 1;
            let ok = reply == expected || ran && reply == Reply::Replayed(text("now"));
            assert!(ok, "{end:?} {on_unknown:?} {meaning}: {reply:?}");
        }
        let runs = u32::from(expected == Reply::Ran(text("now")));
        assert_eq!(bench.runs(), runs, "{end:?} {on_unknown:?} {meaning}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_runs_under_its_former_name_is_in_progress() {
    let bench = Bench::new();
    let gate = Gate::new();
    let (held, mut operation) = (gate.clone(), bench.operation("a", 1));
    operation.id = before("a");
    let first = bench.semel.begin(operation, move |_| async move {
        held.pass().await;
        completed("before")
    });
    settle().await;
    let begun = tokio::time::Instant::now();
    let now = || bench.now("a", 1, vec![before("a")]);
    assert_eq!(now().await, problem(Problem::InProgress));
    assert_eq!(begun.elapsed(), Duration::ZERO, "nobody waits for it");
    gate.open();
    assert_eq!(first.await, Reply::Ran(text("before")));
    assert_eq!(now().await, Reply::Replayed(text("before")));
    assert_eq!(bench.runs(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_record_of_its_own_comes_before_every_former_one() {
    let bench = Bench::new();
    assert_eq!(bench.now("a", 1, vec![before("a")]).await, Reply::Ran(text("now")));
    // The key is used under the former name for something else.
    let _ = bench.once_before("a", completed("before")).await;
    let bench = bench.neighbour();
    let reply = bench.now("a", 1, vec![before("a")]).await;
    assert_eq!(reply, Reply::Replayed(text("now")));
}

#[tokio::test(start_paused = true)]
async fn former_records_are_looked_up_in_order_and_only_where_there_are_some() {
    let bench = Bench::new();
    bench.answer("warm", "up").await;
    settle().await;
    let _ = bench.once_before("a", completed("before")).await;
    let other = RecordId { caller: Caller::new("shop-8").unwrap(), ..id("a") };
    let (claims, gets) = bench.calls();
    let reply = bench.now("a", 1, vec![other, before("a")]).await;
    assert_eq!(reply, Reply::Replayed(text("before")));
    assert_eq!(bench.calls(), (claims, gets + 3), "the record itself, and two former ones");

    assert_eq!(bench.now("b", 1, Vec::new()).await, Reply::Ran(text("now")));
    assert_eq!(bench.calls(), (claims + 1, gets + 3));
    assert_eq!(bench.now("c", 1, vec![before("c")]).await, Reply::Ran(text("now")));
    assert_eq!(bench.calls(), (claims + 2, gets + 5));
    // What is cached is not looked up.
    assert_eq!(bench.now("c", 1, vec![before("c")]).await, Reply::Replayed(text("now")));
    assert_eq!(bench.calls(), (claims + 2, gets + 5));
}

#[tokio::test(start_paused = true)]
async fn those_who_join_get_what_the_former_record_says_and_look_nothing_up() {
    let bench = Bench::new();
    let _ = bench.once_before("a", completed("before")).await;
    bench.store.set(Verb::Get, Weather::Stuck);
    let gets = bench.store.count(Verb::Get);
    let all: Vec<_> = (0..50).map(|_| bench.now("a", 1, vec![before("a")])).collect();
    settle().await;
    bench.store.set(Verb::Get, Weather::Fair);
    for pending in all {
        assert_eq!(pending.await, Reply::Replayed(text("before")));
    }
    assert_eq!((bench.store.count(Verb::Get) - gets, bench.runs()), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn a_look_that_fails_is_a_claim_that_fails() {
    for weather in [Weather::Away, Weather::Stuck] {
        let bench = Bench::new();
        let _ = bench.once_before("a", completed("before")).await;
        bench.store.set(Verb::Get, weather);
        let claims = bench.store.count(Verb::Claim);
        let begun = tokio::time::Instant::now();
        let reply = bench.now("a", 1, vec![before("a")]).await;
        assert_eq!(reply, problem(Problem::StoreUnavailable), "{weather:?}");
        assert!(begun.elapsed() <= bench.policy.store_timeout + Duration::from_millis(50));
        assert_eq!(bench.store.count(Verb::Claim), claims, "nothing was claimed");
        assert_eq!(bench.semel.drain(Duration::ZERO).await, 0, "and nothing is to be given back");
        bench.store.set(Verb::Get, Weather::Fair);
        pass(Duration::from_secs(1)).await;
        let reply = bench.now("a", 1, vec![before("a")]).await;
        assert_eq!(reply, Reply::Replayed(text("before")), "{weather:?}");
        assert_eq!(bench.runs(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_observed_counts_when_the_route_is_guarded() {
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
        let bench = Bench::new().on_unknown(on_unknown);
        bench.semel.observe(bench.operation("a", 1), async { end.clone() }).await;
        let reply = bench.now("a", meaning, vec![observed("a")]).await;
        assert_eq!(reply, expected, "{end:?} {on_unknown:?} {meaning}");
        assert_eq!(bench.runs(), u32::from(expected == Reply::Ran(text("now"))));
    }
}
