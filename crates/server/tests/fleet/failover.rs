//! The database fails over under load: the primary is killed, a synchronous standby takes its place.

use semel_testkit::servers::Postgres;

use crate::{
    house,
    load::{self, Load},
};

#[tokio::test]
async fn a_killed_primary_loses_nothing_that_its_standby_had_to_confirm() {
    let mut primary = Postgres::start(&[]);
    let database = primary.fresh_database();
    let standby = primary.standby();
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

    primary.kill();
    standby.promote();

    load.goes_on(200).await;
    let ledger = load.end().await;
    gateways.extend(house::start(&setup, &[url]).await);
    load::holds(&ledger, &upstream, gateways.last().unwrap()).await;
    house::stop(gateways).await;
}
