//! Stripe's SDKs meet every problem: each is an error to their callers, none is taken for a
//! success, and what is final is sent once.

use std::{
    collections::BTreeMap,
    io::{BufReader, Write as _},
    net::{SocketAddr, TcpListener},
    thread,
};

use http_body_util::BodyExt as _;
use semel::core::{ErrorType, OnUnknown, Problem, RetryContext};

use crate::{
    gateway::Gateway,
    http::Message,
    http_proxy::HttpProxy,
    scripted_api::ScriptedApi,
    vendor_sdk::{Call, Sdk, SdkResult},
};

#[test]
fn the_stripe_sdk_for_python_raises_every_problem_of_the_gateway() {
    every_problem_of_the_gateway_is_an_error(Sdk::StripePython);
}

#[test]
fn the_stripe_sdk_for_node_raises_every_problem_of_the_gateway() {
    every_problem_of_the_gateway_is_an_error(Sdk::StripeNode);
}

#[test]
fn the_stripe_sdk_for_python_raises_every_problem_there_is() {
    every_problem_there_is_is_an_error(Sdk::StripePython);
}

#[test]
fn the_stripe_sdk_for_node_raises_every_problem_there_is() {
    every_problem_there_is_is_an_error(Sdk::StripeNode);
}

/// A route for each way to refuse. Nothing listens on port 1.
fn configuration(upstream: SocketAddr) -> String {
    let route = |resource: &str, lines: &str| {
        format!("[[route]]\nmatch = \"POST /v1/{resource}\"\nscope = \"{resource}\"\n{lines}\n")
    };
    let routes = [
        route("customers", ""),
        route("refunds", "on_unknown = \"rerun\""),
        route("charges", "on_unknown = \"fail\""),
        route("products", "request_max = \"64B\""),
        route("prices", "response_max = \"64B\""),
        route("coupons", "upstream = \"http://127.0.0.1:1\""),
        route(
            "plans",
            "signature = { scheme = \"stripe\", secret_env = \"SEMEL_TEST_WEBHOOK_SECRET\" }",
        ),
        "[[route]]\nmatch = \"GET /v1/customers/*\"\nscope = \"reads\"\n\
         key = { header = \"Idempotency-Key\", required = true }\n"
            .to_owned(),
    ];
    format!(
        "[gateway]\nupstream = \"http://{upstream}\"\n\
         [limits]\nper_caller = 4\n\
         [defaults]\nlease = \"2s\"\nwait = \"0s\"\n{}",
        routes.concat()
    )
}

/// What an SDK reported, and how many requests it sent.
struct Stage {
    api: ScriptedApi,
    proxy: HttpProxy,
    result: BTreeMap<String, SdkResult>,
}

impl Stage {
    fn add(&mut self, result: Vec<SdkResult>) {
        self.result.extend(result.into_iter().map(|result| (result.name.clone(), result)));
    }

    #[track_caller]
    fn resolved(&self, name: &str, key: &str) {
        let result = &self.result[name];
        let made = result.resolved.as_ref().unwrap_or_else(|| panic!("{result:?}"));
        assert_eq!(made["id"], format!("made for {key}"), "{result:?}");
    }

    #[track_caller]
    fn raised(&self, name: &str, problem: Problem) {
        is_raised(&self.result[name], problem);
    }

    /// The answers to each request with this key, and how often it was executed.
    #[track_caller]
    fn sent(&self, key: &str, statuses: &[u16], runs: usize) {
        assert_eq!(self.proxy.statuses(key), statuses, "{key}");
        assert_eq!(self.api.runs(key), runs, "{key}");
    }
}

/// The SDK raised the problem as the exception that its documentation leads one to expect.
#[track_caller]
fn is_raised(result: &SdkResult, problem: Problem) {
    assert!(result.resolved.is_none(), "taken for a success: {result:?}");
    let class = match (problem.status(), problem.error_type()) {
        (400, ErrorType::Idempotency) => "IdempotencyError",
        (400, _) => "InvalidRequestError",
        (401, _) => "AuthenticationError",
        (403, _) => "PermissionError",
        (429, _) => "RateLimitError",
        _ => "APIError",
    };
    let (status, code) = (Some(problem.status()), problem.code());
    assert_eq!((result.class.as_deref(), result.status), (Some(class), status), "{result:?}");
    assert_eq!(result.code.as_deref(), Some(&*code), "{result:?}");
    assert!(result.message.as_deref().is_some_and(|text| !text.is_empty()), "{result:?}");
}

fn every_problem_of_the_gateway_is_an_error(sdk: Sdk) {
    let api = ScriptedApi::start();
    let gateway = Gateway::configured(&configuration(api.address));
    let proxy = HttpProxy::to(gateway.address());
    let mut stage = Stage { api, proxy, result: BTreeMap::new() };
    let Some(calling) = sdk.call(stage.proxy.address, &sequences()) else { return };
    // One of the two learns three times that the other runs, one of the five that four do.
    stage.proxy.wait_for("slow-", 409, 3);
    stage.api.open("slow-");
    stage.proxy.wait_for("busy-", 503, 3);
    stage.api.open("busy-");
    stage.add(calling.end());
    what_is_final_was_sent_once(&stage);
    what_may_be_retried_was_retried(&stage);

    // The store stops while an operation runs: its answer is retried until it is recorded.
    let late = Call { retries: 20, ..Call::create("customers", "late-1") };
    let calling = sdk.call(stage.proxy.address, &[vec![late]]).unwrap();
    stage.api.wait_for("late-1");
    let away = gateway.stop_store();
    stage.api.open("late-");
    stage.proxy.wait_for("late-1", 504, 1);
    drop(away);
    stage.add(calling.end());
    stage.resolved("late-1", "late-1");
    assert_eq!(stage.api.runs("late-1"), 1);

    let away = gateway.stop_store();
    let calling = sdk.call(stage.proxy.address, &[vec![Call::create("customers", "away-1")]]);
    stage.add(calling.unwrap().end());
    drop(away);
    stage.raised("away-1", Problem::StoreUnavailable);
    stage.sent("away-1", &[503; 3], 0);
}

fn sequences() -> Vec<Vec<Call>> {
    let twice = |call: Call| {
        let name = format!("{} again", call.name);
        vec![call.clone(), call.named(&name)]
    };
    let create = Call::create;
    let other = Call { description: "another".to_owned(), ..create("customers", "reused-1") };
    let long = Call { description: "x".repeat(100), ..create("products", "long-1") };
    let token = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZGEifQ.c2lnbmF0dXJl";
    let unknown = Call { api_key: token.to_owned(), ..create("customers", "unknown-1") };
    let busy = |key| Call { api_key: "sk_test_busy".to_owned(), ..create("customers", key) };
    vec![
        twice(create("customers", "good-1")),
        vec![create("customers", "a b")],
        vec![Call::retrieve("customers", "missing-1")],
        vec![unknown],
        vec![create("plans", "unsigned-1")],
        vec![create("customers", "reused-1"), other.named("reused-1 again")],
        vec![long],
        twice(create("customers", "cut-hold")),
        twice(create("charges", "cut-fail")),
        vec![create("refunds", "cut-rerun")],
        twice(create("prices", "large-1")),
        vec![create("coupons", "far-1")],
        vec![create("customers", "slow-1")],
        vec![create("customers", "slow-1").named("slow-1 too")],
        vec![busy("busy-1")],
        vec![busy("busy-2")],
        vec![busy("busy-3")],
        vec![busy("busy-4")],
        vec![busy("busy-5")],
    ]
}

fn what_is_final_was_sent_once(stage: &Stage) {
    stage.resolved("good-1", "good-1");
    stage.resolved("good-1 again", "good-1");
    stage.sent("good-1", &[200, 200], 1);
    for (key, problem) in [
        ("a b", Problem::KeyMalformed),
        ("unknown-1", Problem::CallerUnidentified),
        ("unsigned-1", Problem::SignatureInvalid),
        ("long-1", Problem::BodyTooLarge),
    ] {
        stage.raised(key, problem);
        stage.sent(key, &[problem.status()], 0);
    }
    // The only call without a key.
    stage.raised("missing-1", Problem::KeyMissing);
    stage.sent("", &[400], 0);
    stage.resolved("reused-1", "reused-1");
    stage.raised("reused-1 again", Problem::KeyReused);
    stage.sent("reused-1", &[200, 422], 1);
    stage.raised("cut-hold", Problem::UpstreamTimeout);
    stage.raised("cut-hold again", Problem::OutcomeUnknown);
    stage.sent("cut-hold", &[504, 423], 1);
    assert!(stage.result["cut-fail"].resolved.is_none());
    stage.raised("cut-fail again", Problem::OperationFailed);
    assert_eq!(stage.proxy.statuses("cut-fail").len(), 2);
    assert_eq!(stage.api.runs("cut-fail"), 1);
    stage.resolved("large-1", "large-1");
    stage.raised("large-1 again", Problem::ResponseNotRetained);
    stage.sent("large-1", &[200, 410], 1);
}

fn what_may_be_retried_was_retried(stage: &Stage) {
    stage.raised("cut-rerun", Problem::UpstreamTimeout);
    stage.sent("cut-rerun", &[504; 3], 3);
    stage.raised("far-1", Problem::UpstreamUnreachable);
    stage.sent("far-1", &[502; 3], 0);
    let raised_of = |names: &[&str], problem: Problem| {
        let raised = names.iter().filter(|name| stage.result[**name].resolved.is_none());
        raised.inspect(|name| stage.raised(name, problem)).count()
    };
    assert_eq!(raised_of(&["slow-1", "slow-1 too"], Problem::InProgress), 1);
    stage.sent("slow-1", &[409, 409, 409, 200], 1);
    let busy = ["busy-1", "busy-2", "busy-3", "busy-4", "busy-5"];
    assert_eq!(raised_of(&busy, Problem::TooManyInFlight), 1);
    assert_eq!(busy.map(|key| stage.api.runs(key)).iter().sum::<usize>(), 4);
}

/// The bytes that the layer sends for a problem.
fn response(problem: Problem, context: RetryContext) -> Vec<u8> {
    type Never = http_body_util::Empty<bytes::Bytes>;
    let (parts, body) = semel_tower::refusal::<Never>(problem, false, context).into_parts();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let body = runtime.block_on(body.collect()).unwrap().to_bytes();
    let mut bytes = format!("HTTP/1.1 {} Problem\r\n", parts.status.as_u16()).into_bytes();
    for (name, value) in &parts.headers {
        bytes.extend([name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
    }
    bytes.extend(format!("content-length: {}\r\n\r\n", body.len()).into_bytes());
    bytes.extend(body);
    bytes
}

/// A server that answers each key with its response.
fn serve(responses: BTreeMap<String, Vec<u8>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = BufReader::new(client.unwrap());
            let responses = responses.clone();
            thread::spawn(move || {
                while let Ok(Some(request)) = Message::read(&mut client) {
                    let key = request.header("idempotency-key").unwrap();
                    client.get_mut().write_all(&responses[key]).unwrap();
                }
            });
        }
    });
    address
}

/// Also those that no client can provoke yet.
fn every_problem_there_is_is_an_error(sdk: Sdk) {
    let mut cases = BTreeMap::new();
    for on_unknown in [OnUnknown::Hold, OnUnknown::Rerun] {
        for problem in Problem::ALL {
            let key = format!("{problem:?}-{on_unknown:?}");
            cases.insert(key, (*problem, RetryContext::guarded(on_unknown)));
        }
    }
    let bytes = |(key, (problem, context)): (&String, &(Problem, RetryContext))| {
        (key.clone(), response(*problem, *context))
    };
    let proxy = HttpProxy::to(serve(cases.iter().map(bytes).collect()));
    let calls: Vec<_> = cases.keys().map(|key| vec![Call::create("customers", key)]).collect();
    let Some(calling) = sdk.call(proxy.address, &calls) else { return };
    for result in calling.end() {
        let (problem, context) = cases[&result.name];
        is_raised(&result, problem);
        assert_eq!(result.message.as_deref(), Some(problem.detail()));
        let times = if problem.should_retry(context) { 3 } else { 1 };
        assert_eq!(proxy.statuses(&result.name), vec![problem.status(); times], "{}", result.name);
    }
}
