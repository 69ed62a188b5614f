//! Unknown outcomes: untyped errors, panics, and how they are settled.

use std::{error::Error, io};

use semel::{
    OnceError, OnceErrorKind, OperationError, Outcome,
    core::{OnUnknown, Resolution, Resolved, StateName, StateView, Store},
    once,
};

use super::{Harness, id};

/// The ways in which the effect of an operation can stay unknown.
const WAYS: [&str; 4] = ["question mark", "said so", "panic", "panic before the first await"];

fn broken() -> Result<(), io::Error> {
    Err(io::ErrorKind::ConnectionReset.into())
}

async fn call(
    harness: &Harness,
    way: &'static str,
    rule: OnUnknown,
) -> Result<Outcome<u32>, OnceError> {
    let runs = harness.runs.clone();
    harness
        .once(&way.replace(' ', "-"))
        .on_unknown(rule)
        .run(move |_| {
            let run = runs.one_more();
            assert_ne!(way, "panic before the first await");
            async move {
                match way {
                    "question mark" => broken()?,
                    "said so" => return Err(OperationError::unknown("the line went dead")),
                    _ => panic!("on purpose"),
                }
                Ok(run)
            }
        })
        .await
}

#[tokio::test]
async fn an_unknown_outcome_is_held_and_nothing_runs_again() {
    for way in WAYS {
        let harness = Harness::new();
        for first in [true, false, false] {
            let outcome = call(&harness, way, OnUnknown::Hold).await.unwrap();
            assert!(!outcome.is_final() && outcome.value().is_none());
            let Outcome::Unknown(unknown) = outcome else { panic!("{way}: {outcome:?}") };
            assert_eq!(unknown.ran(), first, "{way}");
            assert_eq!(unknown.runs_again(), Some(false));
            assert!(unknown.report().is_none());
        }
        assert_eq!(harness.runs.count(), 1, "{way}");
        let record = harness.record(&way.replace(' ', "-")).await.unwrap();
        assert_eq!(record.state.name(), StateName::Held, "{way}");
    }
}

#[tokio::test]
async fn the_call_that_ran_gets_the_error_itself() {
    let harness = Harness::new();
    let said = |outcome| match outcome {
        Ok(Outcome::Unknown(unknown)) => unknown,
        other => panic!("{other:?}"),
    };
    let unknown = said(call(&harness, "question mark", OnUnknown::Hold).await);
    let error = unknown.reason().downcast_ref::<io::Error>().unwrap();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    let unknown = said(call(&harness, "said so", OnUnknown::Hold).await);
    assert_eq!(unknown.to_string(), "the line went dead");
    let unknown = said(call(&harness, "panic", OnUnknown::Hold).await);
    assert_eq!(unknown.to_string(), "the operation panicked");
}

#[tokio::test]
async fn an_unknown_outcome_under_rerun_runs_again_with_a_higher_fence() {
    for way in WAYS {
        let harness = Harness::new();
        let Ok(Outcome::Unknown(unknown)) = call(&harness, way, OnUnknown::Rerun).await else {
            panic!("{way}")
        };
        assert_eq!((unknown.ran(), unknown.runs_again()), (true, Some(true)));
        let key = way.replace(' ', "-");
        let before = harness.record(&key).await.unwrap().fence;
        let outcome = harness
            .once(&key)
            .on_unknown(OnUnknown::Rerun)
            .run(move |lease| async move { Ok((lease.attempt(), lease.fence() > Some(before))) })
            .await;
        assert_eq!(outcome.unwrap().into_value(), Some((2, true)), "{way}");
    }
}

#[tokio::test]
async fn an_unknown_outcome_under_fail_is_final_for_every_caller() {
    for way in WAYS {
        let harness = Harness::new();
        for first in [true, false] {
            let error = call(&harness, way, OnUnknown::Fail).await.unwrap_err();
            assert_eq!(error.kind(), OnceErrorKind::Failed, "{way}");
            assert!(!error.retry_later());
            assert_eq!(error.source().is_some(), first, "{way}");
        }
        assert_eq!(harness.runs.count(), 1, "{way}");
    }
}

#[tokio::test]
async fn an_operator_who_says_that_it_happened_gives_the_value_that_is_replayed() {
    let harness = Harness::new();
    call(&harness, "panic", OnUnknown::Hold).await.unwrap();
    let seen = harness.record("panic").await.unwrap();
    assert_eq!(seen.state, StateView::Held);
    let happened = Resolution::Completed(once::answer(&42));
    let resolved = harness.store.resolve(&id("panic"), seen.fence, &happened).await.unwrap();
    assert_eq!(resolved, Resolved::Applied);
    let outcome = call(&harness, "panic", OnUnknown::Hold).await;
    assert!(matches!(outcome, Ok(Outcome::Replayed(42))), "{outcome:?}");
    assert_eq!(harness.runs.count(), 1);
}

#[tokio::test]
async fn an_operator_may_say_that_it_was_refused() {
    let harness = Harness::new();
    call(&harness, "panic", OnUnknown::Hold).await.unwrap();
    let seen = harness.record("panic").await.unwrap();
    let refused = Resolution::Completed(once::refusal("declined"));
    harness.store.resolve(&id("panic"), seen.fence, &refused).await.unwrap();
    let outcome = call(&harness, "panic", OnUnknown::Hold).await.unwrap();
    let Outcome::Refused(refusal) = outcome else { panic!("{outcome:?}") };
    assert_eq!(refusal.read::<String>().unwrap(), "declined");
    assert!(refusal.is_replayed());
}

#[tokio::test]
async fn an_operator_who_says_that_it_did_not_happen_lets_it_run() {
    let harness = Harness::new();
    call(&harness, "panic", OnUnknown::Hold).await.unwrap();
    let seen = harness.record("panic").await.unwrap();
    harness.store.resolve(&id("panic"), seen.fence, &Resolution::Released).await.unwrap();
    let outcome = harness.once("panic").run(|lease| async move { Ok(lease.attempt()) }).await;
    assert!(matches!(outcome, Ok(Outcome::Ran(2))), "{outcome:?}");
}
