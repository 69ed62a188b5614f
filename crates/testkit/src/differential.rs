//! Histories drawn at random, played on a store and on the rules: both must tell the same.
//!
//! A store that restates the rules (in SQL, say) is compared with them here, operation by
//! operation. One fixture serves many histories, since making one may be slow: each history has a
//! scope of its own, and the clock only moves forward.
//!
//! Two stores number their fences differently. A history names a fence by how it came about, and
//! the numbers of both sides are paired when they are first seen.
//!
//! A difference is shown with the seed of the histories that led to it; with that number in
//! `SEMEL_SEED` they are played again, first of all.

mod history;
mod model;
mod pairs;
mod play;

use std::sync::atomic::{AtomicU64, Ordering};

use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use tokio::runtime;

use crate::fixture::Fixture;
use history::{RandomHistory, histories};
use play::Player;

/// How many histories the short edition of a test plays.
pub const HISTORIES: u32 = 2_000;
/// How many the long one plays.
const HISTORIES_TORTURE: u32 = 100_000;

/// How many histories one fixture serves. What they leave behind is what a store in use looks like,
/// but a store that looks at every record must not slow the rest down.
const HISTORIES_PER_FIXTURE: u32 = 200;

/// Plays histories on a store and on the rules. `histories` is how many in the short edition; where
/// `SEMEL_TORTURE` is set, 100,000.
///
/// # Panics
///
/// With the shortest history found on which the two differ, and how to repeat it.
pub fn differential<F: Fixture>(make: impl AsyncFn() -> F, histories: u32) {
    let mut left = if crate::torture() { HISTORIES_TORTURE } else { histories };
    let mut seed = crate::seed();
    while left > 0 {
        let count = left.min(HISTORIES_PER_FIXTURE);
        if let Some(difference) = find_difference(&make, count, seed) {
            panic!("{difference}");
        }
        left -= count;
        seed = seed.wrapping_add(1);
    }
}

/// The shortest history found on which a store differs from the rules, of `count` that the seed
/// determines, on one fixture.
pub fn find_difference<F: Fixture>(
    make: impl AsyncFn() -> F,
    count: u32,
    seed: u64,
) -> Option<String> {
    let runtime = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let (fixture, first, second) = runtime.block_on(Box::pin(async {
        let fixture = make().await;
        let (first, second) = (fixture.store(), fixture.another().await);
        (fixture, first, second)
    }));
    let played = AtomicU64::new(0);
    let config = Config { cases: count, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, rng(seed));
    let found = runner.run(&histories(), |history: RandomHistory| {
        let number = played.fetch_add(1, Ordering::Relaxed);
        let mut player = Player::new(number, &fixture, [&first, &second]);
        runtime.block_on(player.play(&history)).map_err(TestCaseError::fail)
    });
    // The stores end where their tasks live.
    let _inside = runtime.enter();
    drop((first, second, fixture));
    found.err().map(|difference| format!("{difference}\nrepeat it with SEMEL_SEED={seed}"))
}

fn rng(seed: u64) -> TestRng {
    let mut bytes = [0; 32];
    bytes.iter_mut().zip(seed.to_le_bytes()).for_each(|(slot, byte)| *slot = byte);
    TestRng::from_seed(RngAlgorithm::ChaCha, &bytes)
}

/// The test `torture_histories_agree_with_the_rules`. The expression makes a [`Fixture`] and may
/// await; a number after it says how many histories the short edition plays.
#[macro_export]
macro_rules! torture_histories {
    ($make:expr) => {
        $crate::torture_histories!($make, $crate::differential::HISTORIES);
    };
    ($make:expr, $histories:expr) => {
        #[test]
        fn torture_histories_agree_with_the_rules() {
            $crate::differential::differential(async || $make, $histories);
        }
    };
}
