//! The state tables at the gateway: the real binary on a real store.

use semel::core::OnUnknown;
use semel_testkit::state_tables::{Script, SeenRun, TableLevel, check_endings, check_meetings};

use crate::{
    common::{Gateway, Reply, Setup, TestResponse, Upstream, charge},
    operators::reaches,
};

/// The gateway in front of a scripted upstream.
struct GatewayLevel {
    gateway: Gateway,
    upstream: Upstream,
}

impl GatewayLevel {
    async fn start(on_unknown: &str, script: &Script) -> Self {
        let script = script.clone();
        let upstream = Upstream::start(move |request| {
            let (status, header, body) = script.answer(request.key(), request.run);
            let mut reply = Reply::new(status, body);
            if let Some((name, value)) = header {
                reply = reply.header(name, value);
            }
            let waits = script.waits(request.key(), request.run);
            if waits { reply.blocked_on(script.gate()) } else { reply }
        })
        .await;
        let setup = Setup::new(&upstream.url());
        let setup = setup.defaults(format!("on_unknown = \"{on_unknown}\""));
        Self { gateway: setup.start().await, upstream }
    }
}

impl TableLevel for GatewayLevel {
    async fn send(&self, key: &str, body: &'static str) -> TestResponse {
        self.gateway.send(charge(key, body)).await
    }

    fn runs(&self, key: &str) -> Vec<SeenRun> {
        let runs = self.upstream.requests_with_key(key);
        runs.iter().map(|run| SeenRun { attempt: run.attempt(), fence: run.fence() }).collect()
    }

    async fn one_waits(&self) {
        reaches(&self.gateway, "semel_waiting", 1).await;
    }
}

#[tokio::test]
async fn every_row_of_the_endings_holds_at_the_gateway() {
    for (on_unknown, name) in
        [(OnUnknown::Hold, "hold"), (OnUnknown::Rerun, "rerun"), (OnUnknown::Fail, "fail")]
    {
        let level = GatewayLevel::start(name, &Script::default()).await;
        check_endings(&level, on_unknown).await;
        level.gateway.assert_clean_shutdown().await;
    }
}

#[tokio::test]
async fn every_row_of_the_meetings_holds_at_the_gateway() {
    let script = Script::default();
    let level = GatewayLevel::start("hold", &script).await;
    check_meetings(&level, &script).await;
    level.gateway.assert_clean_shutdown().await;
}
