//! Clients whose credential changes between the attempts of one operation.

use crate::common::{
    Gateway, ORDER, Reply, Setup, TestResponse, Upstream, charge, local, send, wait_until,
};

/// Sends the key with this token.
async fn attempt(gateway: &Gateway, key: &str, token: &str) -> TestResponse {
    let mut request = charge(key, ORDER);
    let credential = format!("Bearer {token}").parse().unwrap();
    request.headers_mut().insert("authorization", credential);
    gateway.send(request).await
}

async fn changes(gateway: &Gateway, scope: &str) -> u64 {
    let metrics = send(gateway.api(), local("/metrics")).await;
    let counter = format!(r#"semel_records_total{{scope="{scope}",event="caller-changed"}} "#);
    let count = metrics.text().lines().find_map(|line| line.strip_prefix(&*counter));
    count.unwrap_or_else(|| panic!("{}", metrics.text())).parse().unwrap()
}

fn log_lines(gateway: &Gateway) -> usize {
    let lines = gateway.log_lines();
    lines.iter().filter(|line| line.contains("came from another caller within minutes")).count()
}

#[tokio::test]
async fn a_request_that_runs_again_under_another_credential_is_counted_and_logged_once() {
    let upstream = Upstream::plain().await;
    let gateway = Setup::new(&upstream.url()).start().await;
    for key in ["one", "two"] {
        for token in ["token-1", "token-2", "token-2"] {
            assert_eq!(attempt(&gateway, key, token).await.status, 201);
        }
    }
    assert_eq!((upstream.request_count(), changes(&gateway, "default").await), (4, 2));
    assert_eq!(log_lines(&gateway), 1);
    gateway.assert_clean_shutdown().await;
}

/// The usual order: the token has expired, the service refuses it, and the client renews it.
#[tokio::test]
async fn a_credential_that_the_service_refused_is_not_reported() {
    let upstream = Upstream::start(|request| match request.header("authorization") {
        Some("Bearer expired") => Reply::new(401, "expired"),
        _ => Reply::created(request),
    });
    let upstream = upstream.await;
    let gateway = Setup::new(&upstream.url()).start().await;
    assert_eq!(attempt(&gateway, "k", "expired").await.status, 401);
    assert_eq!(attempt(&gateway, "k", "renewed").await.status, 201);
    assert_eq!((upstream.request_count(), changes(&gateway, "default").await), (2, 0));
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_route_that_observes_reports_a_credential_that_changes() {
    let upstream = Upstream::plain().await;
    let routes = "[[route]]\nmatch = \"POST /**\"\nscope = \"charges\"\nmode = \"observe\"";
    let gateway = Setup::new(&upstream.url()).tables(routes).start().await;
    for token in ["token-1", "token-2"] {
        assert_eq!(attempt(&gateway, "k", token).await.status, 201);
    }
    // An observed request is claimed beside its execution.
    wait_until(|| log_lines(&gateway) == 1).await;
    assert_eq!(changes(&gateway, "charges").await, 1);
    gateway.assert_clean_shutdown().await;
}
