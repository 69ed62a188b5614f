//! The behaviour of the service without kills.

use crate::{TestDatabase, client::pay, support::Service};

#[tokio::test(flavor = "multi_thread")]
async fn a_payment_and_a_refusal_are_replayed_and_the_refused_order_is_rolled_back() {
    for database in [TestDatabase::postgres(), TestDatabase::sqlite()] {
        let service = Service::start(&mut database.payments(&[]));
        let first = pay(service.address, "k1", 4900).await.unwrap();
        assert_eq!(first.status, 201);
        assert_eq!(first.text(), r#"{"order":1,"cents":4900}"#);
        pay(service.address, "k1", 4900).await.unwrap().assert_replay_of(&first);
        assert_eq!(pay(service.address, "k1", 5900).await.unwrap().status, 422);

        let declined = pay(service.address, "k2", 2_000_000).await.unwrap();
        assert_eq!(declined.status, 402);
        pay(service.address, "k2", 2_000_000).await.unwrap().assert_replay_of(&declined);

        let orders = database.texts("SELECT CAST(cents AS text) FROM orders").await;
        assert_eq!(orders, ["4900"], "the order of the refused payment is rolled back");
        assert_eq!(database.ledger().await.into_iter().collect::<Vec<_>>(), [("k1".to_owned(), 1)]);
        service.terminate();
        assert!(service.wait_for_success());
    }
}
