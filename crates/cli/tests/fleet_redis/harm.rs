//! What happens to Redis, drawn from a seed.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use semel_testkit::servers::{Redis, RedisSnapshot};

/// Harms Redis in every way, again and again, and leaves it in order. How often it did.
#[expect(clippy::disallowed_methods, reason = "a thread of its own, and real time")]
pub(crate) fn harm(redis: &mut Redis, seed: u64, time: Duration) -> u32 {
    let end = Instant::now() + time;
    let (mut random, mut harmed) = (seed, 0);
    let mut snapshot: RedisSnapshot = redis.snapshot();
    while Instant::now() < end {
        match draw(&mut random) % 5 {
            0 => {
                redis.kill();
                sleep(Duration::from_millis(draw(&mut random) % 600));
                redis.start_again();
            }
            1 => {
                redis.pause();
                sleep(Duration::from_millis(draw(&mut random) % 1500));
                redis.resume();
            }
            2 => redis.flush(),
            3 => snapshot = redis.snapshot(),
            _ => redis.restore(&snapshot),
        }
        harmed += 1;
        sleep(Duration::from_millis(draw(&mut random) % 400));
    }
    harmed
}

/// The next number of `SplitMix64`.
fn draw(random: &mut u64) -> u64 {
    *random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*random ^ (*random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
