//! What is bounded: operations, those who wait for them, connections.

use std::time::Duration;

use tokio::time::timeout;

use crate::{
    common::{Gate, Gateway, ORDER, Reply, Setup, Upstream, charge, send, wait_until},
    operators::reaches,
};

#[tokio::test]
async fn one_caller_cannot_fill_the_gateway_and_a_full_gateway_answers_503() {
    let gate = Gate::new();
    let upstream = Upstream::start({
        let gate = gate.clone();
        move |request| Reply::created(request).blocked_on(&gate)
    })
    .await;
    let gateway = Setup::new(&upstream.url())
        .defaults("caller = [{ header = \"X-Merchant\" }]")
        .tables("[limits]\nin_flight = 3\nper_caller = 2")
        .start()
        .await;
    let request = |merchant: &str, key: &str| {
        let mut request = charge(key, ORDER);
        request.headers_mut().insert("x-merchant", merchant.parse().unwrap());
        request
    };
    let mut running = Vec::new();
    for (count, (merchant, key)) in [("a", "1"), ("a", "2"), ("b", "1")].into_iter().enumerate() {
        if count == 2 {
            let full = gateway.send(request("a", "3")).await;
            full.assert_problem(503, "too-many-in-flight");
            assert!(full.header("retry-after").is_some());
        }
        running.push(tokio::spawn(send(gateway.address(), request(merchant, key))));
        wait_until(|| upstream.request_count() == count + 1).await;
    }
    gateway.send(request("c", "1")).await.assert_problem(503, "too-many-in-flight");
    assert_eq!(upstream.request_count(), 3);
    gate.open();
    for answer in running {
        assert_eq!(answer.await.unwrap().status.as_u16(), 201);
    }
    assert_eq!(gateway.send(request("c", "1")).await.status.as_u16(), 201);
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn waiters_count_towards_the_limit() {
    let gate = Gate::new();
    let upstream = Upstream::start({
        let gate = gate.clone();
        move |request| Reply::created(request).blocked_on(&gate)
    })
    .await;
    let setup = Setup::new(&upstream.url()).defaults("wait = \"50s\"");
    let gateway = setup.tables("[limits]\nwaiting = 2").start().await;
    let request = || tokio::spawn(send(gateway.address(), charge("k", ORDER)));
    let first = request();
    wait_until(|| upstream.request_count() == 1).await;
    let waiting = [request(), request()];
    reaches(&gateway, "semel_waiting", 2).await;
    gateway.send(charge("k", ORDER)).await.assert_problem(503, "too-many-in-flight");
    gate.open();
    let first = first.await.unwrap();
    for answer in waiting {
        assert_eq!(answer.await.unwrap().body, first.body);
    }
    assert_eq!(upstream.request_count(), 1);
    gateway.assert_clean_shutdown().await;
}

#[tokio::test]
async fn a_connection_too_many_waits_while_all_are_in_use() {
    let gate = Gate::new();
    let upstream = Upstream::start({
        let gate = gate.clone();
        move |request| Reply::created(request).blocked_on(&gate)
    })
    .await;
    let setup = Setup::new(&upstream.url()).tables("[limits]\nconnections = 2");
    let gateway: Gateway = setup.start().await;
    let send = |key| tokio::spawn(send(gateway.address(), charge(key, ORDER)));
    let in_use = [send("1"), send("2")];
    wait_until(|| upstream.request_count() == 2).await;
    let mut third = send("3");
    assert!(timeout(Duration::from_millis(300), &mut third).await.is_err(), "there is no place");
    assert_eq!(upstream.request_count(), 2);
    gate.open();
    for answer in in_use.into_iter().chain([third]) {
        assert_eq!(answer.await.unwrap().status.as_u16(), 201);
    }
    assert_eq!(upstream.request_count(), 3);
    gateway.assert_clean_shutdown().await;
}
