//! When a lease ends, and who comes after (laws 2, 4, 5 and 8).

use semel_core::{Claim, Fenced, Occupied, OnUnknown, Release, Standing};

use super::bench::{Bench, LEASE, TICK, answer, claim, rival, seconds};
use crate::with;

fn rerun(key: &str) -> Claim {
    with(claim(key), |it| it.on_unknown = OnUnknown::Rerun)
}

pub(crate) async fn a_lease_lives_to_its_last_millisecond(bench: &Bench) {
    let claim = rerun("last");
    bench.granted(&claim).await;
    bench.advance(LEASE).await;
    let rival = rival(&claim);
    let last = Occupied::InFlight { lease_left: seconds(0) };
    assert_eq!(bench.occupied(&rival).await, last);
    bench.advance(TICK).await;
    assert_eq!(bench.granted(&rival).await.attempt, 2);
}

pub(crate) async fn a_renewed_lease_outlives_its_first_end(bench: &Bench) {
    let claim = rerun("renewed");
    let grant = bench.granted(&claim).await;
    for _ in 0..3 {
        bench.advance(seconds(6)).await;
        assert_eq!(bench.renew(&claim.id, grant.fence, LEASE).await, Fenced::Applied);
        let left = bench.occupied(&rival(&claim)).await;
        assert_eq!(left, Occupied::InFlight { lease_left: LEASE });
    }
    let seen = bench.seen(&claim.id).await;
    assert_eq!((seen.age, seen.attempt), (seconds(18), 1));
    bench.advance(LEASE + TICK).await;
    assert_eq!(bench.granted(&rival(&claim)).await.attempt, 2);
}

pub(crate) async fn a_renewal_never_shortens_the_lease(bench: &Bench) {
    let claim = claim("short");
    let grant = bench.granted(&claim).await;
    bench.advance(seconds(1)).await;
    assert_eq!(bench.renew(&claim.id, grant.fence, seconds(2)).await, Fenced::Applied);
    let standing = bench.seen(&claim.id).await.standing;
    assert_eq!(standing, Standing::InFlight { lease_left: LEASE - seconds(1) });
}

pub(crate) async fn a_lease_shrinks_with_time(bench: &Bench) {
    let claim = claim("shrinks");
    bench.granted(&claim).await;
    let other = bench.another().await;
    for passed in 1..=10 {
        bench.advance(seconds(1)).await;
        let lease_left = LEASE - seconds(passed);
        assert_eq!(other.seen(&claim.id).await.standing, Standing::InFlight { lease_left });
        assert_eq!(bench.occupied(&rival(&claim)).await, Occupied::InFlight { lease_left });
    }
}

pub(crate) async fn a_takeover_shuts_the_old_owner_out(bench: &Bench) {
    let claim = rerun("zombie");
    let old = bench.granted(&claim).await;
    bench.advance(LEASE + TICK).await;
    let new = bench.another().await.granted(&rival(&claim)).await;
    assert!(new.fence > old.fence, "{new:?} after {old:?}");
    let id = &claim.id;
    let before = bench.seen(id).await;
    assert_eq!(bench.renew(id, old.fence, LEASE).await, Fenced::Lost);
    assert_eq!(bench.complete(id, old.fence, &answer("late")).await, Fenced::Lost);
    assert_eq!(bench.release(id, old.fence, Release::Rerun).await, Fenced::Lost);
    assert_eq!(bench.hold(id, old.fence).await, Fenced::Lost);
    assert_eq!(bench.seen(id).await, before);
    assert_eq!(bench.complete(id, new.fence, &answer("new")).await, Fenced::Applied);
    assert_eq!(bench.complete(id, old.fence, &answer("new")).await, Fenced::Lost);
}

pub(crate) async fn an_old_owner_that_asks_again_is_a_stranger(bench: &Bench) {
    let claim = rerun("stranger");
    bench.granted(&claim).await;
    bench.advance(LEASE + TICK).await;
    bench.granted(&rival(&claim)).await;
    let told = bench.occupied(&claim).await;
    assert_eq!(told, Occupied::InFlight { lease_left: LEASE });
}

pub(crate) async fn attempts_and_fences_rise_with_every_takeover(bench: &Bench) {
    let claim = rerun("again");
    let mut last = bench.granted(&claim).await;
    for attempt in 2..=6 {
        bench.advance(LEASE + TICK).await;
        let grant = bench.another().await.granted(&rival(&claim)).await;
        assert_eq!(grant.attempt, attempt);
        assert!(grant.fence > last.fence, "{grant:?} after {last:?}");
        last = grant;
    }
}

pub(crate) async fn the_record_decides_about_the_unknown_not_the_claimant(bench: &Bench) {
    let held = claim("held");
    let fence = bench.granted(&held).await.fence;
    bench.advance(LEASE + TICK).await;
    let eager = with(rival(&held), |it| it.on_unknown = OnUnknown::Rerun);
    assert_eq!(bench.occupied(&eager).await, Occupied::Held);
    // The claim has written what it saw: the lease does not come back.
    assert_eq!(bench.renew(&held.id, fence, LEASE).await, Fenced::Lost);

    let again = rerun("rerun");
    bench.granted(&again).await;
    bench.advance(LEASE + TICK).await;
    let careful = with(rival(&again), |it| it.on_unknown = OnUnknown::Hold);
    assert_eq!(bench.granted(&careful).await.attempt, 2);
}
