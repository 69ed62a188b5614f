//! The database fails over under load: the primary is killed, and a synchronous standby takes over.

use std::time::Duration;

use semel_testkit::{servers::Postgres, wire::Proxy};
use tokio::time::sleep;

use crate::{
    house,
    load::{self, Load},
};

#[tokio::test]
async fn a_killed_primary_loses_nothing_that_its_standby_had_to_confirm() {
    let mut primary = Postgres::start(&[]);
    let database = primary.fresh_database();
    let wire = Proxy::start(primary.port());
    let standby = primary.standby_through(wire.port());
    let url = format!(
        "postgres://postgres@127.0.0.1:{},127.0.0.1:{}/{database}?target_session_attrs=read-write",
        primary.port(),
        standby.port()
    );
    let upstream = load::upstream().await;
    let setup = house::hurried(&upstream);
    let mut gateways = house::start(&setup, &[url.clone(), url.clone(), url.clone()]).await;
    let load = Load::start(&gateways);
    load.goes_on(200).await;

    // The standby is cut off first. What the primary commits from here on is on one disk only, and
    // must not be acknowledged.
    wire.silence(true);
    sleep(Duration::from_secs(1)).await;
    primary.kill();
    wire.cut();
    standby.promote();

    load.goes_on(200).await;
    let ledger = load.end().await;
    gateways.extend(house::start(&setup, &[url]).await);
    load::holds(&ledger, &upstream, gateways.last().unwrap()).await;
    house::stop(gateways).await;
}
