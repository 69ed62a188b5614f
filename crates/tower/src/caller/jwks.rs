//! The keys that verify tokens: a JSON Web Key Set from a text, a file or a URL, or one secret.

#[cfg(feature = "jwks-url")]
mod fetch;

#[cfg(feature = "jwks-url")]
pub use self::fetch::check_jwks_url;

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use arc_swap::ArcSwapOption;
use jsonwebtoken::{
    Algorithm, DecodingKey,
    jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, KeyOperations, PublicKeyUse},
};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio::{
    sync::{Notify, watch},
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

/// The most keys that are read from a set. Issuers have two or three.
const KEYS_MAX: usize = 64;

/// The fewest bytes of a secret for HS256: RFC 7518 asks for as many as the hash has.
const HMAC_BYTES_MIN: usize = 32;

/// Interval between checks of a file for changes.
const FILE_CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// Minimum time between two attempts to fetch a set. Tokens with forged key ids cannot make it
/// shorter.
const REFRESH_INTERVAL_MIN: Duration = Duration::from_secs(5);

/// How long a request waits for a set that is being fetched.
const REFRESH_WAIT: Duration = Duration::from_secs(2);

/// The keys that verify tokens. Clones share the keys.
///
/// A set from a file is read again when the file changes; a set from a URL is fetched in the
/// background. The keys stay in force while a refresh fails. The background task ends with the
/// last clone.
#[derive(Clone)]
pub struct Jwks {
    state: Arc<JwksState>,
    _task: Option<Arc<RefreshTask>>,
}

/// Why a key set cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JwksError(String);

struct JwksState {
    source: Box<str>,
    keys: ArcSwapOption<KeySet>,
    /// When the keys were last known to be those of the source; `None` before the first time.
    refreshed_at: Mutex<Option<Instant>>,
    failures: AtomicU64,
    /// Whether a missing key is a reason to fetch the set again.
    refreshable: bool,
    refresh_wanted: Notify,
    /// The number of attempts that have ended.
    attempts: watch::Sender<u64>,
}

/// The task that refreshes a set.
struct RefreshTask(JoinHandle<()>);

impl Drop for RefreshTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The keys of one set.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct KeySet {
    keys: Vec<VerificationKey>,
}

/// One key and the algorithms that it may be used with.
pub(super) struct VerificationKey {
    /// Hash of the key, its id and its algorithms.
    pub(super) digest: [u8; 32],
    kid: Option<Box<str>>,
    algorithms: &'static [Algorithm],
    pub(super) key: DecodingKey,
}

/// The result of looking for the key of a token.
pub(super) enum VerificationKeyLookup<T> {
    Found(T),
    /// The key exists and is for another algorithm, or no key can have this algorithm.
    WrongAlgorithm,
    /// The set does not have the key, and the set is up to date.
    Unknown,
    /// There is no up-to-date set.
    Unavailable,
}

impl Jwks {
    /// The keys in this text, which never change.
    ///
    /// # Errors
    ///
    /// If it is no key set, or has no key for RS256, PS256, ES256 or EdDSA.
    pub fn from_json(text: &str) -> Result<Self, JwksError> {
        let state = JwksState::new("text", false);
        state.replace(KeySet::parse(text.as_bytes())?.with_keys()?);
        Ok(Self { state: Arc::new(state), _task: None })
    }

    /// One secret for HS256, shared with the issuer.
    ///
    /// # Errors
    ///
    /// If it has fewer than 32 bytes.
    pub fn secret(secret: &[u8]) -> Result<Self, JwksError> {
        if secret.len() < HMAC_BYTES_MIN {
            return Err(JwksError(format!(
                "a secret for HS256 needs at least {HMAC_BYTES_MIN} bytes; this one has {}",
                secret.len()
            )));
        }
        let key = VerificationKey {
            digest: Sha256::digest(secret).into(),
            kid: None,
            algorithms: &[Algorithm::HS256],
            key: DecodingKey::from_secret(secret),
        };
        let state = JwksState::new("secret", false);
        state.replace(KeySet { keys: vec![key] });
        Ok(Self { state: Arc::new(state), _task: None })
    }

    /// The keys in this file, read now and again when it changes. Must be called in a tokio
    /// runtime.
    ///
    /// # Errors
    ///
    /// As [`Jwks::from_json`], or if the file cannot be read.
    pub fn file(path: &Path) -> Result<Self, JwksError> {
        let modified = modified_at(path);
        let state = Arc::new(JwksState::new(&path.display().to_string(), false));
        state.replace(read_file(path)?);
        let task = watch_file(Arc::clone(&state), path.to_owned(), modified);
        Ok(Self::with_task(state, tokio::spawn(task)))
    }

    fn with_task(state: Arc<JwksState>, task: JoinHandle<()>) -> Self {
        Self { state, _task: Some(Arc::new(RefreshTask(task))) }
    }

    /// Where the keys come from, for a metric.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.state.source
    }

    /// Time since the keys were last read; `None` if they never were.
    #[must_use]
    pub fn age(&self) -> Option<Duration> {
        self.state.refreshed_at().map(|at| at.elapsed())
    }

    /// How often a refresh has failed.
    #[must_use]
    pub fn refresh_failures(&self) -> u64 {
        self.state.failures.load(Ordering::Relaxed)
    }

    /// Whether a key with this digest is still in the set.
    pub(super) fn contains(&self, digest: &[u8; 32]) -> bool {
        let keys = self.state.keys.load();
        keys.as_ref().is_some_and(|set| set.keys.iter().any(|key| key.digest == *digest))
    }

    /// Looks for the key of a token and applies `use_key` to it.
    pub(super) fn find<T>(
        &self,
        kid: Option<&str>,
        algorithm: Algorithm,
        use_key: impl FnOnce(&VerificationKey) -> T,
    ) -> VerificationKeyLookup<T> {
        let keys = self.state.keys.load();
        let Some(set) = keys.as_ref() else {
            self.state.refresh_wanted.notify_one();
            return VerificationKeyLookup::Unavailable;
        };
        match set.find(kid, algorithm) {
            VerificationKeyLookup::Found(key) => VerificationKeyLookup::Found(use_key(key)),
            VerificationKeyLookup::WrongAlgorithm => VerificationKeyLookup::WrongAlgorithm,
            VerificationKeyLookup::Unknown | VerificationKeyLookup::Unavailable
                if self.state.is_current() =>
            {
                VerificationKeyLookup::Unknown
            }
            VerificationKeyLookup::Unknown | VerificationKeyLookup::Unavailable => {
                self.state.refresh_wanted.notify_one();
                VerificationKeyLookup::Unavailable
            }
        }
    }

    #[cfg(test)]
    pub(super) fn replace_for_test(&self, text: &str) {
        self.state.replace(KeySet::parse(text.as_bytes()).unwrap());
    }

    /// Waits for the next attempt to fetch the set, for a short time.
    pub(super) async fn refreshed(&self) {
        let mut attempts = self.state.attempts.subscribe();
        let _ = timeout(REFRESH_WAIT, attempts.changed()).await;
    }
}

impl JwksState {
    fn new(source: &str, refreshable: bool) -> Self {
        Self {
            source: source.into(),
            keys: ArcSwapOption::empty(),
            refreshed_at: Mutex::default(),
            failures: AtomicU64::new(0),
            refreshable,
            refresh_wanted: Notify::new(),
            attempts: watch::Sender::new(0),
        }
    }

    fn refreshed_at(&self) -> Option<Instant> {
        *self.refreshed_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a key that is missing from the set is unknown to the issuer as well.
    fn is_current(&self) -> bool {
        !self.refreshable
            || self.refreshed_at().is_some_and(|at| at.elapsed() < REFRESH_INTERVAL_MIN)
    }

    fn replace(&self, set: KeySet) {
        if set.keys.is_empty() {
            tracing::warn!(source = &*self.source, "the key set has no usable key");
        }
        self.keys.store(Some(Arc::new(set)));
        self.mark_current();
    }

    fn mark_current(&self) {
        let mut refreshed_at = self.refreshed_at.lock().unwrap_or_else(PoisonError::into_inner);
        *refreshed_at = Some(Instant::now());
    }

    /// Takes the result of an attempt. After a failure the old keys stay.
    fn apply(&self, result: Result<KeySet, JwksError>) -> bool {
        let done = match result {
            Ok(set) => {
                self.replace(set);
                true
            }
            Err(error) => {
                self.failures.fetch_add(1, Ordering::Relaxed);
                let has_keys = self.keys.load().is_some();
                let source = &*self.source;
                tracing::warn!(source, has_keys, %error, "cannot refresh a key set");
                false
            }
        };
        self.attempts.send_modify(|attempts| *attempts = attempts.wrapping_add(1));
        done
    }
}

impl KeySet {
    /// Reads a set. Keys of other kinds or for other uses are left out.
    fn parse(text: &[u8]) -> Result<Self, JwksError> {
        let document: Value = serde_json::from_slice(text)
            .map_err(|error| JwksError(format!("the key set is not JSON: {error}")))?;
        let keys = document.get("keys").and_then(Value::as_array);
        let keys = keys.ok_or_else(|| JwksError("the key set has no list `keys`".to_owned()))?;
        if keys.len() > KEYS_MAX {
            return Err(JwksError(format!("the key set has more than {KEYS_MAX} keys")));
        }
        Ok(Self { keys: keys.iter().filter_map(VerificationKey::read).collect() })
    }

    fn with_keys(self) -> Result<Self, JwksError> {
        if self.keys.is_empty() {
            return Err(JwksError(
                "the key set has no key for RS256, PS256, ES256 or EdDSA".to_owned(),
            ));
        }
        Ok(self)
    }

    /// The key id selects the key. Without one, the only key for the algorithm is meant. A shared
    /// secret is the only key there is, whatever the token calls it.
    fn find(
        &self,
        kid: Option<&str>,
        algorithm: Algorithm,
    ) -> VerificationKeyLookup<&VerificationKey> {
        let secret = |key: &&VerificationKey| key.algorithms == [Algorithm::HS256];
        if let Some(key) = self.keys.first().filter(secret) {
            let is_hmac = algorithm == Algorithm::HS256;
            return if is_hmac {
                VerificationKeyLookup::Found(key)
            } else {
                VerificationKeyLookup::WrongAlgorithm
            };
        }
        if ![RSA, EC, ED].iter().any(|family| family.contains(&algorithm)) {
            return VerificationKeyLookup::WrongAlgorithm;
        }
        let named = |key: &&VerificationKey| kid.is_none() || key.kid.as_deref() == kid;
        let fits = |key: &&VerificationKey| key.algorithms.contains(&algorithm);
        let mut fitting = self.keys.iter().filter(named).filter(fits);
        match (fitting.next(), fitting.next()) {
            (Some(key), None) => VerificationKeyLookup::Found(key),
            (None, _) if self.keys.iter().any(|key| named(&key)) => {
                VerificationKeyLookup::WrongAlgorithm
            }
            (None, _) | (Some(_), Some(_)) => VerificationKeyLookup::Unknown,
        }
    }
}

const RSA: &[Algorithm] = &[Algorithm::RS256, Algorithm::PS256];
const EC: &[Algorithm] = &[Algorithm::ES256];
const ED: &[Algorithm] = &[Algorithm::EdDSA];

impl VerificationKey {
    /// Reads one key; `None` if it is not for one of the supported algorithms. Symmetric keys do
    /// not belong in a key set.
    fn read(value: &Value) -> Option<Self> {
        let jwk: Jwk = serde_json::from_value(value.clone()).ok()?;
        let signs = |usage: &PublicKeyUse| *usage == PublicKeyUse::Signature;
        let verifies =
            |operations: &Vec<KeyOperations>| operations.contains(&KeyOperations::Verify);
        if !jwk.common.public_key_use.as_ref().is_none_or(signs)
            || !jwk.common.key_operations.as_ref().is_none_or(verifies)
        {
            return None;
        }
        let algorithms = algorithms(&jwk)?;
        let key = DecodingKey::from_jwk(&jwk).ok()?;
        let kid = jwk.common.key_id.map(String::into_boxed_str);
        let material = ["kty", "crv", "n", "e", "x", "y", "kid", "alg"].map(|name| value.get(name));
        let digest = Sha256::digest(format!("{material:?}")).into();
        Some(Self { digest, kid, algorithms, key })
    }
}

/// The algorithms of a key: those of its type, or the one that it names.
#[expect(clippy::wildcard_enum_match_arm, reason = "other algorithms are not supported")]
fn algorithms(jwk: &Jwk) -> Option<&'static [Algorithm]> {
    let family = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => RSA,
        AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P256 => EC,
        AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => ED,
        _ => return None,
    };
    let only = match &jwk.common.key_algorithm {
        None => return Some(family),
        Some(KeyAlgorithm::RS256) => &[Algorithm::RS256],
        Some(KeyAlgorithm::PS256) => &[Algorithm::PS256],
        Some(KeyAlgorithm::ES256) => EC,
        Some(KeyAlgorithm::EdDSA) => ED,
        Some(_) => return None,
    };
    only.iter().all(|algorithm| family.contains(algorithm)).then_some(only)
}

/// The longest key set, in bytes.
const JWKS_BYTES_MAX: usize = 256 << 10;

fn read_file(path: &Path) -> Result<KeySet, JwksError> {
    let wrong = |error: &dyn fmt::Display| JwksError(format!("{}: {error}", path.display()));
    let length = fs::metadata(path).map_err(|error| wrong(&error))?.len();
    if length > u64::try_from(JWKS_BYTES_MAX).unwrap_or(u64::MAX) {
        return Err(wrong(&format!("the key set has more than {JWKS_BYTES_MAX} bytes")));
    }
    let text = fs::read(path).map_err(|error| wrong(&error))?;
    KeySet::parse(&text).and_then(KeySet::with_keys).map_err(|error| wrong(&error))
}

fn modified_at(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|data| data.modified()).ok()
}

/// Reads a file again whenever it changes. A file that cannot be read is not tried again until it
/// changes, and the age of the old keys grows meanwhile.
async fn watch_file(state: Arc<JwksState>, path: PathBuf, mut modified: Option<SystemTime>) {
    let mut is_current = true;
    loop {
        sleep(FILE_CHECK_INTERVAL).await;
        let now = modified_at(&path);
        if now == modified {
            if is_current && now.is_some() {
                state.mark_current();
            }
            continue;
        }
        modified = now;
        is_current = state.apply(read_file(&path));
    }
}

impl fmt::Debug for Jwks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Jwks({})", self.state.source)
    }
}

impl fmt::Debug for VerificationKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VerificationKey({:?}, {:?})", self.kid, self.algorithms)
    }
}

impl PartialEq for VerificationKey {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

impl Eq for VerificationKey {}

impl fmt::Display for JwksError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for JwksError {}
