//! Those who come while somebody runs it, here or elsewhere.

use std::{sync::atomic::Ordering, time::Duration};

use semel::{
    Pending,
    core::{
        Answer, ExecutionResult, ListQuery, OnUnknown, Problem, Reply, Resolution, Resolved,
        StateName, Store, Verdict,
    },
};
use semel_testkit::unsteady::{Verb, Weather};

use crate::bench::{Bench, Gate, broken, ended, id, pass, problem, settle, text};

const WAIT: Duration = Duration::from_secs(10);

/// The answer of whoever ran it, and the replies of all others.
async fn replies(all: Vec<Pending>) -> (Vec<Answer>, Vec<Reply>) {
    let (mut ran, mut others) = (Vec::new(), Vec::new());
    for pending in all {
        let reply = pending.await;
        if let Reply::Ran(answer) = reply { ran.push(answer) } else { others.push(reply) }
    }
    (ran, others)
}

#[tokio::test(start_paused = true)]
async fn fifty_at_once_run_once_and_get_the_same_answer() {
    let bench = Bench::new();
    let gate = Gate::new();
    let all: Vec<_> = (0..50).map(|_| bench.behind(&gate, "a", "one")).collect();
    settle().await;
    gate.open();
    let (ran, joined) = replies(all).await;
    assert_eq!((ran, joined), (vec![text("one")], vec![Reply::Joined(text("one")); 49]));
    assert_eq!(bench.runs(), 1);
    assert_eq!(bench.store.count(Verb::Claim), 1, "those who join do not touch the store");
}

#[tokio::test(start_paused = true)]
async fn fifty_behind_a_failing_leader_get_its_answer_and_run_nothing() {
    let ends: [fn() -> ExecutionResult; 3] =
        [|| ended(Verdict::Retry, "503"), || ended(Verdict::Unknown, "502"), broken];
    for end in ends {
        let bench = Bench::new().on_unknown(OnUnknown::Rerun);
        let gate = Gate::new();
        let all: Vec<_> = (0..50)
            .map(|_| {
                let gate = gate.clone();
                bench.begin("a", move |_| async move {
                    gate.pass().await;
                    end()
                })
            })
            .collect();
        settle().await;
        gate.open();
        let (ran, joined) = replies(all).await;
        let first = match end() {
            ExecutionResult::Answered { answer, .. } => {
                assert_eq!(ran, std::slice::from_ref(&answer));
                Reply::Joined(answer)
            }
            ExecutionResult::Broken(_) | ExecutionResult::NeverReached => {
                problem(Problem::UpstreamTimeout)
            }
        };
        assert_eq!(joined, vec![first; 50 - ran.len()]);
        assert_eq!(bench.runs(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn who_joined_waits_no_longer_than_the_route_says() {
    let bench = Bench::new();
    let gate = Gate::new();
    let first = bench.behind(&gate, "a", "one");
    settle().await;
    let begun = tokio::time::Instant::now();
    assert_eq!(bench.answer("a", "two").await, problem(Problem::InProgress));
    assert_eq!(begun.elapsed().as_secs(), WAIT.as_secs());
    gate.open();
    assert_eq!(first.await, Reply::Ran(text("one")));
}

#[tokio::test(start_paused = true)]
async fn a_route_without_waiting_answers_at_once() {
    let mut bench = Bench::new();
    bench.policy.wait = Duration::ZERO;
    let gate = Gate::new();
    let _first = bench.behind(&gate, "a", "one");
    settle().await;
    let begun = tokio::time::Instant::now();
    assert_eq!(bench.answer("a", "two").await, problem(Problem::InProgress));
    assert_eq!(bench.neighbour().answer("a", "two").await, problem(Problem::InProgress));
    assert!(begun.elapsed() < Duration::from_millis(50));
}

#[tokio::test(start_paused = true)]
async fn who_waits_elsewhere_gets_the_answer_soon_after_it_is_recorded() {
    let bench = Bench::new();
    let gate = Gate::new();
    let first = bench.behind(&gate, "a", "one");
    settle().await;
    let other = bench.neighbour();
    let waiting: Vec<_> = (0..50).map(|_| other.answer("a", "two")).collect();
    let waiting: Vec<_> = waiting.into_iter().map(tokio::spawn).collect();
    pass(Duration::from_secs(2)).await;
    assert_eq!(other.semel.waiting(), 50);
    assert_eq!(other.semel.in_flight(), 0, "who waits does not run");
    gate.open();
    assert_eq!(first.await, Reply::Ran(text("one")));
    let begun = tokio::time::Instant::now();
    for reply in waiting {
        assert_eq!(reply.await.unwrap(), Reply::Replayed(text("one")));
    }
    assert!(begun.elapsed() <= Duration::from_millis(300));
    assert_eq!((bench.runs(), other.semel.waiting()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn one_task_looks_for_all_who_wait() {
    let bench = Bench::new();
    let gate = Gate::new();
    let _first = bench.behind(&gate, "a", "one");
    settle().await;
    let other = bench.neighbour();
    let waiting: Vec<_> = (0..100).map(|_| other.answer("a", "two")).map(tokio::spawn).collect();
    pass(WAIT + Duration::from_secs(1)).await;
    for reply in waiting {
        assert_eq!(reply.await.unwrap(), problem(Problem::InProgress));
    }
    let looks = bench.store.count(Verb::Get);
    assert!((30..60).contains(&looks), "{looks} looks in ten seconds");
    pass(WAIT).await;
    assert!(bench.store.count(Verb::Get) <= looks + 1, "nobody waits, nobody looks");
}

#[tokio::test(start_paused = true)]
async fn who_waits_elsewhere_never_runs_it() {
    let bench = Bench::new();
    let gate = Gate::new();
    let held = gate.clone();
    let _first = bench.begin("a", move |_| async move {
        held.pass().await;
        ended(Verdict::Retry, "503")
    });
    settle().await;
    let waiting = tokio::spawn(bench.neighbour().answer("a", "two"));
    settle().await;
    gate.open();
    assert_eq!(waiting.await.unwrap(), problem(Problem::InProgress));
    assert_eq!(bench.runs.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_while_one_waits_ends_no_wait() {
    let bench = Bench::new();
    let gate = Gate::new();
    let first = bench.behind(&gate, "a", "one");
    settle().await;
    let waiting = tokio::spawn(bench.neighbour().answer("a", "two"));
    settle().await;
    bench.store.set(Verb::Get, Weather::Away);
    pass(Duration::from_secs(3)).await;
    gate.open();
    assert_eq!(first.await, Reply::Ran(text("one")));
    bench.store.set(Verb::Get, Weather::Fair);
    assert_eq!(waiting.await.unwrap(), Reply::Replayed(text("one")));
}

#[tokio::test(start_paused = true)]
async fn who_waits_is_not_told_of_what_was_before_its_claim() {
    let bench = Bench::new();
    let (first, second) = (Gate::new(), Gate::new());
    let running = bench.behind(&first, "a", "one");
    settle().await;
    let other = bench.neighbour();
    let early = tokio::spawn(other.answer("a", "two"));
    settle().await;
    // The look that sees the first answer takes long to come back. Meanwhile an operator forgets
    // the record, it runs once more, and another waiter comes for that run.
    bench.store.set(Verb::Get, Weather::Stuck);
    pass(Duration::from_millis(300)).await;
    first.open();
    assert_eq!(running.await, Reply::Ran(text("one")));
    bench.store.set(Verb::Get, Weather::Late);
    settle().await;
    let forget = Resolution::Deleted(StateName::Completed);
    let listed = bench.store.list(&ListQuery::default()).await.unwrap();
    let fence = listed.items.first().unwrap().fence;
    assert_eq!(bench.store.resolve(&id("a"), fence, &forget).await.unwrap(), Resolved::Applied);
    pass(Duration::from_secs(1)).await;
    let again = bench.behind(&second, "a", "three");
    settle().await;
    let late = tokio::spawn(other.answer("a", "four"));
    settle().await;
    bench.store.set(Verb::Get, Weather::Fair);
    assert_eq!(early.await.unwrap(), Reply::Replayed(text("one")));
    second.open();
    assert_eq!(again.await, Reply::Ran(text("three")));
    assert_eq!(late.await.unwrap(), Reply::Replayed(text("three")));
}
