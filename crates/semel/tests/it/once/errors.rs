//! Errors of `once`: names, values and types that do not fit.

use std::{collections::BTreeMap, error::Error, sync::Arc};

use semel::{
    MemoryStore, OnceErrorKind, OperationError, Outcome, Semel,
    core::{Answer, Caller, Policy, StateView},
    keys,
};
use serde::{Deserialize, Serialize, Serializer, ser::Error as _};

use super::{Harness, once};

/// A value that fails to serialise.
#[derive(Debug, PartialEq, Deserialize)]
struct Secret(String);

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        Err(S::Error::custom("a secret is not written down"))
    }
}

#[tokio::test]
async fn a_scope_without_a_valid_name_runs_nothing() {
    let harness = Harness::new();
    let runs = harness.runs.clone();
    let call = harness.semel.once("No Scope!", Caller::anonymous(), keys::random());
    let error = call.run(|_| async move { Ok(runs.one_more()) }).await.unwrap_err();
    assert_eq!(error.kind(), OnceErrorKind::Scope);
    assert!(error.source().unwrap().to_string().starts_with("`No Scope!` cannot name a scope"));
    assert_eq!(harness.runs.count(), 0);
}

#[tokio::test]
async fn a_meaning_that_cannot_be_written_or_is_ambiguous_runs_nothing() {
    #[derive(Serialize)]
    struct Twice {
        #[serde(rename = "cents")]
        first: u32,
        #[serde(rename = "cents")]
        second: u32,
    }
    let harness = Harness::new();
    let odd = BTreeMap::from([(vec![1], 1)]);
    let twice = Twice { first: 1, second: 2 };
    for call in [
        harness.once("k").fingerprint(&odd),
        harness.once("k").fingerprint(&Secret("x".to_owned())),
        harness.once("k").fingerprint(&twice),
    ] {
        let runs = harness.runs.clone();
        let error = call.run(|_| async move { Ok(runs.one_more()) }).await.unwrap_err();
        assert_eq!(error.kind(), OnceErrorKind::Fingerprint);
    }
    assert_eq!(harness.runs.count(), 0);
}

#[tokio::test]
async fn a_value_that_cannot_be_written_goes_to_its_caller_and_never_runs_again() {
    let harness = Harness::new();
    let call = || {
        let runs = harness.runs.clone();
        harness.once("k").run(move |_| async move {
            runs.one_more();
            Ok(Secret("hush".to_owned()))
        })
    };
    assert_eq!(call().await.unwrap().into_value(), Some(Secret("hush".to_owned())));
    assert_eq!(call().await.unwrap_err().kind(), OnceErrorKind::NotRetained);
    assert_eq!(harness.runs.count(), 1);
    let StateView::Completed { answer, .. } = harness.record("k").await.unwrap().state else {
        panic!("not completed")
    };
    assert_eq!(answer, Answer::not_retained(200));
}

#[tokio::test]
async fn a_value_over_the_limit_goes_to_its_caller_and_never_runs_again() {
    let harness = Harness::new();
    let policy = Arc::new(Policy { response_bytes_max: 10, ..Policy::default() });
    let call = |key: &str, length: usize| {
        let call = harness.once(key).policy(Arc::clone(&policy));
        call.run(move |_| async move { Ok("x".repeat(length)) })
    };
    // With its two quotes it has exactly ten bytes.
    for outcome in [call("fits", 8).await, call("fits", 8).await] {
        assert_eq!(outcome.unwrap().into_value().unwrap().len(), 8);
    }
    assert_eq!(call("large", 9).await.unwrap().into_value().unwrap().len(), 9);
    assert_eq!(call("large", 9).await.unwrap_err().kind(), OnceErrorKind::NotRetained);
}

#[tokio::test]
async fn a_refusal_whose_reason_cannot_be_written_is_a_refusal_all_the_same() {
    let harness = Harness::new();
    for replayed in [false, true] {
        let runs = harness.runs.clone();
        let call = harness.once("k").run(|_| async move {
            runs.one_more();
            Err::<u32, _>(OperationError::refused(&Secret("hush".to_owned())))
        });
        let Ok(Outcome::Refused(refusal)) = call.await else { panic!("not refused") };
        assert_eq!(refusal.is_replayed(), replayed);
        let error = refusal.read::<Secret>().unwrap_err();
        assert_eq!(error.kind(), OnceErrorKind::NotRetained);
    }
    assert_eq!(harness.runs.count(), 1);
}

#[tokio::test]
async fn a_value_of_another_type_is_unreadable_and_says_why() {
    let harness = Harness::new();
    let text = harness.once("k").run(|_| async { Ok("R-7".to_owned()) }).await;
    assert!(matches!(text, Ok(Outcome::Ran(_))));
    let runs = harness.runs.clone();
    let error = harness.once("k").run(|_| async move { Ok(runs.one_more()) }).await.unwrap_err();
    assert_eq!(error.kind(), OnceErrorKind::Unreadable);
    assert!(error.to_string().ends_with("has the type changed?"), "{error}");
    assert!(error.source().unwrap().to_string().contains("expected u32"));
    assert_eq!(harness.runs.count(), 0);
}

/// As documented: JSON cannot represent it, so it cannot be read as a float.
#[tokio::test]
async fn a_value_that_is_not_a_number_is_unreadable_and_never_runs_again() {
    let harness = Harness::new();
    let call = || {
        let runs = harness.runs.clone();
        harness.once("k").run(move |_| async move {
            runs.one_more();
            Ok(f64::NAN)
        })
    };
    assert!(call().await.unwrap().into_value().unwrap().is_nan());
    assert_eq!(call().await.unwrap_err().kind(), OnceErrorKind::Unreadable);
    assert_eq!(harness.runs.count(), 1);
}

#[tokio::test]
async fn over_the_limit_nothing_runs_and_later_it_may() {
    let semel = Semel::builder(MemoryStore::new()).in_flight_max(1).build();
    let (inner, called) = (semel.clone(), once(&semel, "outer"));
    let outcome = called.run(move |_| async move {
        let refused = once(&inner, "inner").run(|_| async { Ok(1_u32) }).await.unwrap_err();
        assert_eq!(refused.kind(), OnceErrorKind::TooManyInFlight);
        assert!(refused.retry_later());
        Ok(0_u32)
    });
    assert!(matches!(outcome.await, Ok(Outcome::Ran(0))));
    assert_eq!(semel.drain(super::seconds(1)).await, 0);
    assert!(matches!(
        once(&semel, "inner").run(|_| async { Ok(1_u32) }).await,
        Ok(Outcome::Ran(1))
    ));
}
