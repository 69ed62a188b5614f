//! `once` on a store that becomes unavailable and recovers.

use semel::{
    OnceErrorKind, OperationError, Outcome, Semel,
    core::{OnStoreDown, OnUnknown, StateName},
    once::RunReport,
};
use semel_testkit::flaky_store::{FlakyStore, StoreCondition};
use tokio::time::sleep;

use super::{Harness, once, seconds};

/// An engine whose connection to the store can be cut.
fn cut_off(harness: &Harness) -> (FlakyStore, Semel) {
    let way = FlakyStore::new(harness.store.clone());
    let semel = Semel::new(way.clone());
    (way, semel)
}

#[tokio::test(start_paused = true)]
async fn while_the_store_is_away_nothing_runs() {
    let harness = Harness::new();
    let (way, semel) = cut_off(&harness);
    let call = || {
        let runs = harness.runs.clone();
        once(&semel, "k").run(move |_| async move { Ok(runs.one_more()) })
    };
    way.set_all(StoreCondition::Unavailable);
    let error = call().await.unwrap_err();
    assert_eq!(error.kind(), OnceErrorKind::StoreUnavailable);
    assert!(error.retry_later());
    assert_eq!(harness.runs.count(), 0);
    way.set_all(StoreCondition::Available);
    sleep(seconds(1)).await;
    assert!(matches!(call().await, Ok(Outcome::Ran(1))));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_may_pass_runs_unguarded_and_nothing_of_it_is_final() {
    let harness = Harness::new();
    let (way, semel) = cut_off(&harness);
    way.set_all(StoreCondition::Unavailable);
    for run in 1..=2 {
        let runs = harness.runs.clone();
        let call = once(&semel, "k").on_store_down(OnStoreDown::Pass);
        let outcome = call.run(move |lease| async move {
            assert!(lease.fence().is_none());
            Ok(runs.one_more())
        });
        let outcome = outcome.await.unwrap();
        assert!(!outcome.is_final() && outcome.value().is_none());
        let Outcome::Unguarded(said) = outcome else { panic!("{outcome:?}") };
        assert_eq!(said.value(), Some(&run));
    }
    assert!(harness.record("k").await.is_none());
}

/// Each way an operation can end, and its name.
const WAYS: [&str; 5] = ["value", "refused", "retry", "unknown", "panic"];

fn end(way: &'static str) -> Result<u32, OperationError> {
    match way {
        "value" => Ok(1),
        "refused" => Err(OperationError::refused("closed")),
        "retry" => Err(OperationError::retry("bank closed")),
        "unknown" => Err(OperationError::unknown("line dead")),
        _ => panic!("on purpose"),
    }
}

fn is_said(way: &str, said: &RunReport<u32>) -> bool {
    match said {
        RunReport::Value(1) => way == "value",
        RunReport::Refused(refusal) => {
            way == "refused" && refusal.read::<String>().unwrap() == "closed"
        }
        RunReport::Retry(reason) => way == "retry" && reason.to_string() == "bank closed",
        RunReport::Unknown(reason) if way == "panic" => {
            reason.to_string() == "the operation panicked"
        }
        RunReport::Unknown(reason) => way == "unknown" && reason.to_string() == "line dead",
        RunReport::Value(_) => false,
    }
}

#[tokio::test(start_paused = true)]
async fn an_unguarded_run_reports_its_end_under_every_policy() {
    for rule in [OnUnknown::Hold, OnUnknown::Fail, OnUnknown::Rerun] {
        for way in WAYS {
            let harness = Harness::new();
            let (weather, semel) = cut_off(&harness);
            weather.set_all(StoreCondition::Unavailable);
            let call = once(&semel, "k").on_store_down(OnStoreDown::Pass).on_unknown(rule);
            let outcome = call.run(move |_| async move { end(way) }).await.unwrap();
            assert!(!outcome.is_final());
            let Outcome::Unguarded(said) = outcome else { panic!("{rule:?}: {outcome:?}") };
            assert!(is_said(way, &said), "{way}, {rule:?}: {said:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_joins_an_unguarded_run_learns_that_it_is_unguarded() {
    for way in WAYS {
        let harness = Harness::new();
        let (weather, semel) = cut_off(&harness);
        weather.set_all(StoreCondition::Unavailable);
        let call = || {
            let runs = harness.runs.clone();
            let call = once(&semel, "k").on_store_down(OnStoreDown::Pass).wait(seconds(60));
            tokio::spawn(call.run(move |_| async move {
                runs.one_more();
                sleep(seconds(1)).await;
                end(way)
            }))
        };
        let (first, second) = (call(), call());
        let (first, second) = (first.await.unwrap().unwrap(), second.await.unwrap().unwrap());
        assert_eq!(harness.runs.count(), 1);
        assert!(!first.is_final() && !second.is_final());
        match second {
            Outcome::Unguarded(said) => assert!(is_said(way, &said), "{way}: {said:?}"),
            // After a panic the engine has no answer to pass on, and so no mark on it.
            Outcome::Unknown(unknown) => {
                assert_eq!((way, unknown.runs_again()), ("panic", None));
            }
            other => panic!("{way}: {other:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_unrecorded_outcome_is_unknown_until_the_store_recovers() {
    let harness = Harness::new();
    let (way, semel) = cut_off(&harness);
    let (runs, cut) = (harness.runs.clone(), way.clone());
    let outcome = once(&semel, "k").run(move |_| async move {
        cut.set_all(StoreCondition::Unavailable);
        Ok(runs.one_more())
    });
    let outcome = outcome.await;
    let Ok(Outcome::Unknown(unknown)) = outcome else { panic!("{outcome:?}") };
    assert_eq!(unknown.report().and_then(RunReport::value), Some(&1));
    assert_eq!((unknown.ran(), unknown.runs_again()), (true, Some(false)));
    assert_eq!(harness.record("k").await.unwrap().state.name(), StateName::InFlight);

    way.set_all(StoreCondition::Available);
    sleep(seconds(30)).await;
    let outcome = once(&harness.elsewhere(), "k").run(|_| async { Ok(9_u32) }).await;
    assert!(matches!(outcome, Ok(Outcome::Replayed(1))), "{outcome:?}");
    assert_eq!(harness.runs.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_that_cannot_be_recorded_is_unknown_and_keeps_its_reason() {
    let harness = Harness::new();
    let (way, semel) = cut_off(&harness);
    let outcome = once(&semel, "k").run(move |_| async move {
        way.set_all(StoreCondition::Unavailable);
        Err::<u32, _>(OperationError::refused("closed"))
    });
    let outcome = outcome.await;
    let Ok(Outcome::Unknown(unknown)) = outcome else { panic!("{outcome:?}") };
    assert_eq!(unknown.to_string(), "the operation ran, but that could not be recorded");
    let Some(RunReport::Refused(refusal)) = unknown.report() else { panic!("{unknown:?}") };
    assert_eq!(refusal.read::<String>().unwrap(), "closed");
    assert_eq!((unknown.ran(), unknown.runs_again()), (true, Some(false)));
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_cannot_be_recorded_is_unknown_too() {
    let harness = Harness::new();
    let (way, semel) = cut_off(&harness);
    let outcome = once(&semel, "k").on_unknown(OnUnknown::Fail).run(move |_| async move {
        way.set_all(StoreCondition::Unavailable);
        Err::<u32, _>(OperationError::unknown("line dead"))
    });
    let outcome = outcome.await;
    let Ok(Outcome::Unknown(unknown)) = outcome else { panic!("{outcome:?}") };
    assert_eq!(unknown.to_string(), "line dead");
    assert!(unknown.ran() && unknown.report().is_none());
    assert_eq!(unknown.runs_again(), Some(false));
}
