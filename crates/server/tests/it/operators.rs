//! What operators see: health, metrics, logs.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::{Instant, sleep};

use crate::common::{Gateway, PATIENCE, get, send};

/// The metrics, by name and labels as they are written.
async fn metrics(gateway: &Gateway) -> BTreeMap<String, f64> {
    let answer = send(gateway.api(), get("/metrics")).await;
    assert_eq!(answer.status.as_u16(), 200);
    let lines = answer.text().lines().filter(|line| !line.starts_with('#'));
    let line = |line: &str| {
        let (name, value) = line.rsplit_once(' ').unwrap();
        (name.to_owned(), value.parse().unwrap())
    };
    lines.map(line).collect()
}

/// Waits until a metric has a value.
pub(crate) async fn reaches(gateway: &Gateway, name: &str, value: u32) {
    let end = Instant::now() + PATIENCE;
    loop {
        let metrics = metrics(gateway).await;
        if metrics.get(name) == Some(&value.into()) {
            return;
        }
        assert!(Instant::now() < end, "{name} never became {value}: {metrics:#?}");
        sleep(Duration::from_millis(10)).await;
    }
}
