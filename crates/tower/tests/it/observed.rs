//! The events that the layer itself emits.

use std::sync::{Arc, Mutex};

use http::Request;
use semel::{
    Event, Observer, Semel,
    core::{OnUnknown, Policy, canonical::Pointer},
};
use semel_tower::KeyRule;
use tower_service::Service;

use crate::harness::{Harness, ORDER, TestResponse, charge, send};

/// Every event: its scope, whether it has a record, and its kind.
#[derive(Clone, Debug, Default)]
struct Events(Arc<Mutex<Vec<String>>>);

impl Observer for Events {
    fn on_event(&self, event: &Event<'_>) {
        let scope = event.scope.map_or("", |scope| scope.as_str());
        let line = format!("{scope} {} {:?}", event.id.is_some(), event.kind);
        self.0.lock().unwrap().push(line);
    }
}

impl Events {
    fn harness(&self) -> Harness {
        let mut harness = Harness::new();
        harness.semel = Semel::builder(harness.store.clone()).observer(self.clone()).build();
        harness
    }

    fn count(&self, line: &str) -> usize {
        self.0.lock().unwrap().iter().filter(|event| event.starts_with(line)).count()
    }
}

#[tokio::test]
async fn a_request_without_an_optional_key_is_reported() {
    let in_body = KeyRule::json(Pointer::parse("/id").unwrap());
    let rules = [KeyRule::default(), KeyRule::default().or(in_body)];
    for rule in rules.into_iter().flat_map(|rule| [rule.clone().warn(), rule.optional()]) {
        let events = Events::default();
        let harness = events.harness();
        let app = harness.app_with(harness.layer().key(rule), async |_| "ok");
        let without = Request::post("/charges").body("{}".into()).unwrap();
        assert_eq!(send(&app, without).await.text(), "ok");
        assert_eq!(events.count("payments false Keyless"), 1);
        assert_eq!(send(&app, charge("k", ORDER)).await.text(), "ok");
        assert_eq!(events.count("payments false Keyless"), 1);
        assert_eq!(harness.runs(), 2);
    }
}

#[tokio::test]
async fn an_error_of_the_service_is_reported_with_its_record() {
    let events = Events::default();
    let harness = events.harness();
    let mut service = harness.service(|_| Err(std::fmt::Error));
    let answer = TestResponse::read(service.call(charge("k", ORDER)).await.unwrap()).await;
    answer.assert_problem(504, "upstream-timeout");
    assert_eq!(events.count("payments true Failed(Error)"), 1);
    assert_eq!(events.count("payments true Held"), 1);
    assert_eq!(events.count("payments true Refused(UpstreamTimeout)"), 1);
    assert_eq!(events.count("payments true Answered"), 0);
}

#[tokio::test]
async fn a_repeat_of_a_response_not_retained_is_reported_as_the_problem_that_its_client_gets() {
    let events = Events::default();
    let harness = events.harness().policy(Policy { response_bytes_max: 3, ..Policy::default() });
    let app = harness.app(async |_| "four");
    assert_eq!(send(&app, charge("k", ORDER)).await.text(), "four");
    send(&app, charge("k", ORDER)).await.assert_problem(410, "response-not-retained");
    assert_eq!(events.count("payments true Refused(ResponseNotRetained)"), 1);
    assert_eq!(events.count("payments true Replayed"), 0);
    assert_eq!(events.count("payments true Answered(Own)"), 1);
}

#[tokio::test]
async fn a_replayed_failure_is_reported_as_the_problem_that_its_client_gets() {
    let events = Events::default();
    let policy = Policy { on_unknown: OnUnknown::Fail, ..Policy::default() };
    let harness = events.harness().policy(policy);
    let mut service = harness.service(|_| Err(std::fmt::Error));
    service.call(charge("k", ORDER)).await.unwrap();
    let before = events.count("payments true Refused(OperationFailed)");
    let answer = TestResponse::read(service.call(charge("k", ORDER)).await.unwrap()).await;
    answer.assert_problem(500, "operation-failed");
    assert_eq!(events.count("payments true Refused(OperationFailed)"), before + 1);
    assert_eq!(events.count("payments true Replayed"), 0);
}
