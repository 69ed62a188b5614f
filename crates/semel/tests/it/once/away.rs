//! What `once` makes of a store that goes away and comes back.

use semel::{
    OnceErrorKind, Outcome, Semel, Stop,
    core::{OnStoreDown, OnUnknown, StateName},
};
use semel_testkit::unsteady::{Unsteady, Weather};
use tokio::time::sleep;

use super::{Bench, once, seconds};

/// An engine whose way to the store can be cut.
fn cut_off(bench: &Bench) -> (Unsteady, Semel) {
    let way = Unsteady::new(bench.store.clone());
    let semel = Semel::new(way.clone());
    (way, semel)
}

#[tokio::test(start_paused = true)]
async fn while_the_store_is_away_nothing_runs() {
    let bench = Bench::new();
    let (way, semel) = cut_off(&bench);
    let call = || {
        let runs = bench.runs.clone();
        once(&semel, "k").run(move |_| async move { Ok(runs.one_more()) })
    };
    way.set_all(Weather::Away);
    let error = call().await.unwrap_err();
    assert_eq!(error.kind(), OnceErrorKind::StoreUnavailable);
    assert!(error.retry_later());
    assert_eq!(bench.runs.count(), 0);
    way.set_all(Weather::Fair);
    assert!(matches!(call().await, Ok(Outcome::Ran(1))));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_may_pass_runs_unguarded_and_without_a_fence() {
    let bench = Bench::new();
    let (way, semel) = cut_off(&bench);
    way.set_all(Weather::Away);
    for run in 1..=2 {
        let runs = bench.runs.clone();
        let call = once(&semel, "k").on_store_down(OnStoreDown::Pass);
        let outcome = call.run(move |lease| async move {
            assert!(lease.fence().is_none());
            Ok(runs.one_more())
        });
        let outcome = outcome.await;
        assert!(matches!(outcome, Ok(Outcome::Ran(value)) if value == run), "{outcome:?}");
    }
    assert!(bench.record("k").await.is_none());
}

#[tokio::test(start_paused = true)]
async fn what_ended_unguarded_is_recorded_nowhere_so_that_it_runs_again() {
    for rule in [OnUnknown::Hold, OnUnknown::Fail, OnUnknown::Rerun] {
        for panics in [false, true] {
            let bench = Bench::new();
            let (way, semel) = cut_off(&bench);
            way.set_all(Weather::Away);
            let call = once(&semel, "k").on_store_down(OnStoreDown::Pass).on_unknown(rule);
            let outcome = call.run(move |_| async move {
                assert!(!panics, "on purpose");
                Err::<u32, _>(Stop::unknown("line dead"))
            });
            let outcome = outcome.await;
            let Ok(Outcome::Unknown(unknown)) = outcome else { panic!("{rule:?}: {outcome:?}") };
            assert!(unknown.ran() && unknown.runs_again(), "{rule:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_recorded_is_unknown_until_the_store_is_back() {
    let bench = Bench::new();
    let (way, semel) = cut_off(&bench);
    let (runs, cut) = (bench.runs.clone(), way.clone());
    let outcome = once(&semel, "k").run(move |_| async move {
        cut.set_all(Weather::Away);
        Ok(runs.one_more())
    });
    let outcome = outcome.await;
    let Ok(Outcome::Unknown(unknown)) = outcome else { panic!("{outcome:?}") };
    assert_eq!(unknown.value(), Some(&1));
    assert!(unknown.ran() && !unknown.runs_again());
    assert_eq!(bench.record("k").await.unwrap().standing.name(), StateName::InFlight);

    way.set_all(Weather::Fair);
    sleep(seconds(30)).await;
    let outcome = once(&bench.elsewhere(), "k").run(|_| async { Ok(9_u32) }).await;
    assert!(matches!(outcome, Ok(Outcome::Replayed(1))), "{outcome:?}");
    assert_eq!(bench.runs.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_or_a_failure_that_cannot_be_recorded_is_unknown_too() {
    for (stop, reason) in [
        (Stop::refused("closed"), "the operation ran, but that could not be recorded"),
        (Stop::unknown("line dead"), "line dead"),
    ] {
        let bench = Bench::new();
        let (way, semel) = cut_off(&bench);
        let call = once(&semel, "k").on_unknown(OnUnknown::Fail);
        let outcome = call.run(move |_| async move {
            way.set_all(Weather::Away);
            Err::<u32, _>(stop)
        });
        let outcome = outcome.await;
        let Ok(Outcome::Unknown(unknown)) = outcome else { panic!("{outcome:?}") };
        assert_eq!(unknown.to_string(), reason);
        assert!(unknown.ran() && unknown.value().is_none() && !unknown.runs_again());
    }
}
