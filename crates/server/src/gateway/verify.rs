//! What verifies the webhooks of each route, with the secrets as they are now.

use anyhow::Context as _;
use semel_tower::Signature;

use crate::{
    config::{Config, SecretPlace, SignatureRule, WebhookSecret},
    store::read_secret,
};

/// What verifies, for each route of a configuration in their order. Secrets in files are read once
/// for all threads, when the gateway starts and whenever it is reloaded.
#[derive(Debug)]
pub(super) struct Verifiers(Vec<Option<Signature>>);

impl Verifiers {
    pub(super) fn new(config: &Config) -> anyhow::Result<Self> {
        let guards = config.routes.iter().map(|route| route.guard.as_ref());
        let rules = guards.map(|guard| guard.and_then(|guard| guard.signature.as_ref()));
        rules.map(|rule| rule.map(verifier).transpose()).collect::<Result<_, _>>().map(Self)
    }

    /// What verifies for the route with this number.
    pub(super) fn of(&self, route: usize) -> Option<&Signature> {
        self.0.get(route).and_then(Option::as_ref)
    }
}

fn verifier(rule: &SignatureRule) -> anyhow::Result<Signature> {
    let mut secrets = Vec::new();
    for place in &rule.secrets {
        secrets.push(match place {
            SecretPlace::Env(_, WebhookSecret(secret)) => secret.clone(),
            SecretPlace::File(path) => {
                let secret = read_secret(path)?.trim().to_owned();
                let wrong = || format!("{} holds no secret for a signature", path.display());
                rule.with(&[&secret]).with_context(wrong)?;
                secret
            }
        });
    }
    Ok(rule.with(&secrets)?)
}
