//! Several calls of one key at once: joining, waiting, taking over.

use std::sync::Arc;

use semel::{
    OnceError, OnceErrorKind, Outcome, Semel, Stop,
    core::{OnUnknown, Standing, StateName},
    once::Said,
};
use semel_testkit::unsteady::{Unsteady, Weather};
use tokio::{
    sync::Notify,
    task::JoinHandle,
    time::{sleep, timeout},
};

use super::{Bench, once, seconds};

type Told = Result<Outcome<u32>, OnceError>;

/// Fifty calls at once, of which the one that runs takes a second and ends as `end` says.
async fn crowd(bench: &Bench, rule: OnUnknown, end: fn(u32) -> Result<u32, Stop>) -> Vec<Told> {
    let calls: Vec<JoinHandle<Told>> = (0..50)
        .map(|_| {
            let runs = bench.runs.clone();
            tokio::spawn(bench.once("k").on_unknown(rule).run(move |_| async move {
                let run = runs.one_more();
                sleep(seconds(1)).await;
                end(run)
            }))
        })
        .collect();
    let mut told = Vec::new();
    for call in calls {
        told.push(call.await.unwrap());
    }
    assert_eq!(bench.runs.count(), 1);
    told
}

#[tokio::test(start_paused = true)]
async fn of_fifty_calls_one_runs_and_all_get_its_value() {
    let told = crowd(&Bench::new(), OnUnknown::Hold, Ok).await;
    let ran = told.iter().filter(|told| matches!(told, Ok(Outcome::Ran(1)))).count();
    let replayed = told.iter().filter(|told| matches!(told, Ok(Outcome::Replayed(1)))).count();
    assert_eq!((ran, replayed), (1, 49));
}

#[tokio::test(start_paused = true)]
async fn of_fifty_calls_one_is_refused_and_all_get_its_reason() {
    let told = crowd(&Bench::new(), OnUnknown::Hold, |_| Err(Stop::refused("closed"))).await;
    let mut replayed = 0;
    for told in told {
        let Ok(Outcome::Refused(refusal)) = told else { panic!("{told:?}") };
        assert_eq!(refusal.read::<String>().unwrap(), "closed");
        replayed += u32::from(refusal.replayed());
    }
    assert_eq!(replayed, 49);
}

#[tokio::test(start_paused = true)]
async fn of_fifty_calls_one_says_retry_and_all_are_told() {
    let bench = Bench::new();
    let told = crowd(&bench, OnUnknown::Hold, |_| Err(Stop::retry("bank closed"))).await;
    for told in told {
        let Ok(Outcome::Retry(reason)) = told else { panic!("{told:?}") };
        assert_eq!(reason.to_string(), "bank closed");
    }
    assert_eq!(bench.record("k").await.unwrap().standing.name(), StateName::Released);
}

#[tokio::test(start_paused = true)]
async fn of_fifty_calls_one_ends_unknown_and_all_are_told() {
    let bench = Bench::new();
    let told = crowd(&bench, OnUnknown::Hold, |_| Err(Stop::unknown("line dead"))).await;
    let mut ran = 0;
    for told in told {
        let Ok(Outcome::Unknown(unknown)) = told else { panic!("{told:?}") };
        assert_eq!(unknown.to_string(), "line dead");
        ran += u32::from(unknown.ran());
    }
    assert_eq!(ran, 1);
    assert_eq!(bench.record("k").await.unwrap().standing, Standing::Held);
}

#[tokio::test(start_paused = true)]
async fn of_fifty_calls_one_panics_and_all_are_told() {
    for rule in [OnUnknown::Hold, OnUnknown::Fail] {
        let mut failed = 0;
        for told in crowd(&Bench::new(), rule, |_| panic!("on purpose")).await {
            match told {
                Ok(Outcome::Unknown(unknown)) => {
                    assert_eq!(unknown.to_string(), "the operation panicked");
                }
                Err(error) if error.kind() == OnceErrorKind::Failed => failed += 1,
                other => panic!("{other:?}"),
            }
        }
        // Every waiter gets the recorded failure.
        assert_eq!(failed, if rule == OnUnknown::Fail { 50 } else { 0 });
    }
}

#[tokio::test(start_paused = true)]
async fn who_joins_says_nothing_by_a_policy_that_is_not_the_owners() {
    const RULES: [OnUnknown; 3] = [OnUnknown::Hold, OnUnknown::Rerun, OnUnknown::Fail];
    for (owner, joiner) in RULES.iter().flat_map(|owner| RULES.map(|joiner| (*owner, joiner))) {
        for panics in [false, true] {
            let bench = Bench::new();
            let call = |rule| {
                tokio::spawn(bench.once("k").on_unknown(rule).run(move |_| async move {
                    sleep(seconds(1)).await;
                    assert!(!panics, "on purpose");
                    Err::<u32, _>(Stop::unknown("line dead"))
                }))
            };
            let (first, second) = (call(owner), call(joiner));
            let (_, told) = (first.await.unwrap(), second.await.unwrap());
            match told {
                Ok(Outcome::Unknown(unknown)) => {
                    assert_eq!((unknown.ran(), unknown.runs_again()), (false, None));
                    assert_ne!(owner, OnUnknown::Fail);
                }
                // Then the failure is what the owner has recorded.
                Err(error) => {
                    assert_eq!((error.kind(), owner), (OnceErrorKind::Failed, OnUnknown::Fail));
                }
                other => panic!("{other:?}"),
            }
            let state = bench.record("k").await.unwrap().standing.name();
            assert_eq!(state == StateName::Completed, owner == OnUnknown::Fail);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn of_fifty_calls_one_fails_for_good_and_all_get_the_failure() {
    let told = crowd(&Bench::new(), OnUnknown::Fail, |_| Err(Stop::unknown("line dead"))).await;
    for told in told {
        assert_eq!(told.unwrap_err().kind(), OnceErrorKind::Failed);
    }
}

#[tokio::test(start_paused = true)]
async fn another_meaning_is_reused_at_once_while_the_first_runs() {
    let bench = Bench::new();
    let first = bench.once("k").fingerprint(&1).run(|_| async {
        sleep(seconds(5)).await;
        Ok(1_u32)
    });
    let first = tokio::spawn(first);
    sleep(seconds(1)).await;
    let second = bench.once("k").fingerprint(&2).run(|_| async { Ok(2_u32) });
    let second = timeout(seconds(1), second).await.expect("answered at once");
    assert!(matches!(second, Ok(Outcome::Reused)), "{second:?}");
    assert!(matches!(first.await.unwrap(), Ok(Outcome::Ran(1))));
}

#[tokio::test(start_paused = true)]
async fn a_call_elsewhere_waits_for_the_value_or_gives_up() {
    let bench = Bench::new();
    let runs = bench.runs.clone();
    let first = tokio::spawn(bench.once("k").run(move |_| async move {
        let run = runs.one_more();
        sleep(seconds(5)).await;
        Ok(run)
    }));
    sleep(seconds(1)).await;
    let elsewhere = bench.elsewhere();
    let call = |wait| {
        let runs = bench.runs.clone();
        once(&elsewhere, "k").wait(seconds(wait)).run(move |_| async move { Ok(runs.one_more()) })
    };
    assert!(matches!(call(0).await, Ok(Outcome::InProgress)));
    assert!(matches!(call(2).await, Ok(Outcome::InProgress)));
    assert!(matches!(call(10).await, Ok(Outcome::Replayed(1))));
    assert!(matches!(first.await.unwrap(), Ok(Outcome::Ran(1))));
    assert_eq!(bench.runs.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn dropping_the_call_changes_nothing_about_the_execution() {
    let bench = Bench::new();
    let call = || {
        let runs = bench.runs.clone();
        bench.once("k").run(move |_| async move {
            let run = runs.one_more();
            sleep(seconds(5)).await;
            Ok(run)
        })
    };
    assert!(timeout(seconds(1), call()).await.is_err());
    assert!(matches!(call().await, Ok(Outcome::Replayed(1))));
    assert_eq!(bench.runs.count(), 1);
}

/// A run whose process is cut off from the store for longer than its lease, until `wake`.
fn zombie(
    bench: &Bench,
    way: &Unsteady,
    wake: &Arc<Notify>,
    end: fn(u32) -> Result<u32, Stop>,
) -> JoinHandle<Told> {
    let (runs, wake) = (bench.runs.clone(), Arc::clone(wake));
    let cut_off = Semel::new(way.clone());
    tokio::spawn(once(&cut_off, "k").on_unknown(OnUnknown::Rerun).lease(seconds(9)).run(
        move |_| async move {
            let run = runs.one_more();
            wake.notified().await;
            end(run)
        },
    ))
}

/// What a zombie is told that ends as `end` says after another run gave 2.
async fn outrun(bench: &Bench, end: fn(u32) -> Result<u32, Stop>) -> Told {
    let (way, wake) = (Unsteady::new(bench.store.clone()), Arc::new(Notify::new()));
    let zombie = zombie(bench, &way, &wake, end);
    sleep(seconds(1)).await;
    way.set_all(Weather::Away);
    sleep(seconds(20)).await;

    let (runs, elsewhere) = (bench.runs.clone(), bench.elsewhere());
    let second = once(&elsewhere, "k").on_unknown(OnUnknown::Rerun);
    let second = second.run(|_| async move { Ok(runs.one_more()) }).await;
    assert!(matches!(second, Ok(Outcome::Ran(2))), "{second:?}");

    way.set_all(Weather::Fair);
    wake.notify_one();
    zombie.await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_zombie_is_told_what_the_record_says_by_then() {
    let bench = Bench::new();
    let told = outrun(&bench, Ok).await;
    let Ok(Outcome::Lost(lost)) = told else { panic!("{told:?}") };
    assert_eq!(lost.mine().value(), Some(&1));
    assert!(matches!(lost.now(), Ok(Outcome::Replayed(2))), "{lost:?}");
    let third = once(&bench.elsewhere(), "k").run(|_| async { Ok(3_u32) }).await;
    assert!(matches!(third, Ok(Outcome::Replayed(2))), "{third:?}");
    assert_eq!(bench.runs.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_zombie_keeps_what_it_said_so_that_it_is_known_what_to_undo() {
    let told = outrun(&Bench::new(), |_| Err(Stop::retry("bank closed"))).await;
    // Its own run did nothing, whichever owner the record has by now.
    assert!(matches!(told, Ok(Outcome::Retry(_))), "{told:?}");

    let told = outrun(&Bench::new(), |_| Err(Stop::refused("declined"))).await;
    let Ok(Outcome::Lost(lost)) = told else { panic!("{told:?}") };
    let Said::Refused(refusal) = lost.mine() else { panic!("{lost:?}") };
    assert_eq!(refusal.read::<String>().unwrap(), "declined");

    let told = outrun(&Bench::new(), |_| Err(Stop::unknown("line dead"))).await;
    let Ok(Outcome::Lost(lost)) = told else { panic!("{told:?}") };
    assert!(matches!(lost.mine(), Said::Unknown(reason) if reason.to_string() == "line dead"));

    let told = outrun(&Bench::new(), |_| panic!("on purpose")).await;
    let Ok(Outcome::Lost(lost)) = told else { panic!("{told:?}") };
    assert!(matches!(lost.mine(), Said::Unknown(_)), "{lost:?}");
}

#[tokio::test(start_paused = true)]
async fn a_zombie_is_told_that_somebody_runs_it_or_that_nothing_is_known() {
    for (end, nothing_known) in [(None, false), (Some(Stop::retry("bank closed")), true)] {
        let bench = Bench::new();
        let (way, wake) = (Unsteady::new(bench.store.clone()), Arc::new(Notify::new()));
        let zombie = zombie(&bench, &way, &wake, Ok);
        sleep(seconds(1)).await;
        way.set_all(Weather::Away);
        sleep(seconds(20)).await;

        let elsewhere = bench.elsewhere();
        let second = once(&elsewhere, "k").on_unknown(OnUnknown::Rerun);
        let second = tokio::spawn(second.run(|_| async move {
            if let Some(stop) = end {
                return Err::<u32, _>(stop);
            }
            std::future::pending().await
        }));
        sleep(seconds(1)).await;

        // By its next renewal it learns that it is one.
        way.set_all(Weather::Fair);
        sleep(seconds(5)).await;
        wake.notify_one();
        let told = zombie.await.unwrap();
        let Ok(Outcome::Lost(lost)) = told else { panic!("{told:?}") };
        assert_eq!(lost.mine().value(), Some(&1));
        match lost.now() {
            Ok(Outcome::InProgress) => assert!(!nothing_known),
            Ok(Outcome::Unknown(unknown)) => {
                assert!(nothing_known && !unknown.ran());
                assert_eq!(unknown.runs_again(), None);
            }
            other => panic!("{other:?}"),
        }
        second.abort();
    }
}
