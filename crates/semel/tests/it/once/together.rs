//! Concurrent calls with one key: joining, waiting, taking over.

use std::sync::Arc;

use semel::{
    OnceError, OnceErrorKind, OperationError, Outcome, Semel,
    core::{OnUnknown, StateName, StateView},
    once::RunReport,
};
use semel_testkit::flaky_store::{FlakyStore, StoreCondition};
use tokio::{
    sync::Notify,
    task::JoinHandle,
    time::{sleep, timeout},
};

use super::{Harness, once, seconds};

type OnceResult = Result<Outcome<u32>, OnceError>;

/// Fifty concurrent calls, of which the one that runs takes a second and ends with `end`.
async fn crowd(
    harness: &Harness,
    rule: OnUnknown,
    end: fn(u32) -> Result<u32, OperationError>,
) -> Vec<OnceResult> {
    let calls: Vec<JoinHandle<OnceResult>> = (0..50)
        .map(|_| {
            let runs = harness.runs.clone();
            tokio::spawn(harness.once("k").on_unknown(rule).run(move |_| async move {
                let run = runs.one_more();
                sleep(seconds(1)).await;
                end(run)
            }))
        })
        .collect();
    let mut outcome = Vec::new();
    for call in calls {
        outcome.push(call.await.unwrap());
    }
    assert_eq!(harness.runs.count(), 1);
    outcome
}

#[tokio::test(start_paused = true)]
async fn of_fifty_calls_one_runs_and_all_get_its_value() {
    let outcome = crowd(&Harness::new(), OnUnknown::Hold, Ok).await;
    let ran = outcome.iter().filter(|outcome| matches!(outcome, Ok(Outcome::Ran(1)))).count();
    let replayed =
        outcome.iter().filter(|outcome| matches!(outcome, Ok(Outcome::Replayed(1)))).count();
    assert_eq!((ran, replayed), (1, 49));
}

#[tokio::test(start_paused = true)]
async fn of_fifty_calls_one_is_refused_and_all_get_its_reason() {
    let outcome =
        crowd(&Harness::new(), OnUnknown::Hold, |_| Err(OperationError::refused("closed"))).await;
    let mut replayed = 0;
    for outcome in outcome {
        let Ok(Outcome::Refused(refusal)) = outcome else { panic!("{outcome:?}") };
        assert_eq!(refusal.read::<String>().unwrap(), "closed");
        replayed += u32::from(refusal.is_replayed());
    }
    assert_eq!(replayed, 49);
}

#[tokio::test(start_paused = true)]
async fn of_fifty_calls_one_returns_retry_and_all_get_it() {
    let harness = Harness::new();
    let outcome =
        crowd(&harness, OnUnknown::Hold, |_| Err(OperationError::retry("bank closed"))).await;
    for outcome in outcome {
        let Ok(Outcome::Retry(reason)) = outcome else { panic!("{outcome:?}") };
        assert_eq!(reason.to_string(), "bank closed");
    }
    assert_eq!(harness.record("k").await.unwrap().state.name(), StateName::Released);
}

#[tokio::test(start_paused = true)]
async fn of_fifty_calls_one_ends_unknown_and_all_get_it() {
    let harness = Harness::new();
    let outcome =
        crowd(&harness, OnUnknown::Hold, |_| Err(OperationError::unknown("line dead"))).await;
    let mut ran = 0;
    for outcome in outcome {
        let Ok(Outcome::Unknown(unknown)) = outcome else { panic!("{outcome:?}") };
        assert_eq!(unknown.to_string(), "line dead");
        ran += u32::from(unknown.ran());
    }
    assert_eq!(ran, 1);
    assert_eq!(harness.record("k").await.unwrap().state, StateView::Held);
}

#[tokio::test(start_paused = true)]
async fn of_fifty_calls_one_panics_and_all_get_unknown() {
    for rule in [OnUnknown::Hold, OnUnknown::Fail] {
        let mut failed = 0;
        for outcome in crowd(&Harness::new(), rule, |_| panic!("on purpose")).await {
            match outcome {
                Ok(Outcome::Unknown(unknown)) => {
                    assert_eq!(unknown.to_string(), "the operation panicked");
                }
                Err(error) if error.kind() == OnceErrorKind::Failed => failed += 1,
                other => panic!("{other:?}"),
            }
        }
        // Every waiter gets the recorded failure.
        assert_eq!(failed, if rule == OnUnknown::Fail { 50 } else { 0 });
    }
}

#[tokio::test(start_paused = true)]
async fn the_policy_of_a_joined_call_does_not_apply_to_the_owner() {
    const RULES: [OnUnknown; 3] = [OnUnknown::Hold, OnUnknown::Rerun, OnUnknown::Fail];
    for (owner, joiner) in RULES.iter().flat_map(|owner| RULES.map(|joiner| (*owner, joiner))) {
        for panics in [false, true] {
            let harness = Harness::new();
            let call = |rule| {
                tokio::spawn(harness.once("k").on_unknown(rule).run(move |_| async move {
                    sleep(seconds(1)).await;
                    assert!(!panics, "on purpose");
                    Err::<u32, _>(OperationError::unknown("line dead"))
                }))
            };
            let (first, second) = (call(owner), call(joiner));
            let (_, outcome) = (first.await.unwrap(), second.await.unwrap());
            match outcome {
                Ok(Outcome::Unknown(unknown)) => {
                    assert_eq!((unknown.ran(), unknown.runs_again()), (false, None));
                    assert_ne!(owner, OnUnknown::Fail);
                }
                // Then the failure is what the owner has recorded.
                Err(error) => {
                    assert_eq!((error.kind(), owner), (OnceErrorKind::Failed, OnUnknown::Fail));
                }
                other => panic!("{other:?}"),
            }
            let state = harness.record("k").await.unwrap().state.name();
            assert_eq!(state == StateName::Completed, owner == OnUnknown::Fail);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn of_fifty_calls_one_fails_for_good_and_all_get_the_failure() {
    let outcome =
        crowd(&Harness::new(), OnUnknown::Fail, |_| Err(OperationError::unknown("line dead")))
            .await;
    for outcome in outcome {
        assert_eq!(outcome.unwrap_err().kind(), OnceErrorKind::Failed);
    }
}

#[tokio::test(start_paused = true)]
async fn another_meaning_is_reused_at_once_while_the_first_runs() {
    let harness = Harness::new();
    let first = harness.once("k").fingerprint(&1).run(|_| async {
        sleep(seconds(5)).await;
        Ok(1_u32)
    });
    let first = tokio::spawn(first);
    sleep(seconds(1)).await;
    let second = harness.once("k").fingerprint(&2).run(|_| async { Ok(2_u32) });
    let second = timeout(seconds(1), second).await.expect("answered at once");
    assert!(matches!(second, Ok(Outcome::KeyReused)), "{second:?}");
    assert!(matches!(first.await.unwrap(), Ok(Outcome::Ran(1))));
}

#[tokio::test(start_paused = true)]
async fn a_call_elsewhere_waits_for_the_value_or_gives_up() {
    let harness = Harness::new();
    let runs = harness.runs.clone();
    let first = tokio::spawn(harness.once("k").run(move |_| async move {
        let run = runs.one_more();
        sleep(seconds(5)).await;
        Ok(run)
    }));
    sleep(seconds(1)).await;
    let elsewhere = harness.elsewhere();
    let call = |wait| {
        let runs = harness.runs.clone();
        once(&elsewhere, "k").wait(seconds(wait)).run(move |_| async move { Ok(runs.one_more()) })
    };
    assert!(matches!(call(0).await, Ok(Outcome::InProgress)));
    assert!(matches!(call(2).await, Ok(Outcome::InProgress)));
    assert!(matches!(call(10).await, Ok(Outcome::Replayed(1))));
    assert!(matches!(first.await.unwrap(), Ok(Outcome::Ran(1))));
    assert_eq!(harness.runs.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn dropping_the_call_changes_nothing_about_the_execution() {
    let harness = Harness::new();
    let call = || {
        let runs = harness.runs.clone();
        harness.once("k").run(move |_| async move {
            let run = runs.one_more();
            sleep(seconds(5)).await;
            Ok(run)
        })
    };
    assert!(timeout(seconds(1), call()).await.is_err());
    assert!(matches!(call().await, Ok(Outcome::Replayed(1))));
    assert_eq!(harness.runs.count(), 1);
}

/// A run whose process is cut off from the store for longer than its lease, until `wake`.
fn zombie(
    harness: &Harness,
    way: &FlakyStore,
    wake: &Arc<Notify>,
    end: fn(u32) -> Result<u32, OperationError>,
) -> JoinHandle<OnceResult> {
    let (runs, wake) = (harness.runs.clone(), Arc::clone(wake));
    let cut_off = Semel::new(way.clone());
    tokio::spawn(once(&cut_off, "k").on_unknown(OnUnknown::Rerun).lease(seconds(9)).run(
        move |_| async move {
            let run = runs.one_more();
            wake.notified().await;
            end(run)
        },
    ))
}

/// The outcome of a zombie that ends with `end` after another run returned 2.
async fn outrun(harness: &Harness, end: fn(u32) -> Result<u32, OperationError>) -> OnceResult {
    let (way, wake) = (FlakyStore::new(harness.store.clone()), Arc::new(Notify::new()));
    let zombie = zombie(harness, &way, &wake, end);
    sleep(seconds(1)).await;
    way.set_all(StoreCondition::Unavailable);
    sleep(seconds(20)).await;

    let (runs, elsewhere) = (harness.runs.clone(), harness.elsewhere());
    let second = once(&elsewhere, "k").on_unknown(OnUnknown::Rerun);
    let second = second.run(|_| async move { Ok(runs.one_more()) }).await;
    assert!(matches!(second, Ok(Outcome::Ran(2))), "{second:?}");

    way.set_all(StoreCondition::Available);
    wake.notify_one();
    zombie.await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_zombie_gets_what_the_record_says_by_then() {
    let harness = Harness::new();
    let outcome = outrun(&harness, Ok).await;
    let Ok(Outcome::Overtaken(lost)) = outcome else { panic!("{outcome:?}") };
    assert_eq!(lost.mine().value(), Some(&1));
    assert!(matches!(lost.now(), Ok(Outcome::Replayed(2))), "{lost:?}");
    let third = once(&harness.elsewhere(), "k").run(|_| async { Ok(3_u32) }).await;
    assert!(matches!(third, Ok(Outcome::Replayed(2))), "{third:?}");
    assert_eq!(harness.runs.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_report_of_a_zombie_is_kept_for_compensation() {
    let outcome = outrun(&Harness::new(), |_| Err(OperationError::retry("bank closed"))).await;
    // Its own run did nothing, whichever owner the record has by now.
    assert!(matches!(outcome, Ok(Outcome::Retry(_))), "{outcome:?}");

    let outcome = outrun(&Harness::new(), |_| Err(OperationError::refused("declined"))).await;
    let Ok(Outcome::Overtaken(lost)) = outcome else { panic!("{outcome:?}") };
    let RunReport::Refused(refusal) = lost.mine() else { panic!("{lost:?}") };
    assert_eq!(refusal.read::<String>().unwrap(), "declined");

    let outcome = outrun(&Harness::new(), |_| Err(OperationError::unknown("line dead"))).await;
    let Ok(Outcome::Overtaken(lost)) = outcome else { panic!("{outcome:?}") };
    assert!(matches!(lost.mine(), RunReport::Unknown(reason) if reason.to_string() == "line dead"));

    let outcome = outrun(&Harness::new(), |_| panic!("on purpose")).await;
    let Ok(Outcome::Overtaken(lost)) = outcome else { panic!("{outcome:?}") };
    assert!(matches!(lost.mine(), RunReport::Unknown(_)), "{lost:?}");
}

#[tokio::test(start_paused = true)]
async fn a_zombie_gets_in_progress_or_unknown() {
    for (end, nothing_known) in [(None, false), (Some(OperationError::retry("bank closed")), true)]
    {
        let harness = Harness::new();
        let (way, wake) = (FlakyStore::new(harness.store.clone()), Arc::new(Notify::new()));
        let zombie = zombie(&harness, &way, &wake, Ok);
        sleep(seconds(1)).await;
        way.set_all(StoreCondition::Unavailable);
        sleep(seconds(20)).await;

        let elsewhere = harness.elsewhere();
        let second = once(&elsewhere, "k").on_unknown(OnUnknown::Rerun);
        let second = tokio::spawn(second.run(|_| async move {
            if let Some(stop) = end {
                return Err::<u32, _>(stop);
            }
            std::future::pending().await
        }));
        sleep(seconds(1)).await;

        // Its next renewal shows that it is one.
        way.set_all(StoreCondition::Available);
        sleep(seconds(5)).await;
        wake.notify_one();
        let outcome = zombie.await.unwrap();
        let Ok(Outcome::Overtaken(lost)) = outcome else { panic!("{outcome:?}") };
        assert_eq!(lost.mine().value(), Some(&1));
        match lost.now() {
            Ok(Outcome::InProgress) => assert!(!nothing_known),
            Ok(Outcome::Unknown(unknown)) => {
                assert!(nothing_known && !unknown.ran());
                assert_eq!(unknown.runs_again(), None);
            }
            other => panic!("{other:?}"),
        }
        second.abort();
    }
}
