//! Runs without a claim, where the route passes a store by that is away; and claims that may have
//! been granted all the same.

use std::time::Duration;

use semel::core::{ExecutionResult, OnStoreDown, OnUnknown, Problem, Reply, Standing, Verdict};
use semel_testkit::unsteady::{Unsteady, Verb, Weather};

use crate::bench::{Bench, Gate, broken, completed, ended, memory, pass, problem, settle, text};

const LEASE: Duration = Duration::from_secs(30);

fn passing() -> Bench {
    let mut bench = Bench::new();
    bench.policy.on_store_down = OnStoreDown::Pass;
    bench
}

#[tokio::test(start_paused = true)]
async fn where_the_route_says_so_it_runs_unguarded() {
    let bench = passing();
    bench.store.set_all(Weather::Away);
    let pending = bench.begin("a", |lease| async move {
        assert_eq!(lease.fence(), None);
        assert!(lease.may_begin());
        completed("unguarded")
    });
    assert_eq!(pending.await, Reply::Unguarded(text("unguarded")));
    assert_eq!((bench.runs(), bench.events.count("Passed")), (1, 1));
    bench.store.set_all(Weather::Fair);
    pass(Duration::from_secs(1)).await;
    assert_eq!(bench.answer("a", "guarded").await, Reply::Ran(text("guarded")), "none was asked");
}

#[tokio::test(start_paused = true)]
async fn who_joins_an_unguarded_run_is_told_so() {
    let bench = passing();
    bench.store.set_all(Weather::Away);
    let gate = Gate::new();
    let first = bench.behind(&gate, "a", "one");
    pass(Duration::from_secs(3)).await;
    let second = bench.answer("a", "two");
    gate.open();
    assert_eq!(first.await, Reply::Unguarded(text("one")));
    assert_eq!(second.await, Reply::Unguarded(text("one")));
    assert_eq!(bench.runs(), 1);
}

/// What ends unguarded under a claim that was granted unheard is recorded when the store is back,
/// also where that takes longer than the lease.
#[tokio::test(start_paused = true)]
async fn an_unguarded_run_whose_claim_was_granted_is_recorded_like_any_other() {
    let ends = [
        (
            (|| completed("one")) as fn() -> ExecutionResult,
            OnUnknown::Hold,
            Reply::Replayed(text("one")),
        ),
        (broken, OnUnknown::Hold, problem(Problem::OutcomeUnknown)),
        (broken, OnUnknown::Rerun, Reply::Ran(text("two"))),
        (broken, OnUnknown::Fail, Reply::Replayed(semel::core::Answer::failed())),
        (|| ended(Verdict::Forget, "307"), OnUnknown::Hold, Reply::Ran(text("two"))),
        (|| ExecutionResult::NeverReached, OnUnknown::Hold, Reply::Ran(text("two"))),
    ];
    for (end, on_unknown, repeat) in ends {
        for away in [Duration::from_secs(5), LEASE * 100] {
            let bench = passing().on_unknown(on_unknown);
            bench.store.set(Verb::Claim, Weather::Deaf);
            let told = bench.begin("a", move |_| async move { end() }).await;
            assert!(
                matches!(told, Reply::Unguarded(_) | Reply::Problem(_)),
                "it is not recorded yet: {told:?}"
            );
            bench.store.set(Verb::Claim, Weather::Away);
            pass(away).await;
            bench.store.set(Verb::Claim, Weather::Fair);
            assert_eq!(bench.semel.drain(LEASE).await, 0);
            assert_eq!(bench.answer("a", "two").await, repeat, "{on_unknown:?} {away:?}");
            let runs = 1 + u32::from(matches!(repeat, Reply::Ran(_)));
            assert_eq!(bench.runs(), runs, "{on_unknown:?} {away:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_unguarded_run_is_guarded_as_soon_as_its_claim_turns_out_to_be_granted() {
    let bench = passing().on_unknown(OnUnknown::Rerun);
    bench.store.set(Verb::Claim, Weather::Deaf);
    let gate = Gate::new();
    let held = gate.clone();
    let first = bench.begin("a", move |lease| async move {
        assert_eq!(lease.fence(), None);
        held.pass().await;
        assert!(lease.fence().is_some() && !lease.is_lost());
        completed("one")
    });
    pass(Duration::from_secs(3)).await;
    bench.store.set(Verb::Claim, Weather::Fair);
    // Its lease is renewed for as long as it runs: no other owner may rerun it.
    pass(LEASE * 5).await;
    let mut neighbour = bench.neighbour();
    neighbour.policy.wait = Duration::ZERO;
    assert_eq!(neighbour.answer("a", "two").await, problem(Problem::InProgress));
    gate.open();
    assert_eq!(first.await, Reply::Ran(text("one")), "it is durable");
    assert_eq!(neighbour.answer("a", "two").await, Reply::Replayed(text("one")));
    assert_eq!(bench.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_unguarded_run_beside_a_completed_record_changes_nothing() {
    let bench = passing();
    bench.neighbour().answer("a", "theirs").await;
    bench.store.set(Verb::Claim, Weather::Deaf);
    let told = bench.answer("a", "mine").await;
    assert_eq!(told, Reply::Unguarded(text("mine")));
    bench.store.set(Verb::Claim, Weather::Fair);
    assert_eq!(bench.semel.drain(LEASE).await, 0);
    assert_eq!(bench.answer("a", "three").await, Reply::Replayed(text("theirs")));
    assert_eq!(bench.runs(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_client_of_an_unguarded_run_does_not_wait_for_the_store() {
    let bench = passing();
    bench.store.set(Verb::Claim, Weather::Stuck);
    let gate = Gate::new();
    let first = tokio::spawn(bench.behind(&gate, "a", "one"));
    // The claim is retried, and hangs, when the run ends.
    pass(Duration::from_millis(2_100)).await;
    let begun = tokio::time::Instant::now();
    gate.open();
    assert_eq!(first.await.unwrap(), Reply::Unguarded(text("one")));
    assert_eq!(begun.elapsed(), Duration::ZERO);
    bench.store.set(Verb::Claim, Weather::Fair);
    assert_eq!(bench.semel.drain(LEASE).await, 0);
    assert_eq!(bench.answer("a", "two").await, Reply::Replayed(text("one")));
    assert_eq!(bench.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_was_granted_unheard_is_not_left_to_be_held() {
    for weather in [Weather::Deaf, Weather::Late] {
        let bench = Bench::new();
        bench.store.set(Verb::Claim, weather);
        assert_eq!(bench.answer("a", "one").await, problem(Problem::StoreUnavailable));
        // A reaper comes by while the store is away from here.
        bench.store.set(Verb::Claim, Weather::Away);
        pass(LEASE * 100).await;
        assert_eq!(bench.standing("a").await, Some(Standing::Held), "{weather:?}");
        bench.store.set(Verb::Claim, Weather::Fair);
        assert_eq!(bench.semel.drain(LEASE).await, 0);
        let next = bench.begin("a", |lease| async move {
            assert_eq!(lease.attempt(), 1);
            completed("two")
        });
        assert_eq!(next.await, Reply::Ran(text("two")), "{weather:?}");
        assert_eq!(bench.runs(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_held_record_of_somebody_else_is_left_alone() {
    let records = memory();
    let bench = Bench::on(Unsteady::new(records.clone()), |builder| builder);
    bench.store.set(Verb::Claim, Weather::Stuck);
    assert_eq!(bench.answer("a", "one").await, problem(Problem::StoreUnavailable));
    pass(LEASE * 2).await;
    // Nothing of the claim above has reached the store.
    let neighbour = Bench::on(Unsteady::new(records), |builder| builder);
    let theirs = neighbour.begin("a", |_| async { broken() });
    assert_eq!(theirs.await, problem(Problem::UpstreamTimeout));
    bench.store.set(Verb::Claim, Weather::Fair);
    assert_eq!(bench.semel.drain(LEASE).await, 0);
    assert_eq!(bench.standing("a").await, Some(Standing::Held));
}

#[tokio::test(start_paused = true)]
async fn hanging_up_on_an_unguarded_run_changes_nothing() {
    let bench = passing();
    bench.store.set(Verb::Claim, Weather::Deaf);
    let gate = Gate::new();
    let pending = tokio::spawn(bench.behind(&gate, "a", "one"));
    pass(Duration::from_secs(3)).await;
    pending.abort();
    let _ = pending.await;
    bench.store.set(Verb::Claim, Weather::Fair);
    pass(LEASE * 2).await;
    gate.open();
    settle().await;
    assert_eq!(bench.semel.drain(LEASE).await, 0);
    assert_eq!(bench.answer("a", "two").await, Reply::Replayed(text("one")));
    assert_eq!(bench.runs(), 1);
}
