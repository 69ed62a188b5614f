//! Those who wait hold no connection.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use semel::Outcome;
use tokio::{
    sync::Notify,
    task::JoinSet,
    time::{Instant, timeout},
};

use crate::bench::{Bench, PATIENCE, insert};

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_who_wait_leave_the_pool_to_others() {
    let bench = Bench::new().await;
    let process = bench.process(4);
    let (runs, go) = (Arc::new(AtomicU32::new(0)), Arc::new(Notify::new()));
    let mut tasks = JoinSet::new();
    for _ in 0..200 {
        let (process, runs, go) = (process.clone(), Arc::clone(&runs), Arc::clone(&go));
        tasks.spawn(async move {
            let store = process.store.clone();
            let run = process.once("k").run(move |lease| async move {
                let tx = store.transaction(&lease).await?;
                insert(&tx, "once").await?;
                runs.fetch_add(1, Ordering::Relaxed);
                go.notified().await;
                Ok(17)
            });
            run.await.unwrap().into_value().unwrap()
        });
    }
    let all_wait = async {
        while process.semel.waiting() < 199 {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, all_wait).await.unwrap();
    let begun = Instant::now();
    let client = process.pool.get().await.unwrap();
    client.query_one("SELECT 1", &[]).await.unwrap();
    println!("an unrelated query beside 199 who wait: {:?}", begun.elapsed());
    let status = process.pool.status();
    assert!(status.size - status.available <= 3, "{status:?}: one runs, one sweeps, one is ours");
    drop(client);
    go.notify_one();
    let values = tasks.join_all().await;
    assert_eq!(values, [17; 200]);
    assert_eq!(runs.load(Ordering::Relaxed), 1);
    assert_eq!(bench.entries().await, ["once"]);
}

/// Elsewhere too: nobody waits inside the database.
#[tokio::test(flavor = "multi_thread")]
async fn those_who_wait_in_another_process_hold_no_connection_either() {
    let bench = Bench::new().await;
    let (here, there) = (bench.process(2), bench.process(1));
    let go = Arc::new(Notify::new());
    let (store, told) = (here.store.clone(), Arc::clone(&go));
    let run = tokio::spawn(here.once("k").run(move |lease| async move {
        let tx = store.transaction(&lease).await?;
        insert(&tx, "once").await?;
        told.notified().await;
        Ok("done".to_owned())
    }));
    bench.eventually("SELECT FROM pg_locks WHERE locktype = 'advisory'").await;
    let mut tasks = JoinSet::new();
    for _ in 0..20 {
        let there = there.clone();
        tasks.spawn(async move { there.write("k").await });
    }
    let all_wait = async {
        while there.semel.waiting() < 20 {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, all_wait).await.unwrap();
    // The only connection of that process is free for others.
    let client = timeout(PATIENCE, there.pool.get()).await.unwrap().unwrap();
    client.query_one("SELECT 1", &[]).await.unwrap();
    drop(client);
    go.notify_one();
    assert!(matches!(run.await.unwrap().unwrap(), Outcome::Ran(_)));
    for outcome in tasks.join_all().await {
        assert!(matches!(&outcome, Outcome::Replayed(text) if text == "done"), "{outcome:?}");
    }
    assert_eq!(bench.entries().await, ["once"]);
}
