//! The state tables at the layer, in memory.

use std::sync::{Arc, Mutex};

use axum::{Router, body::Body, extract::Request, response::Response, routing::post};
use http::StatusCode;
use semel::{
    Lease,
    core::{OnUnknown, Policy},
};
use semel_testkit::state_tables::{Script, SeenRun, TableLevel, check_endings, check_meetings};

use crate::harness::{Harness, TestResponse, charge, send, wait_until};

/// The layer in front of a scripted handler.
struct LayerLevel {
    harness: Harness,
    app: Router,
    runs: Arc<Mutex<Vec<(String, SeenRun)>>>,
}

impl LayerLevel {
    fn new(on_unknown: OnUnknown, script: &Script) -> Self {
        let harness = Harness::new().policy(Policy { on_unknown, ..Policy::default() });
        let runs: Arc<Mutex<Vec<(String, SeenRun)>>> = Arc::default();
        let (script, seen) = (script.clone(), Arc::clone(&runs));
        let handler = move |request: Request| {
            let (script, seen) = (script.clone(), Arc::clone(&seen));
            let key = request.headers()["idempotency-key"].to_str().unwrap().to_owned();
            let lease = request.extensions().get::<Lease>().unwrap();
            let fence = lease.fence().unwrap().get();
            let run = SeenRun { attempt: lease.attempt().into(), fence };
            async move { answer(&script, &seen, key, run).await }
        };
        let app = Router::new().route("/charges", post(handler)).layer(harness.layer());
        Self { harness, app, runs }
    }
}

async fn answer(
    script: &Script,
    seen: &Mutex<Vec<(String, SeenRun)>>,
    key: String,
    run: SeenRun,
) -> Response {
    let number = {
        let mut seen = seen.lock().unwrap();
        seen.push((key.clone(), run));
        seen.iter().filter(|(other, _)| *other == key).count()
    };
    if script.waits(&key, number) {
        script.gate().wait_open().await;
    }
    let (status, header, body) = script.answer(&key, number);
    let mut response = Response::builder().status(StatusCode::from_u16(status).unwrap());
    if let Some((name, value)) = header {
        response = response.header(name, value);
    }
    response.body(Body::from(body)).unwrap()
}

impl TableLevel for LayerLevel {
    async fn send(&self, key: &str, body: &'static str) -> TestResponse {
        send(&self.app, charge(key, body)).await
    }

    fn runs(&self, key: &str) -> Vec<SeenRun> {
        let runs = self.runs.lock().unwrap();
        runs.iter().filter(|(other, _)| other == key).map(|(_, run)| *run).collect()
    }

    async fn one_waits(&self) {
        wait_until(|| self.harness.semel.waiting() == 1).await;
    }
}

#[tokio::test]
async fn every_row_of_the_endings_holds_at_the_layer() {
    for on_unknown in [OnUnknown::Hold, OnUnknown::Rerun, OnUnknown::Fail] {
        check_endings(&LayerLevel::new(on_unknown, &Script::default()), on_unknown).await;
    }
}

#[tokio::test]
async fn every_row_of_the_meetings_holds_at_the_layer() {
    let script = Script::default();
    check_meetings(&LayerLevel::new(OnUnknown::Hold, &script), &script).await;
}
