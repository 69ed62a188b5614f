//! Caller rules that verify, as a file has them.

use std::path::Path;

use super::*;
use crate::{ClientAuth, Config, Guard, Overrides};

const TLS: &str = "[gateway.tls]\ncertificate = \"c.pem\"\nkey = \"k.pem\"\n";

fn env(name: &str) -> Option<String> {
    match name {
        "JWT_SECRET" => Some("0123456789abcdef0123456789abcdef".to_owned()),
        "SHORT_SECRET" => Some("too short".to_owned()),
        _ => None,
    }
}

fn read(tls: &str, caller: &str) -> Result<Config, String> {
    let source = format!("gateway.upstream = \"http://a\"\n{tls}[defaults]\ncaller = {caller}\n");
    let read =
        Config::read(Some(Path::new("conf/semel.toml")), &source, &Overrides::default(), &env);
    read.map_err(|error| error.to_string())
}

fn guard(caller: &str) -> Guard {
    let tls = format!("{TLS}client_ca = \"ca.pem\"\n");
    read(&tls, caller).unwrap_or_else(|error| panic!("{error}")).routes.remove(0).guard.unwrap()
}

fn rule(caller: &str) -> CallerRule {
    guard(caller).callers.remove(0)
}

#[test]
fn a_jwt_rule_has_its_keys_in_one_place() {
    let rest = "issuer = \"https://i\", audience = \"a\"";
    for (keys, source) in [
        ("jwks = \"https://i/jwks\"", JwtKeySource::Url("https://i/jwks".to_owned())),
        ("jwks = \"http://127.0.0.1:1/j\"", JwtKeySource::Url("http://127.0.0.1:1/j".to_owned())),
        ("jwks = \"keys.json\"", JwtKeySource::File("conf/keys.json".into())),
        ("secret_file = \"s\"", JwtKeySource::SecretFile("conf/s".into())),
        (
            "secret_env = \"JWT_SECRET\"",
            JwtKeySource::SecretEnv(
                "JWT_SECRET".to_owned(),
                JwtSecret("0123456789abcdef0123456789abcdef".to_owned()),
            ),
        ),
    ] {
        let CallerRule::Jwt(rule) = rule(&format!("{{ jwt = {{ {keys}, {rest} }} }}")) else {
            panic!("{keys}")
        };
        assert_eq!((rule.keys, &*rule.issuer), (source, "https://i"));
        assert_eq!((rule.audiences, rule.claim.as_str()), (vec!["a".to_owned()], "/sub"));
        assert_eq!(rule.leeway, Duration::from_secs(60));
    }
}

#[test]
fn an_error_in_a_caller_rule_is_reported_at_its_position() {
    let rest = "issuer = \"https://i\", audience = \"a\"";
    for (caller, message) in [
        ("{ jwt = { issuer = \"i\", audience = \"a\" } }".to_owned(), "needs one of `jwks`"),
        (
            format!("{{ jwt = {{ jwks = \"k\", secret_file = \"s\", {rest} }} }}"),
            "needs one of `jwks`",
        ),
        ("{ jwt = { jwks = \"k\", audience = \"a\" } }".to_owned(), "needs `issuer`"),
        ("{ jwt = { jwks = \"k\", issuer = \"i\" } }".to_owned(), "needs `audience`"),
        (format!("{{ jwt = {{ jwks = \"http://i/jwks\", {rest} }} }}"), "must be https://"),
        (format!("{{ jwt = {{ secret_env = \"NONE\", {rest} }} }}"), "NONE is not set"),
        (format!("{{ jwt = {{ secret_env = \"SHORT_SECRET\", {rest} }} }}"), "at least 32 bytes"),
        (format!("{{ jwt = {{ jwks = \"k\", claim = \"sub\", {rest} }} }}"), "sub"),
        (format!("{{ jwt = {{ jwks = \"k\", leeway = \"2h\", {rest} }} }}"), "1h"),
        (format!("[\"authorization\", {{ jwt = {{ jwks = \"k\", {rest} }} }}]"), "unreachable"),
        ("\"jwt\"".to_owned(), "keys of its issuer"),
        ("{ mtls = \"serial\" }".to_owned(), "`subject`, `san` or `fingerprint`"),
        ("{ mtls = \"san\" }".to_owned(), "set `client_ca`"),
        ("{ header = \"X-A\", from = [\"10.0.0.1/8\"] }".to_owned(), "last bits must be zero"),
        ("{ header = \"X-A\", from = [] }".to_owned(), "empty"),
        ("{ header = \"Authorization\", from = [\"10.0.0.0/8\"] }".to_owned(), "is a secret"),
        ("{ cookie = \"sid\", from = [\"10.0.0.0/8\"] }".to_owned(), "belongs to `header`"),
    ] {
        let error = read(TLS, &caller).unwrap_err();
        assert!(error.contains(message), "{caller}: {error}");
        assert!(error.contains("semel.toml:6:"), "{error}");
        assert!(!error.contains("0123456789abcdef"), "{error}");
    }
    let alone = format!("{TLS}client_auth = \"required\"\n");
    assert!(read(&alone, "\"anonymous\"").unwrap_err().contains("needs `client_ca`"));
}

#[test]
fn a_printed_rule_is_read_again_and_the_identity_is_what_names_depend_on() {
    let jwt = "{ jwt = { jwks = \"https://i/jwks\", issuer = \"https://i\", audience = [\"a\"], \
               claim = \"/tenant\", leeway = \"30s\" } }";
    let header = "{ header = \"x-a\", from = [\"10.0.0.0/8\", \"::1/128\"] }";
    let text = format!("[{jwt}, {header}, {{ mtls = \"san\" }}]");
    let tls = format!("{TLS}client_ca = \"ca.pem\"\nclient_auth = \"required\"\n");
    let config = read(&tls, &text).unwrap();
    let printed = config.to_toml();
    let again = Config::read(None, &printed, &Overrides::default(), &env).unwrap();
    let callers = |config: &Config| config.routes[0].guard.as_ref().unwrap().callers.clone();
    assert_eq!(callers(&config), callers(&again), "{printed}");
    assert_eq!(again.gateway.tls.unwrap().client_auth, ClientAuth::Required);
    let identity = guard(&text).caller_text();
    let other = guard(
        "[{ jwt = { jwks = \"keys.json\", issuer = \"https://i\", audience = [\"b\"], \
         claim = \"/tenant\" } }, { header = \"X-A\" }, { mtls = \"san\" }]",
    );
    assert_eq!(identity, other.caller_text());
    assert!(!identity.contains("jwks") && !identity.contains("10.0.0.0"), "{identity}");
    let another = guard(&text.replace("/tenant", "/sub"));
    assert_ne!(identity, another.caller_text());
}

#[test]
fn a_verified_rule_may_be_a_part() {
    let rule = rule(
        "{ all = [{ jwt = { jwks = \"keys.json\", issuer = \"https://i\", audience = \"a\" } }, \
         { header = \"X-Account\", from = \"10.0.0.0/8\", optional = true }] }",
    );
    let CallerRule::All(parts) = &rule else { panic!("{rule:?}") };
    let CallerRule::Jwt(jwt) = &parts[0].rule else { panic!("{rule:?}") };
    assert_eq!(jwt.keys, JwtKeySource::File("conf/keys.json".into()));
    assert!(parts[1].optional && rule.proves() && rule.verifies() && !rule.hashes());
    assert_eq!(rule.text(), "jwt /sub of https://i + header x-account from 10.0.0.0/8 (optional)");
}
