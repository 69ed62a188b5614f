//! Deadlines of clients, in each of their five forms.

use std::time::Duration;

use http::HeaderValue;
use jiff::Timestamp;
use semel::core::StateName;

use crate::common::{
    ClientRequest, Gate, Gateway, ORDER, Reply, Setup, TestResponse, Upstream, charge, send,
    wait_until,
};

const HEADERS: [&str; 5] = [
    "request-deadline",
    "request-timeout",
    "x-request-timeout-ms",
    "grpc-timeout",
    "x-envoy-expected-rq-timeout-ms",
];

/// Long enough for a busy machine to begin a request, short enough to wait for.
const SOON: u64 = 1500;

/// The value of a header for a deadline in this many milliseconds.
fn value(header: &str, millis: u64) -> String {
    match header {
        "request-deadline" => (Timestamp::now() + Duration::from_millis(millis)).to_string(),
        "request-timeout" => format!("{}.{:03}", millis / 1000, millis % 1000),
        "grpc-timeout" => format!("{millis}m"),
        _ => millis.to_string(),
    }
}

fn with(mut request: ClientRequest, header: &'static str, value: &str) -> ClientRequest {
    request.headers_mut().insert(header, HeaderValue::from_str(value).unwrap());
    request
}

fn until_soon(key: &str, header: &'static str) -> ClientRequest {
    with(charge(key, ORDER), header, &value(header, SOON))
}

fn setup(upstream: &str) -> Setup {
    Setup::new(upstream).defaults("deadline = { leeway = \"0s\" }")
}

async fn gated() -> (Gate, Upstream) {
    let gate = Gate::new();
    let upstream = Upstream::start({
        let gate = gate.clone();
        move |seen| Reply::created(seen).blocked_on(&gate)
    })
    .await;
    (gate, upstream)
}

#[track_caller]
fn is_exceeded(answer: &TestResponse, should_retry: &str) {
    answer.assert_problem(504, "deadline-exceeded");
    assert_eq!(answer.header("x-should-retry"), Some(should_retry), "{answer:?}");
}

#[tokio::test]
async fn a_request_that_arrives_after_its_deadline_leaves_no_record() {
    let upstream = Upstream::plain().await;
    let gateway = setup(&upstream.url()).start().await;
    for header in HEADERS {
        let answer = gateway.send(with(charge(header, ORDER), header, &value(header, 0))).await;
        is_exceeded(&answer, "false");
        assert_eq!(gateway.state(header).await, None, "{header}");
        let malformed = gateway.send(with(charge(header, ORDER), header, "soon")).await;
        malformed.assert_problem(400, "deadline-malformed");
        assert!(malformed.text().contains(header), "{malformed:?}");
    }
    assert_eq!(upstream.request_count(), 0);
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn an_operation_that_has_begun_runs_on_beyond_the_deadline() {
    let (gate, upstream) = gated().await;
    let gateway = setup(&upstream.url()).start().await;
    let sent =
        HEADERS.map(|header| tokio::spawn(send(gateway.address(), until_soon(header, header))));
    for answer in sent {
        is_exceeded(&answer.await.unwrap(), "true");
    }
    gate.open();
    for header in HEADERS {
        // The retry joins the running operation, or replays what it recorded.
        let retry = gateway.send(charge(header, ORDER)).await;
        assert_eq!(retry.status.as_u16(), 201, "{header}");
        assert_eq!(gateway.state(header).await, Some(StateName::Completed), "{header}");
        gateway.send(charge(header, ORDER)).await.assert_replay_of(&retry);
        assert_eq!(upstream.requests_with_key(header).len(), 1, "{header}");
    }
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn the_upstream_receives_its_own_timeout_and_not_the_rest_of_the_client() {
    let upstream = Upstream::plain().await;
    let defaults = "deadline = { leeway = \"0s\" }\nupstream_timeout = \"40s\"";
    let gateway = Setup::new(&upstream.url()).defaults(defaults).start().await;
    let timeouts = ["", "40", "40000", "40000m", "40000"];
    for (header, timeout) in HEADERS.into_iter().zip(timeouts) {
        let answer = gateway.send(until_soon(header, header)).await;
        assert_eq!(answer.status.as_u16(), 201, "{header}");
        let seen = upstream.requests_with_key(header)[0].header(header).unwrap().to_owned();
        if header == "request-deadline" {
            let at: Timestamp = seen.parse().unwrap();
            let left = at.duration_since(Timestamp::now()).as_secs();
            assert!((5..=40).contains(&left), "{left}");
        } else {
            assert_eq!(seen, timeout, "{header}");
        }
    }
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn the_rest_of_the_client_is_propagated_where_operations_may_run_again() {
    let upstream = Upstream::plain().await;
    let defaults = "deadline = { propagate = true }\non_unknown = \"rerun\"";
    let gateway = Setup::new(&upstream.url()).defaults(defaults).start().await;
    let header = "x-request-timeout-ms";
    gateway.send(with(charge("k", ORDER), header, "30000")).await;
    let left: u64 = upstream.requests_with_key("k")[0].header(header).unwrap().parse().unwrap();
    assert!((1..=30_000).contains(&left), "{left}");
    gateway.assert_clean_shutdown().await;
}

/// In the same process a request joins, in another it waits for the store.
#[tokio::test]
async fn a_request_waits_for_another_until_its_deadline() {
    let (gate, upstream) = gated().await;
    let setup = setup(&upstream.url()).defaults("wait = \"50s\"");
    let (gateway, elsewhere) = (setup.start().await, setup.start().await);
    let first = tokio::spawn(send(gateway.address(), charge("k", ORDER)));
    wait_until(|| upstream.request_count() == 1).await;
    for place in [&gateway, &elsewhere] {
        let waiting =
            HEADERS.map(|header| tokio::spawn(send(place.address(), until_soon("k", header))));
        for answer in waiting {
            is_exceeded(&answer.await.unwrap(), "true");
        }
    }
    gate.open();
    let first = first.await.unwrap();
    assert_eq!(first.status.as_u16(), 201);
    elsewhere.send(until_soon("k", "request-timeout")).await.assert_replay_of(&first);
    assert_eq!(upstream.request_count(), 1);
    gateway.assert_clean_shutdown().await;
    elsewhere.assert_clean_shutdown().await;
}

/// A request that waits for a connection to the upstream has not begun. This upstream accepts
/// connections and does not answer the TLS handshake.
#[tokio::test]
async fn a_queued_request_is_not_sent_after_its_deadline() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let upstream = format!("upstream = {{ url = \"{url}\", connect_timeout = \"30s\" }}\n");
    let gateway = setup(&url).gateway(upstream).start().await;
    let send = |header| tokio::spawn(send(gateway.address(), until_soon(header, header)));
    for answer in HEADERS.map(send) {
        is_exceeded(&answer.await.unwrap(), "true");
    }
    for header in HEADERS {
        assert_eq!(gateway.state(header).await, Some(StateName::InFlight), "{header}");
    }
    // The connections are closed: nothing was sent, and the keys are free.
    drop(listener);
    for header in HEADERS {
        while gateway.state(header).await != Some(StateName::Released) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_clock_that_is_two_seconds_behind_is_tolerated() {
    let upstream = Upstream::plain().await;
    let gateway = Setup::new(&upstream.url()).defaults("deadline = { leeway = \"1m\" }");
    let gateway = gateway.start().await;
    let before = |seconds: u64| (Timestamp::now() - Duration::from_secs(seconds)).to_string();
    let behind = with(charge("behind", ORDER), "request-deadline", &before(2));
    assert_eq!(gateway.send(behind).await.status.as_u16(), 201);
    let late = with(charge("late", ORDER), "request-deadline", &before(61));
    is_exceeded(&gateway.send(late).await, "false");
    gateway.assert_clean_shutdown().await;
}

/// With the default leeway, a client whose clock is 2 s off sends a deadline in the near future.
#[tokio::test]
async fn a_clock_that_is_two_seconds_off_costs_a_client_nothing() {
    let upstream = Upstream::plain().await;
    let gateway = Setup::new(&upstream.url()).defaults("deadline = {}").start().await;
    let header = "request-deadline";
    let (off, near) = (Duration::from_secs(2), Duration::from_millis(1900));
    for (key, date) in [
        ("behind", Timestamp::now() - off + near),
        ("ahead", Timestamp::now() + off + near),
        ("right", Timestamp::now() + near),
    ] {
        let answer = gateway.send(with(charge(key, ORDER), header, &date.to_string())).await;
        assert_eq!(answer.status.as_u16(), 201, "{key}: {answer:?}");
    }
    let late = (Timestamp::now() - off).to_string();
    is_exceeded(&gateway.send(with(charge("late", ORDER), header, &late)).await, "false");
    // Clocks do not matter for a duration: it has no leeway.
    let durations = HEADERS.into_iter().filter(|name| *name != header);
    for name in durations.clone() {
        let answer = gateway.send(with(charge(name, ORDER), name, &value(name, 1900))).await;
        assert_eq!(answer.status.as_u16(), 201, "{name}: {answer:?}");
        let late = with(charge("late", ORDER), name, &value(name, 0));
        is_exceeded(&gateway.send(late).await, "false");
    }
    assert_eq!(upstream.request_count(), 3 + durations.count());
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn without_the_setting_no_deadline_is_read() {
    let upstream = Upstream::plain().await;
    let gateway = Gateway::in_front_of(&upstream.url()).await;
    let answer = gateway.send(with(charge("k", ORDER), "request-timeout", "0")).await;
    assert_eq!(answer.status.as_u16(), 201);
    assert_eq!(upstream.requests_with_key("k")[0].header("request-timeout"), Some("0"));
    gateway.assert_clean_shutdown().await;
}
