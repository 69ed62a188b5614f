//! A velocity limit of three gateways on one PostgreSQL, some of which are killed.

use std::{collections::BTreeSet, time::Duration};

use semel_testkit::{servers, torture};
use tokio::task::JoinSet;

use crate::{
    common::{Client, Gateway, ORDER, Reply, Upstream, charge},
    harness,
};

const LIMIT: usize = 60;

const ROUTE: &str = "[[route]]\nmatch = \"POST /charges\"\nscope = \"payments\"\n\
                     key = { required = true }\ncaller = [\"anonymous\"]\n\
                     velocity = [{ by = \"address\", max = 60, per = \"1h\" }]\n";

#[tokio::test]
async fn torture_of_three_gateways_under_kills_admits_exactly_the_limit() {
    let rounds = if torture() { 20 } else { 2 };
    for round in 0..rounds {
        admits_exactly_the_limit(round).await;
    }
}

async fn admits_exactly_the_limit(round: usize) {
    let postgres = servers::postgres();
    let database = postgres.fresh_database();
    let url = postgres.url(&database);
    let upstream =
        Upstream::start(|request| Reply::created(request).after(Duration::from_millis(5))).await;
    let secret = "secret_env = \"SEMEL_SECRET\"";
    let setup = harness::hurried(&upstream).head(secret).tables(ROUTE);
    let mut gateways = harness::start(&setup, &[url.clone(), url.clone(), url.clone()]).await;
    for batch in 0..6 {
        let mut requests = JoinSet::new();
        for number in 0..30 {
            let address = gateways[number % gateways.len()].address();
            let key = format!("{round}-{batch}-{number}");
            requests.spawn(async move {
                // A killed gateway answers nothing.
                let mut client = Client::try_connect(address).await.ok()?;
                client.try_send(charge(&key, ORDER)).await.ok().map(|answer| answer.status.as_u16())
            });
        }
        let killed: Gateway = gateways.remove(batch % 3);
        while upstream.request_count() < LIMIT.min(5 + batch * 10) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        killed.kill();
        for status in requests.join_all().await.into_iter().flatten() {
            assert!([201, 429].contains(&status), "{status}");
        }
        gateways.extend(harness::start(&setup, std::slice::from_ref(&url)).await);
    }
    let ran: BTreeSet<String> =
        upstream.requests().iter().map(|request| request.key().to_owned()).collect();
    let units = "SELECT count(*) FROM semel_records WHERE state <> 'released'";
    // A claim of a killed gateway that sent nothing keeps its unit, because its outcome is unknown.
    assert_eq!(postgres.sql(&database, units), LIMIT.to_string(), "{} ran", ran.len());
    assert!(ran.len() <= LIMIT && ran.len() + 30 >= LIMIT, "{}", ran.len());
    for number in 0..10 {
        let gateway = &gateways[number % gateways.len()];
        let refused = gateway.send(charge(&format!("{round}-late-{number}"), ORDER)).await;
        assert_eq!(refused.status.as_u16(), 429, "{refused:?}");
    }
    harness::stop(gateways).await;
}
