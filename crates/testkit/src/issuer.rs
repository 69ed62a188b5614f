//! An issuer of JSON Web Tokens: its keys, its tokens, and a server for its key set.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, Once,
        atomic::{AtomicUsize, Ordering},
    },
};

use data_encoding::BASE64URL_NOPAD;
use jsonwebtoken::{EncodingKey, Header, crypto::aws_lc, get_current_timestamp, jwk::Jwk};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ED25519, PKCS_RSA_SHA256};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

pub use jsonwebtoken::Algorithm;

/// The issuer of every token that [`claims`] describes.
pub const ISSUER: &str = "https://issuer.example";

/// Its audience.
pub const AUDIENCE: &str = "payments";

/// Length of what PKCS#8 puts before an RSA key of 2048 bits.
const PKCS8_RSA_PREFIX: usize = 26;

/// A key that signs tokens.
#[derive(Clone, Debug)]
pub struct SigningKey {
    kid: String,
    algorithm: Algorithm,
    key: EncodingKey,
    jwk: Value,
    public_pem: String,
}

impl SigningKey {
    /// A new key for RS256, PS256, ES256 or EdDSA.
    #[must_use]
    #[expect(clippy::wildcard_enum_match_arm, reason = "all others that are used are RSA")]
    pub fn generate(kid: &str, algorithm: Algorithm) -> Self {
        install();
        let of = |key: &EncodingKey| {
            serde_json::to_value(Jwk::from_encoding_key(key, algorithm).unwrap()).unwrap()
        };
        let (key, jwk, public_pem) = match algorithm {
            Algorithm::ES256 => {
                let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
                let key = EncodingKey::from_ec_der(&pair.serialize_der());
                (key.clone(), of(&key), pair.public_key_pem())
            }
            Algorithm::EdDSA => {
                let pair = KeyPair::generate_for(&PKCS_ED25519).unwrap();
                let x = BASE64URL_NOPAD.encode(pair.public_key_raw());
                let jwk = json!({ "kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "x": x });
                (EncodingKey::from_ed_der(&pair.serialize_der()), jwk, pair.public_key_pem())
            }
            _ => {
                let pair = KeyPair::generate_for(&PKCS_RSA_SHA256).unwrap();
                let key = EncodingKey::from_rsa_der(&pair.serialize_der()[PKCS8_RSA_PREFIX..]);
                (key.clone(), of(&key), pair.public_key_pem())
            }
        };
        Self { kid: kid.to_owned(), algorithm, key, jwk, public_pem }
    }

    /// A shared secret for HS256.
    #[must_use]
    pub fn secret(kid: &str, secret: &[u8]) -> Self {
        install();
        let key = EncodingKey::from_secret(secret);
        let (jwk, public_pem) = (Value::Null, String::new());
        Self { kid: kid.to_owned(), algorithm: Algorithm::HS256, key, jwk, public_pem }
    }

    /// The same key under another name.
    #[must_use]
    pub fn named(&self, kid: &str) -> Self {
        Self { kid: kid.to_owned(), ..self.clone() }
    }

    /// Its public part.
    #[must_use]
    pub fn jwk(&self) -> Value {
        let mut value = self.jwk.clone();
        value["kid"] = self.kid.clone().into();
        value["use"] = "sig".into();
        value
    }

    /// Its public part as PEM.
    #[must_use]
    pub fn public_pem(&self) -> &str {
        &self.public_pem
    }

    /// A token with these claims.
    #[must_use]
    pub fn sign(&self, claims: &Value) -> String {
        let mut header = Header::new(self.algorithm);
        header.kid = Some(self.kid.clone());
        self.sign_with(&header, claims)
    }

    /// A token with this header.
    #[must_use]
    pub fn sign_with(&self, header: &Header, claims: &Value) -> String {
        jsonwebtoken::encode(header, claims, &self.key).unwrap()
    }
}

fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Fails if it is installed already.
        let _ = aws_lc::DEFAULT_PROVIDER.install_default();
    });
}

/// Claims that are valid for an hour.
#[must_use]
pub fn claims(subject: &str) -> Value {
    json!({ "iss": ISSUER, "aud": AUDIENCE, "sub": subject, "exp": seconds_from_now(3600) })
}

/// The same claims with some of them changed; null removes one.
#[must_use]
pub fn claims_with(subject: &str, changes: &Value) -> Value {
    let mut claims = claims(subject);
    for (name, value) in changes.as_object().unwrap() {
        if value.is_null() {
            claims.as_object_mut().unwrap().remove(name);
        } else {
            claims[name] = value.clone();
        }
    }
    claims
}

/// A date in the form that tokens have.
#[must_use]
pub fn seconds_from_now(seconds: i64) -> u64 {
    get_current_timestamp().saturating_add_signed(seconds)
}

/// A token with this header, these claims and this signature.
#[must_use]
pub fn token_of(header: &Value, claims: &Value, signature: &[u8]) -> String {
    let parts = [header.to_string(), claims.to_string()];
    let parts = parts.map(|part| BASE64URL_NOPAD.encode(part.as_bytes()));
    [&parts[0], &parts[1], &*BASE64URL_NOPAD.encode(signature)].join(".")
}

/// The key set of these keys.
#[must_use]
pub fn key_set(keys: &[&SigningKey]) -> String {
    let keys: Vec<Value> = keys.iter().map(|key| key.jwk()).collect();
    json!({ "keys": keys }).to_string()
}

/// What the server answers.
#[derive(Clone, Debug)]
pub enum JwksAnswer {
    /// This text.
    Text(String),
    /// 500.
    Error,
    /// Nothing, ever.
    Silence,
    /// A body without end.
    Endless,
}

/// A server for a key set, on loopback.
#[derive(Debug)]
pub struct JwksServer {
    address: SocketAddr,
    answer: Arc<Mutex<JwksAnswer>>,
    requests: Arc<AtomicUsize>,
}

impl JwksServer {
    /// Starts one.
    pub async fn start(answer: JwksAnswer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (answer, requests) = (Arc::new(Mutex::new(answer)), Arc::new(AtomicUsize::new(0)));
        let shared = (Arc::clone(&answer), Arc::clone(&requests));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                shared.1.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(serve(stream, shared.0.lock().unwrap().clone()));
            }
        });
        Self { address, answer, requests }
    }

    /// Its address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}/jwks.json", self.address)
    }

    /// Changes what it answers.
    pub fn set(&self, answer: JwksAnswer) {
        *self.answer.lock().unwrap() = answer;
    }

    /// How many connections were made to it.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

async fn serve(mut stream: TcpStream, answer: JwksAnswer) {
    let mut head = [0; 4096];
    if stream.read(&mut head).await.is_err() {
        return;
    }
    match answer {
        JwksAnswer::Text(text) => {
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", text.len());
            let _ = stream.write_all(format!("{head}{text}").as_bytes()).await;
        }
        JwksAnswer::Error => {
            let _ = stream.write_all(b"HTTP/1.1 500 Oh\r\ncontent-length: 0\r\n\r\n").await;
        }
        JwksAnswer::Silence => {
            let _ = stream.read(&mut head).await;
        }
        JwksAnswer::Endless => {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: a/b\r\n\r\n").await;
            while stream.write_all(&[b' '; 4096]).await.is_ok() {}
        }
    }
}
