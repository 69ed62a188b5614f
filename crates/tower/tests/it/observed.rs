//! What an observer hears from the layer itself.

use std::sync::{Arc, Mutex};

use http::Request;
use semel::{Event, Observer, Semel, core::canonical::Pointer};
use semel_tower::KeyRule;
use tower_service::Service;

use crate::bench::{Answer, Bench, ORDER, charge, send};

/// Every event: its scope, whether it has a record, and what happened.
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
    fn bench(&self) -> Bench {
        let mut bench = Bench::new();
        bench.semel = Semel::builder(bench.store.clone()).observer(self.clone()).build();
        bench
    }

    fn count(&self, line: &str) -> usize {
        self.0.lock().unwrap().iter().filter(|event| event.starts_with(line)).count()
    }
}

#[tokio::test]
async fn a_request_without_the_key_that_it_should_have_is_told() {
    let in_body = KeyRule::json(Pointer::parse("/id").unwrap());
    for rule in [KeyRule::default(), KeyRule::default().or(in_body)] {
        let events = Events::default();
        let bench = events.bench();
        let app = bench.app_with(bench.layer().key(rule.warn()), async |_| "ok");
        let without = Request::post("/charges").body("{}".into()).unwrap();
        assert_eq!(send(&app, without).await.text(), "ok");
        assert_eq!(events.count("payments false Keyless"), 1);
        assert_eq!(send(&app, charge("k", ORDER)).await.text(), "ok");
        assert_eq!(events.count("payments false Keyless"), 1);
        assert_eq!(bench.runs(), 2);
    }
}

#[tokio::test]
async fn an_error_of_the_service_is_told_with_its_record() {
    let events = Events::default();
    let bench = events.bench();
    let mut service = bench.service(|_| Err(std::fmt::Error));
    let answer = Answer::read(service.call(charge("k", ORDER)).await.unwrap()).await;
    answer.is_problem(504, "upstream-timeout");
    assert_eq!(events.count("payments true Failed(Error)"), 1);
    assert_eq!(events.count("payments true Held"), 1);
    assert_eq!(events.count("payments true Refused(UpstreamTimeout)"), 1);
    assert_eq!(events.count("payments true Answered"), 0);
}
