//! The dashboard in a real browser: with JavaScript, behind a path prefix, and without JavaScript.

use std::{process::Command, time::Duration};

use serde_json::json;

use crate::{
    HERE,
    common::{ReceivedRequest, Reply, Setup, Upstream},
    process::prepared,
    semel_clients,
};

const OPERATOR_TOKEN: &str = "the-token-of-an-operator";
const VIEWER_TOKEN: &str = "the-token-of-a-viewer";

/// A number that a double cannot hold.
const EXACT: &str = r#"{"id":9007199254740993,"amount":1.0}"#;

/// How long the operation of a stampede runs: so that the page shows it in flight.
const STAMPEDE_DURATION: Duration = Duration::from_secs(3);

/// Charges; `late-…` fails at first, so that its outcome is unknown, and `stampede` takes its time.
fn charge(request: &ReceivedRequest) -> Reply {
    let answer = Reply::new(201, EXACT).header("content-type", "application/json");
    match request.key() {
        key if key.starts_with("late-") && request.run == 1 => Reply::new(503, "try later"),
        "stampede" => answer.after(STAMPEDE_DURATION),
        _ => answer,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_finds_and_resolves_charges_in_a_browser() {
    let Some(chromium) = prepared("SEMEL_TEST_CHROMIUM") else { return };
    let Some(modules) = prepared("SEMEL_TEST_NODE_MODULES") else { return };
    let upstream = Upstream::start(charge).await;
    let gateway = Setup::configured(&format!(
        "store = \"sqlite:semel.db\"\n[gateway]\nupstream = \"{}\"\n\
         [api]\nlisten = \"127.0.0.1:0\"\n\
         [[api.token]]\nname = \"ops\"\nrole = \"operator\"\nsecret_env = \"OPS\"\n\
         [[api.token]]\nname = \"watch\"\nrole = \"viewer\"\nsecret_env = \"WATCH\"\n\
         [[route]]\nmatch = \"POST /charges\"\nscope = \"payments\"\n\
         caller = [\"anonymous\"]\ncapture = {{ order = \"/order\" }}\n",
        upstream.url()
    ))
    .environment("OPS", OPERATOR_TOKEN)
    .environment("WATCH", VIEWER_TOKEN)
    .start()
    .await;
    let input = json!({
        "chromium": chromium,
        "modules": modules,
        "gateway": format!("http://{}", gateway.address()),
        "api": format!("http://{}", gateway.api()),
        "operator": OPERATOR_TOKEN,
        "viewer": VIEWER_TOKEN,
        "exact": EXACT,
    });
    let script = tokio::task::spawn_blocking(move || {
        let mut node = Command::new("node");
        node.arg(format!("{HERE}/dashboard/flow.mjs"));
        semel_clients::lines(&mut node, &input)
    });
    let report = script.await.unwrap().pop().unwrap();
    assert_eq!(report["findings"], json!([]), "{report:#}");
    assert!(report["checked"].as_u64().unwrap() >= 36, "{report:#}");
    let runs = |key: &str| upstream.requests_with_key(key).len();
    // Thirty clients at once; one record resolved as done, one as not done and then retried.
    assert_eq!([runs("stampede"), runs("late-done"), runs("late-freed")], [1, 1, 2]);
    for number in 0..12 {
        assert_eq!(runs(&format!("late-{number}")), 2, "resolved with all that matched");
    }
    assert_eq!(runs("late-without-script"), 2);
}
