//! Claims, answers and waits of the tests.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use semel_core::{
    Answer, Caller, Claim, Claimed, Fingerprint, Grant, Key, OwnerToken, RecordId, Scope, Store,
    StoredResponse,
};
use semel_testkit::with;
use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::Client;

/// The timeout of every wait.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) fn claim(key: &str) -> Claim {
    static DRAWN: AtomicU64 = AtomicU64::new(1);
    let mut owner = [0; 16];
    owner[8..].copy_from_slice(&DRAWN.fetch_add(1, Ordering::Relaxed).to_be_bytes());
    let (scope, caller) = (Scope::new("pay").unwrap(), Caller::new("merchant").unwrap());
    let id = RecordId::new(scope, caller, Key::new(key).unwrap());
    let fingerprint = Fingerprint::from_bytes(&[1; 33]).unwrap();
    with(Claim::new(id, fingerprint, OwnerToken::from_bytes(owner)), |claim| {
        claim.lease = Duration::from_secs(600);
        claim.retention = Duration::from_secs(3600);
    })
}

/// The same request with another owner token.
pub(crate) fn rival(of: &Claim) -> Claim {
    with(of.clone(), |it| it.owner = claim("rival").owner)
}

pub(crate) fn answer(body: &str) -> Answer {
    let body = body.to_owned().into();
    Answer::response(&StoredResponse { status: 201, body, ..StoredResponse::default() })
}

pub(crate) async fn granted(store: &Arc<dyn Store>, claim: &Claim) -> Grant {
    match store.claim(claim).await.unwrap() {
        Claimed::Granted(grant) => grant,
        Claimed::Occupied(occupied) => panic!("not granted: {occupied:?}"),
    }
}

/// Waits until a query has a row.
pub(crate) async fn eventually(admin: &Client, query: &str) {
    let begun = Instant::now();
    while admin.query(query, &[]).await.unwrap().is_empty() {
        assert!(begun.elapsed() < TEST_TIMEOUT, "no row within the timeout: {query}");
        sleep(Duration::from_millis(5)).await;
    }
}

/// Awaits a future within the timeout.
pub(crate) async fn in_time<T>(what: impl Future<Output = T>) -> T {
    timeout(TEST_TIMEOUT, what).await.unwrap()
}
