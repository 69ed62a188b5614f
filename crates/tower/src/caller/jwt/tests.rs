//! Every row of the table: which tokens are accepted, and what the others get.

use http::Request;
use jsonwebtoken::Header;
use semel::core::Problem;
use semel_testkit::issuer::{
    AUDIENCE, Algorithm, ISSUER, JwksAnswer, JwksServer, SigningKey, claims, claims_with, key_set,
    seconds_from_now, token_of,
};
use serde_json::json;

use super::*;
use crate::{caller::Identified, refusal::RequestRefusal};

fn verifier(keys: &Jwks) -> JwtVerifier {
    JwtVerifier::new(keys, ISSUER, [AUDIENCE])
}

fn jwks(keys: &[&SigningKey]) -> Jwks {
    Jwks::from_json(&key_set(keys)).unwrap()
}

fn request(token: &str) -> Parts {
    let request = Request::post("/").header("authorization", format!("Bearer {token}"));
    request.body(()).unwrap().into_parts().0
}

fn identify(verifier: &JwtVerifier, token: &str) -> Result<Identified, RequestRefusal> {
    Callers::jwt(verifier).identify(&request(token))
}

fn name(verifier: &JwtVerifier, token: &str) -> String {
    let identified = identify(verifier, token).unwrap();
    assert!(identified.proven);
    identified.caller.as_str().to_owned()
}

#[track_caller]
fn refused(verifier: &JwtVerifier, token: &str, problem: Problem, failure: CallerFailure) {
    let refusal = identify(verifier, token).unwrap_err();
    assert_eq!((refusal.problem, refusal.caller_failure), (problem, Some(failure)));
    let challenge = refusal.challenge.map(|value| value.to_str().unwrap().to_owned());
    if problem == Problem::CallerUnverified {
        assert!(challenge.unwrap().starts_with("Bearer error=\"invalid_token\", error_desc"));
    } else {
        assert_eq!(challenge, None);
    }
}

const UNVERIFIED: Problem = Problem::CallerUnverified;

#[test]
fn a_key_of_each_kind_verifies_its_tokens_and_no_others() {
    let algorithms = [Algorithm::RS256, Algorithm::PS256, Algorithm::ES256, Algorithm::EdDSA];
    let keys = algorithms.map(|algorithm| SigningKey::generate("k", algorithm));
    for key in &keys {
        let verifier = verifier(&jwks(&[key]));
        assert_eq!(name(&verifier, &key.sign(&claims("zoe"))), "jwt:https://issuer.example:zoe");
        for other in &keys {
            let same = std::ptr::eq(key, other);
            assert_eq!(identify(&verifier, &other.sign(&claims("zoe"))).is_ok(), same);
        }
    }
}

#[test]
fn an_rsa_key_without_an_algorithm_is_for_both_of_its_kind() {
    let key = SigningKey::generate("k", Algorithm::RS256);
    let mut jwk = key.jwk();
    jwk.as_object_mut().unwrap().remove("alg");
    let both = verifier(&Jwks::from_json(&json!({ "keys": [jwk] }).to_string()).unwrap());
    for algorithm in [Algorithm::RS256, Algorithm::PS256] {
        let mut header = Header::new(algorithm);
        header.kid = Some("k".to_owned());
        let token = key.sign_with(&header, &claims("zoe"));
        assert!(identify(&both, &token).is_ok());
        let only = identify(&verifier(&jwks(&[&key])), &token).is_ok();
        assert_eq!(only, algorithm == Algorithm::RS256, "the key says RS256");
    }
    let mut header = Header::new(Algorithm::RS512);
    header.kid = Some("k".to_owned());
    let token = key.sign_with(&header, &claims("zoe"));
    refused(&both, &token, UNVERIFIED, CallerFailure::Algorithm);
}

#[test]
fn a_token_does_not_choose_its_algorithm() {
    let key = SigningKey::generate("k", Algorithm::RS256);
    let verifier = verifier(&jwks(&[&key]));
    for alg in ["none", "None", "NONE", "HS1", ""] {
        for signature in [&b""[..], b"x"] {
            let token = token_of(&json!({ "alg": alg, "kid": "k" }), &claims("zoe"), signature);
            refused(&verifier, &token, UNVERIFIED, CallerFailure::TokenMalformed);
        }
    }
    // The public key as the secret of an HMAC, in the forms that an attacker can have.
    let jwk = key.jwk();
    let modulus = jwk["n"].as_str().unwrap();
    for secret in [jwk.to_string(), key_set(&[&key]), modulus.to_owned()] {
        let forged = SigningKey::secret("k", secret.as_bytes()).sign(&claims("zoe"));
        refused(&verifier, &forged, UNVERIFIED, CallerFailure::Algorithm);
    }
    // A key that the token brings along.
    let own = SigningKey::generate("own", Algorithm::ES256);
    let mut header = Header::new(Algorithm::ES256);
    header.kid = Some("k".to_owned());
    header.jwk = Some(serde_json::from_value(own.jwk()).unwrap());
    header.jku = Some("https://attacker.example/jwks".to_owned());
    let token = own.sign_with(&header, &claims("zoe"));
    refused(&verifier, &token, UNVERIFIED, CallerFailure::Algorithm);
}

#[test]
fn a_symmetric_key_in_a_set_is_not_used() {
    let secret = [7; 32];
    let k = data_encoding::BASE64URL_NOPAD.encode(&secret);
    let oct = json!({ "kty": "oct", "kid": "k", "alg": "HS256", "k": k });
    assert!(Jwks::from_json(&json!({ "keys": [oct] }).to_string()).is_err());
    let key = SigningKey::generate("e", Algorithm::ES256);
    let both = Jwks::from_json(&json!({ "keys": [oct, key.jwk()] }).to_string()).unwrap();
    let forged = SigningKey::secret("k", &secret).sign(&claims("zoe"));
    refused(&verifier(&both), &forged, UNVERIFIED, CallerFailure::Algorithm);
}

#[test]
fn a_secret_is_for_hs256_alone() {
    let secret = b"a secret that is as long as it has to be";
    let verifier = verifier(&Jwks::secret(secret).unwrap());
    let key = SigningKey::secret("any name", secret);
    assert_eq!(name(&verifier, &key.sign(&claims("zoe"))), "jwt:https://issuer.example:zoe");
    let other =
        SigningKey::secret("k", b"another secret, which is as long too.").sign(&claims("zoe"));
    refused(&verifier, &other, UNVERIFIED, CallerFailure::Signature);
    let mut header = Header::new(Algorithm::HS512);
    header.kid = None;
    let token = key.sign_with(&header, &claims("zoe"));
    refused(&verifier, &token, UNVERIFIED, CallerFailure::Algorithm);
    let rsa = SigningKey::generate("k", Algorithm::RS256).sign(&claims("zoe"));
    refused(&verifier, &rsa, UNVERIFIED, CallerFailure::Algorithm);
    assert!(Jwks::secret(&[1; 31]).is_err());
}

#[test]
fn time_issuer_and_audience_are_checked() {
    let key = SigningKey::generate("k", Algorithm::EdDSA);
    let verifier = verifier(&jwks(&[&key]));
    let forbidden = Problem::CallerUnidentified;
    for (changes, problem, failure) in [
        (json!({ "exp": seconds_from_now(-61) }), UNVERIFIED, CallerFailure::Expired),
        (json!({ "exp": null }), UNVERIFIED, CallerFailure::Expired),
        (json!({ "exp": "9999999999" }), UNVERIFIED, CallerFailure::Expired),
        (json!({ "nbf": seconds_from_now(65) }), UNVERIFIED, CallerFailure::NotYetValid),
        (json!({ "nbf": "soon" }), UNVERIFIED, CallerFailure::TokenMalformed),
        (json!({ "iss": "https://issuer.example/" }), forbidden, CallerFailure::Issuer),
        (json!({ "iss": null }), forbidden, CallerFailure::Issuer),
        (json!({ "aud": "refunds" }), forbidden, CallerFailure::Audience),
        (json!({ "aud": ["refunds"] }), forbidden, CallerFailure::Audience),
        (json!({ "aud": [] }), forbidden, CallerFailure::Audience),
        (json!({ "aud": null }), forbidden, CallerFailure::Audience),
        (json!({ "sub": null }), forbidden, CallerFailure::Claim),
        (json!({ "sub": "" }), forbidden, CallerFailure::Claim),
        (json!({ "sub": ["zoe"] }), UNVERIFIED, CallerFailure::TokenMalformed),
        (json!({ "sub": 1.5 }), forbidden, CallerFailure::Claim),
    ] {
        refused(&verifier, &key.sign(&claims_with("zoe", &changes)), problem, failure);
    }
    for changes in [
        json!({ "exp": seconds_from_now(-30) }),
        json!({ "nbf": seconds_from_now(30) }),
        json!({ "aud": ["refunds", AUDIENCE] }),
        json!({ "sub": 7 }),
    ] {
        assert!(identify(&verifier, &key.sign(&claims_with("zoe", &changes))).is_ok(), "{changes}");
    }
    let strict = verifier.leeway(Duration::ZERO);
    let expired = key.sign(&claims_with("zoe", &json!({ "exp": seconds_from_now(-5) })));
    refused(&strict, &expired, UNVERIFIED, CallerFailure::Expired);
}

#[test]
fn an_unreadable_token_is_refused() {
    let key = SigningKey::generate("k", Algorithm::ES256);
    let verifier = verifier(&jwks(&[&key]));
    let good = key.sign(&claims("zoe"));
    let mut bad = good.clone().into_bytes();
    let last = bad.len() - 10;
    bad[last] = if bad[last] == b'A' { b'B' } else { b'A' };
    refused(&verifier, str::from_utf8(&bad).unwrap(), UNVERIFIED, CallerFailure::Signature);
    let mut header = Header::new(Algorithm::ES256);
    header.kid = Some("k".to_owned());
    header.crit = Some(vec!["b64".to_owned()]);
    let critical = key.sign_with(&header, &claims("zoe"));
    refused(&verifier, &critical, UNVERIFIED, CallerFailure::TokenMalformed);
    let long = key.sign(&claims_with("zoe", &json!({ "pad": "x".repeat(TOKEN_BYTES_MAX) })));
    refused(&verifier, &long, UNVERIFIED, CallerFailure::TokenMalformed);
    let header = json!({ "alg": "ES256", "kid": "k" });
    let list = token_of(&header, &json!(["zoe"]), &[1; 64]);
    refused(&verifier, &list, UNVERIFIED, CallerFailure::Signature);
    // Other claims under the signature of a good token.
    let parts: Vec<&str> = good.split('.').collect();
    let other = token_of(&header, &claims("mallory"), b"");
    let swapped = format!("{}{}", other, parts[2]);
    refused(&verifier, &swapped, UNVERIFIED, CallerFailure::Signature);
}

#[test]
fn a_request_without_a_token_gets_a_challenge() {
    let verifier = verifier(&Jwks::secret(&[1; 32]).unwrap());
    let callers = Callers::jwt(&verifier);
    let parts = |line: Option<&str>| {
        let mut request = Request::post("/");
        if let Some(line) = line {
            request = request.header("authorization", line);
        }
        request.body(()).unwrap().into_parts().0
    };
    for line in [None, Some("Basic dTpw"), Some("Bearer opaque"), Some("Bearer v4.public.e30")] {
        let refusal = callers.identify(&parts(line)).unwrap_err();
        assert_eq!(refusal.problem, UNVERIFIED);
        assert_eq!(refusal.caller_failure, Some(CallerFailure::TokenMissing));
        assert_eq!(refusal.challenge.unwrap(), "Bearer realm=\"semel\"");
    }
    let secret = crate::Secret::new("0123456789abcdef").unwrap();
    let both = callers.or(Callers::authorization(&secret));
    let opaque = both.identify(&parts(Some("Bearer opaque"))).unwrap();
    assert!(opaque.caller.as_str().starts_with("auth:"), "another rule may read it");
    let anonymous = Callers::jwt(&verifier).or(Callers::anonymous());
    assert!(anonymous.identify(&parts(None)).unwrap().caller.is_anonymous());
    assert!(anonymous.identify(&parts(Some("Bearer opaque"))).is_err(), "it is a credential");
}

#[test]
fn the_name_of_a_caller_is_unambiguous_and_bounded() {
    let keys = Jwks::secret(&[1; 32]).unwrap();
    let signer = SigningKey::secret("k", &[1; 32]);
    let name_of = |issuer: &str, subject: &str| {
        let verifier = JwtVerifier::new(&keys, issuer, [AUDIENCE]);
        name(&verifier, &signer.sign(&claims_with(subject, &json!({ "iss": issuer }))))
    };
    assert_eq!(name_of("https://a.example", "8443:x"), "jwt:https://a.example:8443%3Ax");
    assert_eq!(name_of("https://a.example:8443", "x"), "jwt:https://a.example:8443:x");
    assert_ne!(name_of("a", "b%3Ac"), name_of("a", "b:c"));
    let long = name_of("a", &"x".repeat(300));
    assert!(long.starts_with("jwt-sha256:") && long.len() == 11 + 64, "{long}");
    let nested = JwtVerifier::new(&keys, ISSUER, [AUDIENCE]).claim("/tenant/id");
    let token = signer.sign(&claims_with("zoe", &json!({ "tenant": { "id": 42 } })));
    assert_eq!(name(&nested, &token), "jwt:https://issuer.example:42");
    assert_eq!(
        Callers::jwt(&nested).name_unverified(&request(&token)).unwrap().as_str(),
        "jwt:https://issuer.example:42"
    );
    let control = signer.sign(&claims("a\nb"));
    assert!(identify(&verifier(&keys), &control).is_err());
}

#[test]
fn the_key_id_selects_the_key() {
    let [one, two] = ["one", "two"].map(|kid| SigningKey::generate(kid, Algorithm::ES256));
    let verifier = verifier(&jwks(&[&one, &two]));
    assert!(identify(&verifier, &one.sign(&claims("zoe"))).is_ok());
    assert!(identify(&verifier, &two.sign(&claims("zoe"))).is_ok());
    let wrong = one.named("two").sign(&claims("zoe"));
    refused(&verifier, &wrong, UNVERIFIED, CallerFailure::Signature);
    let unknown = one.named("three").sign(&claims("zoe"));
    refused(&verifier, &unknown, UNVERIFIED, CallerFailure::KeyUnknown);
    let nameless = one.sign_with(&Header::new(Algorithm::ES256), &claims("zoe"));
    refused(&verifier, &nameless, UNVERIFIED, CallerFailure::KeyUnknown);
    assert!(identify(&self::verifier(&jwks(&[&one])), &nameless).is_ok(), "there is only one");
}

#[test]
fn a_verified_token_is_forgotten_with_its_key() {
    let [one, two] = ["one", "two"].map(|kid| SigningKey::generate(kid, Algorithm::ES256));
    let keys = jwks(&[&one, &two]);
    let verifier = verifier(&keys);
    let token = one.sign(&claims("zoe"));
    assert!(identify(&verifier, &token).is_ok());
    assert_eq!(verifier.verified.len(), 1);
    keys.replace_for_test(&key_set(&[&two]));
    refused(&verifier, &token, UNVERIFIED, CallerFailure::KeyUnknown);
    assert_eq!(verifier.verified.len(), 0);
    // The same name for another key.
    keys.replace_for_test(&key_set(&[&two.named("one")]));
    refused(&verifier, &token, UNVERIFIED, CallerFailure::Signature);
}

#[tokio::test]
async fn keys_from_a_file_follow_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jwks.json");
    let [one, two] = ["one", "two"].map(|kid| SigningKey::generate(kid, Algorithm::ES256));
    assert!(Jwks::file(&path).is_err(), "there is none");
    std::fs::write(&path, key_set(&[&one])).unwrap();
    let keys = Jwks::file(&path).unwrap();
    let verifier = verifier(&keys);
    assert!(identify(&verifier, &one.sign(&claims("zoe"))).is_ok());
    std::fs::write(&path, "{").unwrap();
    while keys.refresh_failures() == 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(identify(&verifier, &one.sign(&claims("zoe"))).is_ok(), "the old keys stay");
    // An unchanged file that could be read is checked, and is then current, every two seconds.
    let grown = async {
        while keys.age() < Some(Duration::from_secs(3)) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), grown).await.expect("old keys look current");
    std::fs::write(&path, key_set(&[&two])).unwrap();
    while identify(&verifier, &two.sign(&claims("zoe"))).is_err() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(identify(&verifier, &one.sign(&claims("zoe"))).is_err());
}

#[cfg(feature = "jwks-url")]
#[tokio::test]
async fn keys_are_fetched_and_forged_key_ids_do_not_hammer_the_issuer() {
    let [one, two] = ["one", "two"].map(|kid| SigningKey::generate(kid, Algorithm::ES256));
    let server = JwksServer::start(JwksAnswer::Error).await;
    let keys = Jwks::url(&server.url()).unwrap();
    let verifier = verifier(&keys);
    let callers = Callers::jwt(&verifier);
    let unavailable = callers.identify(&request(&one.sign(&claims("zoe")))).unwrap_err();
    assert_eq!(unavailable.problem, Problem::CallerUnavailable);
    while keys.refresh_failures() == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    server.set(JwksAnswer::Text(key_set(&[&one])));
    let token = one.sign(&claims("zoe"));
    while callers.identify(&request(&token)).is_err() {
        callers.keys_refreshed().await;
    }
    assert!(keys.age().is_some());
    let asked = server.requests();
    for index in 0..1000 {
        let forged = one.named(&index.to_string()).sign(&claims("zoe"));
        let refusal = callers.identify(&request(&forged)).unwrap_err();
        assert_ne!(refusal.problem, Problem::CallerUnidentified);
    }
    assert!(server.requests() <= asked + 1, "one at most, and only after five seconds");
    // The issuer is away: what is known still verifies, and what is not is not refused for good.
    server.set(JwksAnswer::Error);
    assert!(callers.identify(&request(&token)).is_ok());
    let rotated = two.sign(&claims("zoe"));
    loop {
        let refusal = callers.identify(&request(&rotated)).unwrap_err();
        if refusal.problem == Problem::CallerUnavailable {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    server.set(JwksAnswer::Text(key_set(&[&two])));
    while callers.identify(&request(&rotated)).is_err() {
        callers.keys_refreshed().await;
    }
    assert!(callers.identify(&request(&token)).is_err(), "its key has left the set");
}
