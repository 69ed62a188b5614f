//! Final outcomes: values and refusals, and what allows another attempt.

use std::{collections::HashMap, io, num::ParseIntError};

use semel::{
    OnceErrorKind, OperationError, Outcome,
    core::{Answer, Caller, Field, Fingerprint, Key, StateView, StoredResponse},
    once,
};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Harness, seconds};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Invoice {
    number: String,
    rate: f64,
    lines: Vec<(String, u64)>,
}

fn invoice(run: u32) -> Invoice {
    // A rate that an imprecise decimal parser gets wrong in the last bit.
    let rate = 0.123_456_789_012_345_67 / 3.0;
    Invoice { number: format!("R-{run}"), rate, lines: vec![("Zoë's tea".to_owned(), u64::MAX)] }
}

#[tokio::test]
async fn a_value_is_given_to_the_first_call_and_replayed_to_every_other() {
    let harness = Harness::new();
    for call in 1..=3 {
        let runs = harness.runs.clone();
        let outcome = harness.once("k").run(|_| async move { Ok(invoice(runs.one_more())) });
        match outcome.await.unwrap() {
            Outcome::Ran(value) => assert_eq!((call, value), (1, invoice(1))),
            Outcome::Replayed(value) => assert_eq!((call > 1, value), (true, invoice(1))),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(harness.runs.count(), 1);
}

#[tokio::test]
async fn a_value_is_recorded_as_json_that_a_person_can_read() {
    let harness = Harness::new();
    harness.once("k").run(|_| async { Ok("R-7".to_owned()) }).await.unwrap();
    let response = StoredResponse {
        status: 200,
        headers: vec![Field::new("content-type", "application/json")],
        body: "\"R-7\"".into(),
        trailers: vec![],
    };
    let StateView::Completed { answer, .. } = harness.record("k").await.unwrap().state else {
        panic!("not completed")
    };
    assert_eq!(answer, Answer::response(&response));
    assert_eq!(answer, once::answer("R-7"));
}

#[tokio::test]
async fn a_refusal_is_final_and_replayed_with_its_reason() {
    let harness = Harness::new();
    for call in 1..=3 {
        let runs = harness.runs.clone();
        let outcome = harness.once("k").run(|_| async move {
            runs.one_more();
            Err::<(), _>(OperationError::refused(&json!({ "declined": "expired" })))
        });
        let outcome = outcome.await.unwrap();
        assert!(outcome.is_final());
        let Outcome::Refused(refusal) = outcome else { panic!("{outcome:?}") };
        let reason: HashMap<String, String> = refusal.read().unwrap();
        assert_eq!(reason["declined"], "expired");
        assert_eq!(refusal.to_string(), r#"{"declined":"expired"}"#);
        assert_eq!(refusal.is_replayed(), call > 1);
    }
    assert_eq!(harness.runs.count(), 1);
    let record = harness.record("k").await.unwrap();
    let StateView::Completed { answer, .. } = record.state else { panic!("{record:?}") };
    assert_eq!(answer, once::refusal(&json!({ "declined": "expired" })));
}

#[tokio::test]
async fn a_retry_lets_the_next_call_run_and_keeps_the_error_itself() {
    let harness = Harness::new();
    for call in 1..=3 {
        let runs = harness.runs.clone();
        let outcome = harness.once("k").run(move |lease| async move {
            runs.one_more();
            assert_eq!(lease.attempt(), call);
            if call < 3 {
                return Err(OperationError::retry(io::Error::from(
                    io::ErrorKind::ConnectionRefused,
                )));
            }
            Ok(call)
        });
        match outcome.await.unwrap() {
            Outcome::Retry(reason) => {
                let error = reason.downcast_ref::<io::Error>().unwrap();
                assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
                assert!(call < 3);
            }
            Outcome::Ran(value) => assert_eq!((call, value), (3, 3)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(harness.runs.count(), 3);
}

#[tokio::test]
async fn another_meaning_under_the_same_key_is_reused_and_runs_nothing() {
    let harness = Harness::new();
    let call = |meaning: serde_json::Value| {
        let runs = harness.runs.clone();
        harness.once("k").fingerprint(&meaning).run(|_| async move { Ok(runs.one_more()) })
    };
    assert!(matches!(call(json!({ "cents": 100, "to": "x" })).await, Ok(Outcome::Ran(1))));
    assert!(matches!(call(json!({ "cents": 1000, "to": "x" })).await, Ok(Outcome::KeyReused)));
    assert!(matches!(call(json!({ "to": "x", "cents": 100.0 })).await, Ok(Outcome::Replayed(1))));
    // No fingerprint differs from one as well.
    let plain = harness.once("k").run(|_| async { Ok(9_u32) });
    assert!(matches!(plain.await, Ok(Outcome::KeyReused)));
    assert_eq!(harness.runs.count(), 1);
}

#[tokio::test]
async fn the_fingerprint_is_one_that_another_language_can_make() {
    let harness = Harness::new();
    let order = json!({ "to": "Zoë", "cents": 4_900 });
    harness.once("k").fingerprint(&order).run(|_| async { Ok(()) }).await.unwrap();
    let text = r#"{"cents":49e2,"to":"Zoë"}"#;
    let expected = Fingerprint::of_parts("semel.once", &[text.as_bytes()]);
    assert_eq!(harness.record("k").await.unwrap().fingerprint, Some(expected));
}

#[tokio::test]
async fn a_recorded_fingerprint_can_be_computed_from_the_order() {
    let harness = Harness::new();
    let order = json!({ "to": "Zoë", "cents": 4_900 });
    harness.once("k").fingerprint(&order).run(|_| async { Ok(()) }).await.unwrap();
    let seen = harness.record("k").await.unwrap().fingerprint.unwrap();
    assert_eq!(once::fingerprint(&order).unwrap(), seen);
    assert_ne!(once::fingerprint(&json!({ "to": "Zoë", "cents": 5_900 })).unwrap(), seen);
    let no_key = HashMap::from([(vec![1], 1)]);
    let error = once::fingerprint(&no_key).unwrap_err();
    assert_eq!(error.kind(), OnceErrorKind::Fingerprint);
}

#[tokio::test]
async fn scopes_and_callers_keep_their_keys_apart() {
    let harness = Harness::new();
    let key = || Key::new("k").unwrap();
    let zoe = || Caller::new("zoe").unwrap();
    for (scope, caller) in [("a", zoe()), ("b", zoe()), ("a", Caller::anonymous())] {
        let runs = harness.runs.clone();
        let call = harness.semel.once(scope, caller, key());
        let outcome = call.run(|_| async move { Ok(runs.one_more()) }).await;
        assert!(matches!(outcome, Ok(Outcome::Ran(_))), "{outcome:?}");
    }
    assert_eq!(harness.runs.count(), 3);
}

#[tokio::test(start_paused = true)]
async fn after_its_retention_a_key_is_free() {
    let harness = Harness::new();
    let call = || {
        let runs = harness.runs.clone();
        harness.once("k").retention(seconds(60)).run(|_| async move { Ok(runs.one_more()) })
    };
    assert_eq!(call().await.unwrap().into_value(), Some(1));
    tokio::time::sleep(seconds(50)).await;
    assert_eq!(call().await.unwrap().into_value(), Some(1));
    tokio::time::sleep(seconds(20)).await;
    assert_eq!(call().await.unwrap().into_value(), Some(2));
}

/// Closures need no type annotation, and the call's future can be spawned.
#[tokio::test]
async fn an_operation_needs_no_annotations() {
    async fn parse(text: &str) -> Result<u32, ParseIntError> {
        text.parse()
    }
    let harness = Harness::new();
    let call = harness.once("k").run(|lease| async move {
        let attempt = lease.attempt();
        let number = parse("3").await?;
        if number > 100 {
            return Err(OperationError::refused("too large"));
        }
        Ok(number + attempt)
    });
    let outcome = tokio::spawn(call).await.unwrap().unwrap();
    assert_eq!(outcome.value(), Some(&4));
    assert!(outcome.is_final());
}
