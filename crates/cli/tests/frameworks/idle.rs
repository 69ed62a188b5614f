//! Pauses about as long as the servers keep an idle connection.
//!
//! A server closes a connection that has been idle for its keep-alive time, and a request that is
//! sent into the closing has an unknown outcome: its key would be held. So the gateway drops idle
//! connections before common servers do, and looks for the end of a connection before it uses it.
//!
//! What no proxy can see is a server that has decided to close and has not done so yet. Where the
//! gateway gets no hint that the keep-alive time is shorter than its `pool_idle`, that moment is
//! left. An answer may say in it that the outcome is unknown; it is never a second execution.

use std::{
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use semel_testkit::torture;

use crate::{
    app::{App, Framework},
    common::TestResponse,
    gateway::Gateway,
    http::Connection,
};

/// Requests at once, so that as many connections to the server are idle afterwards.
const LANES: usize = 4;

/// What the app takes for each charge, and is not idle.
const CHARGE: Duration = Duration::from_millis(100);

/// How near to the keep-alive time the server may be about to close. The machine may be busy.
const MOMENT: Duration = Duration::from_millis(250);

/// A keep-alive time that is shorter than the gateway expects.
const SHORT: Duration = Duration::from_secs(1);

#[test]
fn no_pause_holds_a_key_of_fastapi_torture() {
    no_pause_holds_a_key(Framework::FastApi);
}

#[test]
fn no_pause_holds_a_key_of_express_torture() {
    no_pause_holds_a_key(Framework::Express);
}

fn no_pause_holds_a_key(framework: Framework) {
    let start = |keep_alive| App::start(framework, keep_alive);
    let Some(usual) = start(None) else { return };
    let Some(hinted) = start(Some(SHORT)) else { return };
    let Some(unhinted) = start(Some(SHORT)) else { return };
    thread::scope(|scope| {
        scope.spawn(|| usual_keep_alive(&usual));
        scope.spawn(|| short_keep_alive(&hinted));
        scope.spawn(|| short_keep_alive_without_hint(&unhinted));
    });
}

/// Five seconds in both servers, and four in the gateway. The long edition has a real idle minute.
fn usual_keep_alive(app: &App) {
    let mut pauses = vec![3_900, 5_000, 6_000];
    if torture() {
        pauses.push(60_000);
        pauses.extend([3_990, 4_000, 4_010, 4_900, 4_990, 5_000, 5_010, 5_100].repeat(10));
    }
    every_outcome_is_known(Shop::open(app, None), &pauses);
}

/// One second in the server, and half of it in the gateway.
fn short_keep_alive(app: &App) {
    every_outcome_is_known(Shop::open(app, Some(SHORT / 2)), &around_the_short_one());
}

fn every_outcome_is_known(mut shop: Shop<'_>, pauses: &[u64]) {
    for pause in pauses {
        let Burst { unknown, .. } = shop.charge_after(*pause);
        assert!(unknown.is_empty(), "after {pause} ms: {unknown:?}");
    }
    assert_eq!(shop.never_charged(), 0);
}

/// One second in the server, of which the gateway learns by its answers (Express says
/// `Keep-Alive: timeout=1`), or when it looks.
fn short_keep_alive_without_hint(app: &App) {
    let mut shop = Shop::open(app, None);
    let mut unknown_all = 0;
    for pause in around_the_short_one() {
        let Burst { idle_min, idle_max, unknown } = shop.charge_after(pause);
        let at_the_limit = idle_max + MOMENT > SHORT && idle_min < SHORT + MOMENT;
        assert!(at_the_limit || unknown.is_empty(), "after {pause} ms: {unknown:?}");
        unknown_all += unknown.len();
    }
    let (never, keys) = (shop.never_charged(), shop.keys);
    assert!(never <= unknown_all, "{never} never charged, {unknown_all} unknown");
    let framework = app.framework();
    println!("{framework:?}: {unknown_all} of {keys} keys unknown, {never} of them never charged");
}

fn around_the_short_one() -> Vec<u64> {
    if torture() {
        [700, 950, 990, 995, 998, 1_000, 1_002, 1_005, 1_010, 1_400].repeat(30)
    } else {
        vec![400, 600, 980, 1_000, 1_020, 1_300, 1_500]
    }
}

/// A gateway before an app, and when they were last used.
struct Shop<'a> {
    app: &'a App,
    gateway: Gateway,
    keys: usize,
    began: Instant,
    ended: Instant,
}

/// What became of some charges at once.
struct Burst {
    /// The connections to the server were idle for at least so long before.
    idle_min: Duration,
    /// And at most so long.
    idle_max: Duration,
    /// The answers that were no success. All say that the outcome is unknown.
    unknown: Vec<TestResponse>,
}

impl<'a> Shop<'a> {
    /// Ready, with connections that were used just now.
    fn open(app: &'a App, pool_idle: Option<Duration>) -> Self {
        let gateway = Gateway::of_one_thread_before(app, pool_idle);
        let mut shop = Self { app, gateway, keys: 0, began: now(), ended: now() };
        assert!(shop.charge().unknown.is_empty());
        shop
    }

    /// Some charges at once, each under a new key.
    fn charge(&mut self) -> Burst {
        let address = self.gateway.address();
        let keys = self.keys..self.keys + LANES;
        self.keys = keys.end;
        let began = now();
        let answers: Vec<TestResponse> = thread::scope(|scope| {
            let lane = |number| scope.spawn(move || charge(address, number));
            let lanes: Vec<_> = keys.map(lane).collect();
            lanes.into_iter().map(|lane| lane.join().unwrap()).collect()
        });
        let ended = now();
        let idle_min = began - self.ended;
        let idle_max = (ended - self.began).saturating_sub(CHARGE * 2);
        (self.began, self.ended) = (began, ended);
        let unknown: Vec<TestResponse> =
            answers.into_iter().filter(|answer| answer.status != 201).collect();
        for answer in &unknown {
            assert_eq!(answer.status, 504, "{answer:?}");
        }
        Burst { idle_min, idle_max, unknown }
    }

    /// The same, so many milliseconds after the last answer.
    fn charge_after(&mut self, milliseconds: u64) -> Burst {
        let pause = Duration::from_millis(milliseconds);
        thread::sleep(pause.saturating_sub(now() - self.ended));
        self.charge()
    }

    /// How many keys were never executed. None may have been so twice.
    fn never_charged(&self) -> usize {
        let charges = self.app.charges();
        assert!(charges.values().all(|times| *times == 1), "{charges:?}");
        self.keys - charges.len()
    }
}

fn charge(gateway: SocketAddr, number: usize) -> TestResponse {
    Connection::open(gateway).charge(&format!("key-{number}"), number).unwrap()
}

#[expect(clippy::disallowed_methods, reason = "the test is about how long a pause was")]
fn now() -> Instant {
    Instant::now()
}
