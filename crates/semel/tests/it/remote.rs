//! Operations that run in another process, by calls that may be lost and repeated.

use std::{
    future::{pending, ready},
    time::Duration,
};

use semel::{
    Lease, OnUnknown, RemoteClaim, RemoteFinish,
    core::{
        Answer, Claimant, Fenced, Finish, Grant, OwnerToken, Problem, Reason, Release, StateView,
        Store, StoreErrorKind,
    },
};
use semel_testkit::flaky_store::{FlakyStore, StoreCall, StoreCondition};

use crate::harness::{Harness, completed, id, memory, sleep_for, text};

fn owner(number: u8) -> OwnerToken {
    OwnerToken::from_bytes([number; 16])
}

fn by(grant: Grant, number: u8) -> Claimant {
    Claimant::new(grant.fence, owner(number))
}

fn uncounted() -> Finish {
    Finish::release(Release::NotSent, Reason::NotSent)
}

fn counted() -> Finish {
    Finish::release(Release::Rerun, Reason::text("try again"))
}

impl Harness {
    async fn claim(&self, key: &str, number: u8) -> RemoteClaim {
        self.semel.remote_claim(self.operation(key, 1), owner(number), pending()).await
    }

    async fn granted(&self, key: &str, number: u8) -> Grant {
        let claimed = self.claim(key, number).await;
        let RemoteClaim::Execute(grant) = claimed else { panic!("{claimed:?}") };
        grant
    }

    async fn finish(&self, key: &str, by: Claimant, finish: &Finish) -> RemoteFinish {
        self.semel.remote_finish(&id(key), by, finish).await.unwrap()
    }

    fn without_wait(mut self) -> Self {
        self.policy.wait = Duration::ZERO;
        self
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_completed_and_replayed_by_another_process() {
    let here = Harness::new();
    let there = here.second_process();
    let grant = here.granted("k", 1).await;
    assert_eq!(grant.attempt, 1);
    let finish = Finish::complete(text("done"));
    assert_eq!(there.finish("k", by(grant, 1), &finish).await, RemoteFinish::Applied);
    for process in [&here, &there] {
        assert_eq!(process.claim("k", 2).await, RemoteClaim::Replayed(text("done")));
    }
    let reused = here.semel.remote_claim(here.operation("k", 2), owner(3), pending()).await;
    assert_eq!(reused, RemoteClaim::Refused(Problem::KeyReused));
}

#[tokio::test(start_paused = true)]
async fn a_repeated_claim_has_the_same_fence_and_counts_no_attempt() {
    let here = Harness::new().without_wait();
    let first = here.granted("k", 1).await;
    assert_eq!(here.granted("k", 1).await, first);
    assert_eq!(here.second_process().granted("k", 1).await, first);
    assert_eq!(here.claim("k", 2).await, RemoteClaim::Refused(Problem::InProgress));
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_reply_the_store_lost_is_not_given_back() {
    let here = Harness::new();
    here.store.set(StoreCall::Claim, StoreCondition::ReplyLost);
    let refused = RemoteClaim::Refused(Problem::StoreUnavailable);
    assert_eq!(here.claim("k", 1).await, refused);
    here.store.set(StoreCall::Claim, StoreCondition::Available);
    sleep_for(Duration::from_secs(1)).await;
    // The owner asks again, and has its claim while anything that could end it has had its time.
    let grant = here.granted("k", 1).await;
    sleep_for(Duration::from_secs(20)).await;
    assert_eq!(here.store.count(StoreCall::Finish), 0);
    let finish = Finish::complete(text("done"));
    assert_eq!(here.finish("k", by(grant, 1), &finish).await, RemoteFinish::Applied);
    assert_eq!((grant.attempt, here.fence("k").await), (1, grant.fence));
}

#[tokio::test(start_paused = true)]
async fn a_waiter_gets_the_result_and_never_becomes_an_owner() {
    let here = Harness::new();
    let there = here.second_process();
    let grant = here.granted("k", 1).await;
    let complete = Finish::complete(text("done"));
    let (waited, finished) = tokio::join!(there.claim("k", 2), async {
        sleep_for(Duration::from_secs(3)).await;
        here.finish("k", by(grant, 1), &complete).await
    });
    assert_eq!(finished, RemoteFinish::Applied);
    assert_eq!(waited, RemoteClaim::Replayed(text("done")));

    let grant = here.granted("other", 1).await;
    let (waited, _) = tokio::join!(there.claim("other", 2), async {
        sleep_for(Duration::from_secs(3)).await;
        here.finish("other", by(grant, 1), &counted()).await
    });
    assert_eq!(waited, RemoteClaim::Refused(Problem::InProgress));
    assert_eq!(there.granted("other", 2).await.attempt, 2);
}

#[tokio::test(start_paused = true)]
async fn a_wait_can_be_ended_and_a_grant_cannot() {
    let here = Harness::new();
    let claim = |number| here.semel.remote_claim(here.operation("k", 1), owner(number), ready(()));
    here.store.set(StoreCall::Claim, StoreCondition::ReplyDelayed);
    let (granted, ()) = tokio::join!(claim(1), async {
        sleep_for(Duration::from_millis(500)).await;
        here.store.set(StoreCall::Claim, StoreCondition::Available);
    });
    assert!(matches!(granted, RemoteClaim::Execute(_)), "{granted:?}");
    let began = tokio::time::Instant::now();
    assert_eq!(claim(2).await, RemoteClaim::Refused(Problem::InProgress));
    assert_eq!((began.elapsed(), here.semel.waiting()), (Duration::ZERO, 0));
}

#[tokio::test(start_paused = true)]
async fn a_zombie_changes_nothing() {
    let here = Harness::new().on_unknown(OnUnknown::Rerun).without_wait();
    let first = here.granted("k", 1).await;
    sleep_for(here.policy.lease * 2).await;
    let second = here.granted("k", 2).await;
    assert!(second.fence > first.fence && second.attempt == 2);
    let complete = Finish::complete(text("late"));
    assert_eq!(here.finish("k", by(first, 1), &complete).await, RemoteFinish::Lost);
    assert_eq!(here.finish("k", by(first, 1), &counted()).await, RemoteFinish::Lost);
    let renewed = here.semel.remote_renew(&id("k"), by(first, 1), here.policy.lease).await;
    assert_eq!(renewed.unwrap(), Fenced::Lost);
    // The fence of one owner with the token of the other.
    assert_eq!(here.finish("k", by(second, 1), &complete).await, RemoteFinish::Lost);
    let complete = Finish::complete(text("right"));
    assert_eq!(here.finish("k", by(second, 2), &complete).await, RemoteFinish::Applied);
    assert_eq!(here.claim("k", 1).await, RemoteClaim::Replayed(text("right")));
}

#[tokio::test(start_paused = true)]
async fn a_renewed_lease_does_not_expire_and_a_held_record_takes_the_late_result() {
    let here = Harness::new().without_wait();
    let grant = here.granted("k", 1).await;
    for _ in 0..4 {
        sleep_for(here.policy.lease / 2).await;
        let renewed = here.semel.remote_renew(&id("k"), by(grant, 1), here.policy.lease).await;
        assert_eq!(renewed.unwrap(), Fenced::Applied);
    }
    assert_eq!(here.claim("k", 2).await, RemoteClaim::Refused(Problem::InProgress));
    sleep_for(here.policy.lease * 2).await;
    assert_eq!(here.claim("k", 2).await, RemoteClaim::Refused(Problem::OutcomeUnknown));
    let renewed = here.semel.remote_renew(&id("k"), by(grant, 1), here.policy.lease).await;
    assert_eq!(renewed.unwrap(), Fenced::Lost);
    let finish = Finish::complete(text("late truth"));
    assert_eq!(here.finish("k", by(grant, 1), &finish).await, RemoteFinish::Applied);
    assert_eq!(here.claim("k", 2).await, RemoteClaim::Replayed(text("late truth")));
}

#[tokio::test(start_paused = true)]
async fn a_repeated_end_is_applied_and_another_one_is_not() {
    let here = Harness::new();
    let grant = here.granted("k", 1).await;
    let (one, two) = (Finish::complete(text("one")), Finish::complete(text("two")));
    here.store.set(StoreCall::Finish, StoreCondition::ReplyLost);
    let lost = here.semel.remote_finish(&id("k"), by(grant, 1), &one).await;
    assert_eq!(lost.unwrap_err().kind(), StoreErrorKind::Unavailable);
    here.store.set(StoreCall::Finish, StoreCondition::Available);
    assert_eq!(here.finish("k", by(grant, 1), &one).await, RemoteFinish::Applied);
    assert_eq!(here.finish("k", by(grant, 1), &two).await, RemoteFinish::Differs);
    assert_eq!(here.finish("k", by(grant, 1), &counted()).await, RemoteFinish::Lost);
    assert_eq!(here.claim("k", 2).await, RemoteClaim::Replayed(text("one")));

    let hold = Finish::hold(Reason::text("the bank did not answer"));
    for finish in [counted(), uncounted(), hold] {
        let key = format!("{:?}", finish.action).replace(' ', "");
        let grant = here.granted(&key, 1).await;
        for _ in 0..2 {
            assert_eq!(here.finish(&key, by(grant, 1), &finish).await, RemoteFinish::Applied);
        }
        let held = here.state(&key).await.unwrap() == StateView::Held;
        let late = here.finish(&key, by(grant, 1), &one).await;
        assert_eq!(late, if held { RemoteFinish::Applied } else { RemoteFinish::Lost });
    }
}

#[tokio::test(start_paused = true)]
async fn a_released_attempt_is_over_and_counts_only_if_it_says_so() {
    let here = Harness::new();
    let first = here.granted("k", 1).await;
    assert_eq!(here.finish("k", by(first, 1), &uncounted()).await, RemoteFinish::Applied);
    assert_eq!(here.claim("k", 1).await, RemoteClaim::Ended);
    let second = here.granted("k", 2).await;
    assert_eq!(second.attempt, 1);
    assert_eq!(here.finish("k", by(second, 2), &counted()).await, RemoteFinish::Applied);
    assert_eq!(here.claim("k", 2).await, RemoteClaim::Ended);
    let third = here.granted("k", 3).await;
    assert!(third.attempt == 2 && third.fence > second.fence && second.fence > first.fence);
}

#[tokio::test(start_paused = true)]
async fn a_repeat_of_a_claim_whose_lease_has_ended_can_be_given_back() {
    let here = Harness::new().without_wait();
    let held = RemoteClaim::Refused(Problem::OutcomeUnknown);
    let first = here.granted("k", 1).await;
    sleep_for(here.policy.lease * 2).await;
    // Alone, and after another claim has found the record lapsed.
    assert_eq!(here.claim("k", 1).await, RemoteClaim::Lapsed(first));
    assert_eq!(here.claim("k", 2).await, held);
    assert_eq!(here.second_process().claim("k", 1).await, RemoteClaim::Lapsed(first));
    assert_eq!(here.state("k").await, Some(StateView::Held));
    // Nothing was begun: the key is free.
    assert_eq!(here.finish("k", by(first, 1), &uncounted()).await, RemoteFinish::Applied);
    assert_eq!(here.claim("k", 1).await, RemoteClaim::Ended);
    let second = here.granted("k", 2).await;
    assert_eq!(second.attempt, 1);

    // What its owner has held is held.
    let unknown = Finish::hold(Reason::text("the bank did not answer"));
    assert_eq!(here.finish("k", by(second, 2), &unknown).await, RemoteFinish::Applied);
    assert_eq!(here.claim("k", 2).await, held);
}

#[tokio::test(start_paused = true)]
async fn a_lapsed_claim_is_repeated_until_the_store_says_whose_it_is() {
    let here = Harness::new().without_wait();
    let first = here.granted("k", 1).await;
    sleep_for(here.policy.lease * 2).await;
    for call in [StoreCall::Get, StoreCall::Finish] {
        here.store.set(call, StoreCondition::ReplyLost);
        let refused = RemoteClaim::Refused(Problem::StoreUnavailable);
        assert_eq!(here.claim("k", 1).await, refused, "{call:?}");
        here.store.set(call, StoreCondition::Available);
        sleep_for(Duration::from_secs(1)).await;
    }
    assert_eq!(here.claim("k", 1).await, RemoteClaim::Lapsed(first));
}

#[tokio::test(start_paused = true)]
async fn a_lapsed_claim_under_fail_is_lost_and_not_a_differing_result() {
    let here = Harness::new().on_unknown(OnUnknown::Fail);
    let grant = here.granted("k", 1).await;
    sleep_for(here.policy.lease * 2).await;
    let refused = RemoteClaim::Replayed(Answer::failed());
    assert_eq!(here.claim("k", 2).await, refused);
    let finish = Finish::complete(text("late"));
    assert_eq!(here.finish("k", by(grant, 1), &finish).await, RemoteFinish::Lost);
}

#[tokio::test(start_paused = true)]
async fn claims_are_bounded_and_keep_no_permit_while_they_run() {
    let here = Harness::on(FlakyStore::new(memory()), |builder| {
        builder.in_flight_max(1).waiting_max(1).per_caller_max(2)
    });
    for number in 0..5 {
        here.granted(&format!("k{number}"), 1).await;
    }
    assert_eq!((here.semel.in_flight(), here.semel.waiting()), (0, 0));
    let waiting = here.claim("k0", 2);
    let second = async {
        sleep_for(Duration::from_secs(1)).await;
        assert_eq!(here.semel.waiting(), 1);
        here.claim("k1", 2).await
    };
    let (first, second) = tokio::join!(waiting, second);
    assert_eq!(first, RemoteClaim::Refused(Problem::InProgress));
    assert_eq!(second, RemoteClaim::Refused(Problem::TooManyInFlight));
}

#[tokio::test(start_paused = true)]
async fn a_remote_claim_and_a_local_operation_exclude_each_other() {
    let here = Harness::new().without_wait();
    let grant = here.granted("k", 1).await;
    let reply = here.answer("k", "local").await;
    assert_eq!((format!("{reply:?}").contains("InProgress"), here.runs()), (true, 0));
    let finish = Finish::complete(text("remote"));
    assert_eq!(here.finish("k", by(grant, 1), &finish).await, RemoteFinish::Applied);
    let _ = here.answer("k", "local").await;
    assert_eq!(here.runs(), 0);
    let _ = here.begin("other", |_: Lease| async { completed("local") }).await;
    assert_eq!(here.claim("other", 1).await, RemoteClaim::Replayed(text("local")));
    assert!(here.store.get(&id("k")).await.unwrap().is_some());
}
