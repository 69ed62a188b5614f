//! Sessions in memory, the tokens of forms, and the throttle of sign-ins. All are bounded.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::Context as _;
use aws_lc_rs::hmac;
use data_encoding::HEXLOWER;
use semel_config::ApiRole;
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

/// Maximum number of sessions. A new one replaces the one that was used longest ago.
const SESSIONS_MAX: usize = 256;

/// A session ends when it was unused for this long, and in any case after `SESSION_AGE_MAX`.
const SESSION_IDLE_MAX: Duration = Duration::from_secs(60 * 60);
const SESSION_AGE_MAX: Duration = Duration::from_secs(12 * 60 * 60);

/// Failed sign-ins of one address per `THROTTLE_WINDOW`, after which it has to wait.
const FAILURES_MAX: u32 = 10;
const THROTTLE_WINDOW: Duration = Duration::from_secs(60);

/// Maximum number of addresses that the throttle remembers.
const ADDRESSES_MAX: usize = 1024;

/// A user who signed in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UserSession {
    /// The name that the user gave; empty if none.
    pub(super) user: String,
    /// The name of the token that proved the role.
    pub(super) token: String,
    pub(super) role: ApiRole,
}

/// The secret of a session, which only its cookie holds.
#[derive(Clone)]
pub(super) struct SessionId(String);

/// The name under which a session is kept: a hash, so that a dump of the memory signs no one in.
pub(super) type SessionName = [u8; 32];

/// The sessions of this process. A restart ends them.
#[derive(Default)]
pub(super) struct Sessions(Mutex<HashMap<SessionName, OpenSession>>);

struct OpenSession {
    session: UserSession,
    opened: Instant,
    used: Instant,
}

impl SessionId {
    /// The value of the cookie.
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

impl Sessions {
    /// Opens a session.
    pub(super) fn open(&self, session: UserSession) -> anyhow::Result<SessionId> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).context("the system has no random numbers")?;
        let id = SessionId(HEXLOWER.encode(&bytes));
        let now = Instant::now();
        let mut sessions = lock(&self.0);
        sessions.retain(|_, open| open.is_alive(now));
        if sessions.len() >= SESSIONS_MAX
            && let Some(oldest) = sessions.iter().min_by_key(|(_, open)| open.used)
        {
            let oldest = *oldest.0;
            sessions.remove(&oldest);
        }
        sessions.insert(name_of(&id.0), OpenSession { session, opened: now, used: now });
        Ok(id)
    }

    /// The session of a cookie.
    pub(super) fn find(&self, cookie: &str) -> Option<(SessionName, UserSession)> {
        let (name, now) = (name_of(cookie), Instant::now());
        let mut sessions = lock(&self.0);
        let open = sessions.get_mut(&name).filter(|open| open.is_alive(now))?;
        open.used = now;
        Some((name, open.session.clone()))
    }

    /// Ends the session of a cookie.
    pub(super) fn close(&self, cookie: &str) {
        lock(&self.0).remove(&name_of(cookie));
    }
}

impl OpenSession {
    fn is_alive(&self, now: Instant) -> bool {
        now.duration_since(self.used) < SESSION_IDLE_MAX
            && now.duration_since(self.opened) < SESSION_AGE_MAX
    }
}

fn name_of(cookie: &str) -> SessionName {
    Sha256::digest(cookie).into()
}

/// Makes and checks the token that each form carries. A page of another origin cannot read it, so
/// it cannot submit the form.
pub(super) struct FormKey(hmac::Key);

impl FormKey {
    pub(super) fn random() -> anyhow::Result<Self> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).context("the system has no random numbers")?;
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, &bytes)))
    }

    /// The token of one form of one user.
    pub(super) fn token(&self, subject: &str, form: &str) -> String {
        HEXLOWER.encode(hmac::sign(&self.0, message(subject, form).as_bytes()).as_ref())
    }

    /// Whether a submitted form carries its token.
    pub(super) fn verify(&self, subject: &str, form: &str, token: &str) -> bool {
        let token = HEXLOWER.decode(token.as_bytes()).unwrap_or_default();
        hmac::verify(&self.0, message(subject, form).as_bytes(), &token).is_ok()
    }
}

/// The names of forms have no line end, so the two parts cannot be confused.
fn message(subject: &str, form: &str) -> String {
    format!("{form}\n{subject}")
}

/// Counts failed sign-ins by address.
#[derive(Default)]
pub(super) struct SignInThrottle(Mutex<HashMap<IpAddr, (u32, Instant)>>);

impl SignInThrottle {
    /// How long this address has to wait; `None` if it may try.
    pub(super) fn wait(&self, address: IpAddr) -> Option<Duration> {
        let failures = lock(&self.0);
        let (count, began) = failures.get(&group(address))?;
        let left = THROTTLE_WINDOW.checked_sub(began.elapsed())?;
        (*count >= FAILURES_MAX).then_some(left)
    }

    /// Counts a failure.
    pub(super) fn record_failure(&self, address: IpAddr) {
        let now = Instant::now();
        let is_recent = |began: Instant| now.duration_since(began) < THROTTLE_WINDOW;
        let mut failures = lock(&self.0);
        if failures.len() >= ADDRESSES_MAX {
            failures.retain(|_, (_, began)| is_recent(*began));
        }
        if failures.len() >= ADDRESSES_MAX
            && let Some(oldest) = failures.iter().min_by_key(|(_, (_, began))| *began)
        {
            let oldest = *oldest.0;
            failures.remove(&oldest);
        }
        let entry = failures.entry(group(address)).or_insert((0, now));
        if !is_recent(entry.1) {
            *entry = (0, now);
        }
        entry.0 = entry.0.saturating_add(1);
    }
}

/// An IPv6 client has a whole /64.
fn group(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() & !u128::from(u64::MAX)).into()),
        address @ IpAddr::V4(_) => address,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    fn session(user: &str) -> UserSession {
        UserSession { user: user.to_owned(), token: "ops".to_owned(), role: ApiRole::Viewer }
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_ends_when_it_is_unused_and_after_half_a_day() {
        let sessions = Sessions::default();
        let id = sessions.open(session("zoe")).unwrap();
        for _ in 0..13 {
            advance(SESSION_IDLE_MAX - Duration::from_secs(60)).await;
            if sessions.find(id.as_str()).is_none() {
                break;
            }
        }
        assert!(sessions.find(id.as_str()).is_none(), "it was used all the time, and is too old");
        let id = sessions.open(session("zoe")).unwrap();
        assert_eq!(sessions.find(id.as_str()).unwrap().1, session("zoe"));
        advance(SESSION_IDLE_MAX).await;
        assert!(sessions.find(id.as_str()).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_session_replaces_the_one_that_was_used_longest_ago() {
        let sessions = Sessions::default();
        let first = sessions.open(session("first")).unwrap();
        let mut others = Vec::new();
        for number in 1..SESSIONS_MAX {
            advance(Duration::from_secs(1)).await;
            others.push(sessions.open(session(&number.to_string())).unwrap());
        }
        advance(Duration::from_secs(1)).await;
        assert!(sessions.find(first.as_str()).is_some(), "there is room for all");
        sessions.open(session("one more")).unwrap();
        assert!(sessions.find(first.as_str()).is_some(), "it has just been used");
        assert!(sessions.find(others[0].as_str()).is_none());
        sessions.close(first.as_str());
        assert!(sessions.find(first.as_str()).is_none());
    }

    #[test]
    fn a_form_token_is_of_one_user_and_one_form() {
        let key = FormKey::random().unwrap();
        let token = key.token("zoe", "resolve");
        assert!(key.verify("zoe", "resolve", &token));
        assert!(!key.verify("ada", "resolve", &token) && !key.verify("zoe", "answer", &token));
        assert!(!key.verify("zoe", "resolve", "") && !key.verify("zoe", "resolve", "zz"));
        assert!(!FormKey::random().unwrap().verify("zoe", "resolve", &token));
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_with_many_failures_has_to_wait() {
        let throttle = SignInThrottle::default();
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        for _ in 0..FAILURES_MAX {
            assert_eq!(throttle.wait(address("2001:db8::1")), None);
            throttle.record_failure(address("2001:db8::1"));
        }
        assert_eq!(throttle.wait(address("2001:db8::2")), Some(THROTTLE_WINDOW), "the same /64");
        assert_eq!(throttle.wait(address("192.0.2.1")), None);
        advance(THROTTLE_WINDOW).await;
        assert_eq!(throttle.wait(address("2001:db8::1")), Some(Duration::ZERO));
        advance(Duration::from_millis(1)).await;
        assert_eq!(throttle.wait(address("2001:db8::1")), None);
        throttle.record_failure(address("2001:db8::1"));
        assert_eq!(throttle.wait(address("2001:db8::1")), None, "a new window");
    }

    #[tokio::test(start_paused = true)]
    async fn the_throttle_remembers_a_bounded_number_of_addresses() {
        let throttle = SignInThrottle::default();
        for number in 0..=u32::try_from(ADDRESSES_MAX).unwrap() {
            throttle.record_failure(IpAddr::V4(number.into()));
        }
        assert_eq!(lock(&throttle.0).len(), ADDRESSES_MAX);
    }
}
