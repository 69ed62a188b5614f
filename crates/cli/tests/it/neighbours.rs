//! Two gateways on one store.

use std::time::Duration;

use tokio::task::JoinSet;

use crate::common::{Client, ORDER, Reply, Setup, Upstream, charge, send};

#[tokio::test]
async fn fifty_at_once_over_two_gateways_run_once_and_get_equal_answers() {
    let upstream =
        Upstream::start(|request| Reply::created(request).after(Duration::from_millis(300))).await;
    let setup = Setup::new(&upstream.url()).defaults("wait = \"50s\"");
    let gateways = [setup.start().await, setup.start().await];
    let mut requests = JoinSet::new();
    for number in 0..50 {
        let address = gateways[number % 2].address();
        requests.spawn(send(address, charge("k", ORDER)));
    }
    let answers = requests.join_all().await;
    assert_eq!(answers.len(), 50);
    for answer in &answers {
        let body = "{\"key\": \"k\", \"charge\": 1}\n";
        assert_eq!((answer.status.as_u16(), answer.text()), (201, body));
        assert_eq!(answer.header("location"), Some("/charges/1"));
    }
    assert_eq!(upstream.request_count(), 1);
    for gateway in gateways {
        gateway.assert_clean_shutdown().await;
    }
}

#[tokio::test]
async fn many_keys_over_two_gateways_run_once_each() {
    let upstream = Upstream::plain().await;
    let setup = Setup::new(&upstream.url()).defaults("wait = \"50s\"");
    let gateways = [setup.start().await, setup.start().await];
    let mut clients = JoinSet::new();
    for number in 0..20 {
        let address = gateways[number % 2].address();
        clients.spawn(async move {
            let mut client = Client::connect(address).await;
            let mut bodies = Vec::new();
            // Each pair of neighbours walks the same keys, the second backwards.
            for step in 0..20 {
                let step = if number % 2 == 0 { step } else { 19 - step };
                let key = format!("{}-{step}", number / 2);
                let answer = client.send(charge(&key, ORDER)).await;
                assert_eq!(answer.status.as_u16(), 201);
                bodies.push((key, answer.body));
            }
            bodies.sort();
            bodies
        });
    }
    let mut walks = clients.join_all().await;
    walks.sort();
    for pair in walks.chunks(2) {
        assert_eq!(pair[0], pair[1]);
    }
    assert_eq!(upstream.request_count(), 200);
    for gateway in gateways {
        gateway.assert_clean_shutdown().await;
    }
}

#[tokio::test]
async fn a_credential_means_the_same_caller_at_every_gateway_and_after_a_restart() {
    let upstream = Upstream::plain().await;
    let setup = Setup::new(&upstream.url());
    let request = || {
        let mut request = charge("k", ORDER);
        request.headers_mut().insert("authorization", "Bearer sk_test_1".parse().unwrap());
        request
    };
    // Both find neither store nor secret.
    let (one, two) = tokio::join!(setup.start(), setup.start());
    let first = one.send(request()).await;
    two.send(request()).await.assert_replay_of(&first);
    one.assert_clean_shutdown().await;
    two.assert_clean_shutdown().await;
    let again = setup.start().await;
    again.send(request()).await.assert_replay_of(&first);
    assert_eq!(upstream.request_count(), 1);
    again.assert_clean_shutdown().await;
}
