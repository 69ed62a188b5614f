//! Two processes on one file.

use std::time::Duration;

use semel::core::OnUnknown;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::{
    client::{self, Heard},
    service::{LEASE, Service, journal},
};

#[tokio::test]
async fn fifty_requests_at_two_processes_run_once_and_get_one_answer() {
    let folder = tempfile::tempdir().unwrap();
    let services = [0, 1].map(|_| Service::start(folder.path(), OnUnknown::Hold));
    for round in 0..10 {
        let key = format!("round-{round}");
        let mut requests = JoinSet::new();
        for number in 0..50 {
            let (address, key) = (services[number % 2].address, key.clone());
            requests.spawn(async move { client::send(address, &key, 20).await.unwrap() });
        }
        let answers = requests.join_all().await;
        assert!(answers.iter().all(|answer| answer.status == 201), "{answers:?}");
        assert!(answers.windows(2).all(|pair| pair[0].body == pair[1].body));
    }
    let runs = journal(folder.path());
    assert_eq!(runs.len(), 10);
    assert!(runs.values().all(|fences| fences.len() == 1), "{runs:?}");
}

/// A process that is stopped in the middle is a zombie when it continues: it was replaced.
#[tokio::test]
async fn a_zombies_write_is_refused_and_its_client_gets_what_the_record_says() {
    let folder = tempfile::tempdir().unwrap();
    let [zombie, other] = [0, 1].map(|_| Service::start(folder.path(), OnUnknown::Rerun));
    let address = zombie.address;
    let first = tokio::spawn(async move { client::send(address, "key", 300).await.unwrap() });
    let begun = Instant::now();
    while journal(folder.path()).is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(5), "it never begins");
        sleep(Duration::from_millis(5)).await;
    }
    zombie.signal("STOP");
    sleep(LEASE + Duration::from_millis(200)).await;
    let second = client::send(other.address, "key", 300).await.unwrap();
    assert_eq!((second.status.as_u16(), second.is_replayed()), (201, false), "{second:?}");
    zombie.signal("CONT");
    let first = first.await.unwrap();
    // It is not the zombie's own answer.
    first.assert_replay_of(&second);
    let fences = &journal(folder.path())["key"];
    assert!(matches!(fences[..], [zombie, other] if zombie < other), "{fences:?}");
    for service in [&zombie, &other] {
        let repeat = client::send(service.address, "key", 300).await;
        assert_eq!(client::hear(&repeat), Heard::Done(second.text().to_owned()));
    }
}
