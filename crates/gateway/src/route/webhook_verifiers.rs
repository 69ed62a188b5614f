//! The webhook signature verifiers of the routes.

use anyhow::Context as _;
use semel_tower::Signature;

use semel_config::{
    Config, SignatureRule, WebhookSecret, WebhookSecretSource, private_files::read_secret,
};

/// The signature verifier of each route, in their order. Secret files are read once for all
/// workers, at the start and at each reload.
#[derive(Debug)]
pub(crate) struct WebhookVerifiers(Vec<Option<Signature>>);

impl WebhookVerifiers {
    pub(crate) fn new(config: &Config) -> anyhow::Result<Self> {
        let guards = config.routes.iter().map(|route| route.guard.as_ref());
        let rules = guards.map(|guard| guard.and_then(|guard| guard.signature.as_ref()));
        rules.map(|rule| rule.map(verifier).transpose()).collect::<Result<_, _>>().map(Self)
    }

    /// The verifier of the route with this index.
    pub(crate) fn for_route(&self, route: usize) -> Option<&Signature> {
        self.0.get(route).and_then(Option::as_ref)
    }
}

fn verifier(rule: &SignatureRule) -> anyhow::Result<Signature> {
    let mut secrets = Vec::new();
    for place in &rule.secrets {
        secrets.push(match place {
            WebhookSecretSource::Env(_, WebhookSecret(secret)) => secret.clone(),
            WebhookSecretSource::File(path) => {
                let secret = read_secret(path)?.trim().to_owned();
                let wrong = || format!("{} holds no secret for a signature", path.display());
                rule.build_verifier(&[&secret]).with_context(wrong)?;
                secret
            }
        });
    }
    Ok(rule.build_verifier(&secrets)?)
}
