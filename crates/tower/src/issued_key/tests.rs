//! Which keys are accepted, and which are not.

use semel::core::{Caller, Scope};

use super::*;

const HOUR: Duration = Duration::from_secs(3600);

fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

fn secret(text: &str) -> Secret {
    Secret::new(text).unwrap()
}

fn keys(text: &str) -> IssuedKeys {
    IssuedKeys::new(&secret(text), "/idempotency-tokens", HOUR)
}

fn id(scope: &str, caller: &str, key: &str) -> RecordId {
    let caller = Caller::from_stored(caller).unwrap();
    RecordId::new(Scope::new(scope).unwrap(), caller, Key::new(key).unwrap())
}

fn issued(keys: &IssuedKeys, scope: &str, caller: &str, now: u64) -> String {
    keys.issue(&RecordOwner { scope, caller }, at(now)).unwrap().0
}

const NEW: &str = "the new secret, long enough";
const OLD: &str = "the old secret, long enough";

#[test]
fn a_token_is_valid_for_its_scope_its_caller_and_its_lifetime() {
    let keys = keys(NEW);
    let token = issued(&keys, "payments", "header:m:7", 1000);
    assert_eq!(token.len(), ISSUED_KEY_BYTES, "{token}");
    let own = id("payments", "header:m:7", &token);
    let verified = |now| keys.verify(&own, &[], at(now)).unwrap().unwrap();
    let kept = HOUR + CLOCK_DIFFERENCE_MAX;
    assert_eq!(verified(1000), VerifiedKey { is_expired: false, retention_min: kept });
    assert!(!verified(1000 + 3599).is_expired);
    assert!(verified(1000 + 3600).is_expired && verified(u64::MAX / 4).is_expired);
    for foreign in [id("payments", "header:m:8", &token), id("refunds", "header:m:7", &token)] {
        let refused = keys.verify(&foreign, &[], at(1000)).unwrap_err();
        assert_eq!(refused.problem, Problem::TokenInvalid);
        // What the route was called before is not foreign.
        assert!(keys.verify(&foreign, std::slice::from_ref(&own), at(1000)).is_ok());
    }
}

#[test]
fn a_token_of_a_retired_secret_is_refused() {
    let (old, new) = (keys(OLD), keys(NEW));
    let own = id("payments", "header:m:7", &issued(&old, "payments", "header:m:7", 1000));
    assert!(new.verify(&own, &[], at(1000)).is_err());
    let rotated = new.clone().former_secret(&secret(OLD), Some(at(2000)));
    assert!(rotated.verify(&own, &[], at(1999)).is_ok());
    assert!(rotated.verify(&own, &[], at(2000)).is_err());
    let again = issued(&rotated, "payments", "header:m:7", 1000);
    assert!(new.verify(&id("payments", "header:m:7", &again), &[], at(1000)).is_ok());
}

#[test]
fn a_key_of_the_client_is_accepted_unless_issued_ones_are_required() {
    let keys = keys(NEW);
    let own = id("payments", "header:m:7", "order-7");
    assert_eq!(keys.verify(&own, &[], at(1000)), Ok(None));
    assert!(keys.clone().required().verify(&own, &[], at(1000)).is_err());
    // What looks like a token must be one.
    for key in ["st1.", "st1.AAAA", "st1.order-7"] {
        assert!(keys.verify(&id("payments", "header:m:7", key), &[], at(1000)).is_err());
    }
}

#[test]
fn a_token_is_the_same_in_every_process_and_for_ever() {
    let owner = RecordOwner { scope: "payments", caller: "header:m:7" };
    let token = TokenSecret::of(&secret(NEW)).token(1_800_000_000, &[7; 16], &owner);
    assert_eq!(token, GOLDEN);
}

const GOLDEN: &str = "st1.AaXi2FcAAAAAa0nSAAcHBwcHBwcHBwcHBwcHBwdN3PZIa7BwmAdeLOG0KD0J";

/// A small generator (splitmix64): the same seed gives the same tokens.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// Ten million altered tokens in the long edition: flipped bits, exchanged, doubled and cut
/// characters, other expiries under the same signature, parts of two tokens, random bytes.
#[test]
fn torture_no_altered_token_is_accepted() {
    let rounds = if semel_testkit::torture() { 10_000_000 } else { 20_000 };
    let keys = keys(NEW).required().former_secret(&secret(OLD), None);
    let (one, other) = [1, 2].map(|_| issued(&keys, "payments", "header:m:7", 1000)).into();
    let bytes = |token: &str| BASE64URL_NOPAD.decode(&token.as_bytes()[4..]).unwrap();
    let spelled = |bytes: &[u8]| format!("{PREFIX}{}", BASE64URL_NOPAD.encode(bytes)).into_bytes();
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_+/=.";
    let (first, second) = (bytes(&one), bytes(&other));
    let seed = semel_testkit::seed();
    let mut state = seed;
    let mut tried = 0;
    for _ in 0..rounds {
        let mut draw = |below: usize| {
            usize::try_from(next(&mut state) % u64::try_from(below).unwrap()).unwrap()
        };
        let altered = match draw(7) {
            0 => {
                let mut bytes = first.clone();
                for _ in 0..=draw(3) {
                    bytes[draw(45)] ^= 1 << draw(8);
                }
                spelled(&bytes)
            }
            1 => {
                let mut text = one.clone().into_bytes();
                text[4 + draw(60)] = alphabet[draw(alphabet.len())];
                text
            }
            2 => {
                let at = 4 + draw(60);
                [&one.as_bytes()[..at], &one.as_bytes()[at + draw(2).min(63 - at)..]].concat()
            }
            3 => {
                let mut bytes = first.clone();
                bytes[5..13].copy_from_slice(&next(&mut state).to_be_bytes());
                spelled(&bytes)
            }
            4 => {
                let at = 1 + draw(44);
                spelled(&[&first[..at], &second[at..]].concat())
            }
            5 => {
                let random: Vec<u8> = (0..45).map(|_| u8::try_from(draw(256)).unwrap()).collect();
                // Half of them name a known version and secret.
                let known = if draw(2) == 0 { 0 } else { 5 };
                spelled(&[&first[..known], &random[known..]].concat())
            }
            _ => [one.as_bytes(), &alphabet[draw(60)..][..1 + draw(4)]].concat(),
        };
        if altered == one.as_bytes() || altered == other.as_bytes() {
            continue;
        }
        let Ok(key) = Key::new(str::from_utf8(&altered).unwrap()) else { continue };
        let mut forged = id("payments", "header:m:7", "k");
        forged.key = key;
        let verified = keys.verify(&forged, &[], at(1000));
        assert!(verified.is_err(), "seed {seed}: {} was accepted", forged.key.as_str());
        tried += 1;
    }
    assert!(tried > rounds / 2, "{tried}");
}
