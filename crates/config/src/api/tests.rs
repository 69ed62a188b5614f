//! Tokens, scopes, and a configuration without an upstream.

use std::path::Path;

use super::*;
use crate::{Config, Overrides};

fn load(source: &str) -> Result<Config, String> {
    let env = |name: &str| match name {
        "SHORT" => Some("short".to_owned()),
        "UNSET" => None,
        name => Some(format!("a-long-secret-in-{name}")),
    };
    let path = Path::new("semel.toml");
    let config = Config::read(Some(path), source, &Overrides::default(), &env);
    config.map_err(|error| error.to_string())
}

fn refused(source: &str) -> String {
    load(source).expect_err(source)
}

const APP: &str = "[[api.token]]\nname = \"jobs\"\nrole = \"app\"\nsecret_env = \"JOBS\"\n";

#[test]
fn the_service_api_alone_needs_a_token_for_claims_and_nothing_else() {
    let config = load(APP).unwrap();
    assert!(config.gateway.upstream.is_none() && config.routes.is_empty());
    let api = config.api.as_ref().unwrap();
    assert!(api.takes_claims() && api.threads > 0);
    let [token] = &api.tokens[..] else { panic!("{:?}", api.tokens) };
    assert_eq!((&*token.name, token.role), ("jobs", ApiRole::App));
    assert_eq!((token.caller.as_deref(), &token.scopes), (Some("jobs"), &None));
    assert!(config.guarded_lines().is_empty());
    let viewer = APP.replace("\"app\"", "\"viewer\"");
    let off = format!("api.listen = \"off\"\n{APP}");
    let routed = format!("{APP}\n[[route]]\nmatch = \"POST /a\"\nscope = \"a\"\n");
    for source in ["", &viewer, &off, &routed] {
        assert!(refused(source).contains("no upstream is configured"), "{source}");
    }
    let both = load(&format!("gateway.upstream = \"http://a\"\n{APP}")).unwrap();
    assert!(both.gateway.upstream.is_some() && both.routes.len() == 1);
}

#[test]
fn a_token_has_a_role_scopes_a_caller_and_several_secrets() {
    let source = "[[api.token]]\nname = \"jobs\"\nrole = \"app\"\nsecret_env = [\"NEW\", \"OLD\"]\n\
                  secret_file = \"token\"\nscopes = [\"a\", \"b\"]\ncaller = \"*\"\n\
                  [[api.token]]\nname = \"ops\"\nrole = \"operator\"\nsecret_env = \"OPS\"\n";
    let api = load(source).unwrap().api.unwrap();
    let [jobs, ops] = &api.tokens[..] else { panic!("{:?}", api.tokens) };
    assert_eq!((jobs.caller.as_deref(), jobs.secrets.len()), (None, 3));
    let scopes: Vec<&str> = jobs.scopes.iter().flatten().map(Scope::as_str).collect();
    assert_eq!((scopes, ops.role), (vec!["a", "b"], ApiRole::Operator));
    let shown = format!("{api:?}");
    assert!(!shown.contains("a-long-secret-in"), "{shown}");
}

#[test]
fn a_token_that_cannot_be_meant_is_refused() {
    let token = |text: &str| refused(&format!("{APP}[[api.token]]\n{text}\n"));
    for (text, message) in [
        ("role = \"app\"\nsecret_env = \"A\"", "a token needs `name`"),
        ("name = \"a\"\nsecret_env = \"A\"", "a token needs `role`"),
        ("name = \"a\"\nrole = \"app\"", "needs `secret_env` or `secret_file`"),
        ("name = \"A b\"\nrole = \"app\"\nsecret_env = \"A\"", "a name is 1 to 64"),
        ("name = \"a\"\nrole = \"root\"\nsecret_env = \"A\"", "this must be"),
        ("name = \"jobs\"\nrole = \"app\"\nsecret_env = \"A\"", "another token has this name"),
        ("name = \"a\"\nrole = \"viewer\"\nsecret_env = \"JOBS\"", "has this secret"),
        ("name = \"a\"\nrole = \"app\"\nsecret_env = \"SHORT\"", "could be guessed"),
        ("name = \"a\"\nrole = \"app\"\nsecret_env = \"UNSET\"", "is not set"),
        ("name = \"a\"\nrole = \"viewer\"\nsecret_env = \"A\"\nscopes = \"b\"", "has `scopes`"),
        ("name = \"a\"\nrole = \"metrics\"\nsecret_env = \"A\"\ncaller = \"b\"", "has `caller`"),
    ] {
        let error = token(text);
        assert!(error.contains(message), "{text}\n{error}");
    }
}

#[test]
fn a_scope_limits_what_it_names_once() {
    let scope = "[[scope]]\nname = \"a\"\nlease = \"5s\"\non_unknown = \"rerun\"\n";
    let config = load(&format!("{APP}{scope}")).unwrap();
    let [rule] = &config.scopes[..] else { panic!("{:?}", config.scopes) };
    assert_eq!((rule.lease, rule.retention), (Some(Duration::from_secs(5)), None));
    assert_eq!(rule.on_unknown, Some(OnUnknown::Rerun));
    assert!(refused(&format!("{APP}{scope}{scope}")).contains("described twice"));
    assert!(refused(&format!("{APP}[[scope]]\nlease = \"5s\"\n")).contains("needs `name`"));
}

#[test]
fn servers_that_share_a_store_need_one_secret_for_claims() {
    let shared = format!("store = \"postgres://semel@db/semel\"\n{APP}");
    assert!(refused(&shared).contains("the same secret"));
    assert!(load(&format!("secret_env = \"SECRET\"\n{shared}")).is_ok());
    assert!(load(&shared.replace("\"app\"", "\"viewer\"")).is_err(), "it has no upstream");
}
