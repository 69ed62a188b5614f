//! The verifiers of the tokens that name callers, and the caller rules of a route.

use anyhow::Context as _;
use semel_config::{CallerRule, Config, Guard, JwtKeySource, JwtRule, private_files::read_secret};
use semel_tower::{Callers, Jwks, JwtVerifier, Secret};

/// The token verifiers of a configuration, shared by all workers. Routes with equal rules share
/// one, and rules with the same URL share its keys.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallerVerifiers(Vec<(JwtRule, JwtVerifier)>);

impl CallerVerifiers {
    /// Builds the verifiers of a configuration. Keys from a URL that `known` has are used further;
    /// files are read again. Must be called in a runtime.
    pub(crate) fn new(config: &Config, known: &Self) -> anyhow::Result<Self> {
        let mut all = Self::default();
        for rule in jwt_rules(config) {
            if all.find(rule).is_some() {
                continue;
            }
            let kept = known.find(rule).filter(|_| is_url(rule)).cloned();
            let verifier = match kept {
                Some(verifier) => verifier,
                None => verifier(rule, all.keys_of(rule).or_else(|| known.keys_of(rule)))?,
            };
            all.0.push((rule.clone(), verifier));
        }
        Ok(all)
    }

    /// Verifiers that can only name callers.
    fn unverified(guard: &Guard) -> anyhow::Result<Self> {
        let keys = Jwks::secret(&[0; 32])?;
        let rules = guard.callers.iter().flat_map(jwt_rules_of);
        Ok(Self(rules.map(|rule| (rule.clone(), with_keys(rule, &keys))).collect()))
    }

    /// The key sets, each once.
    pub(crate) fn key_sets(&self) -> Vec<Jwks> {
        let mut sets: Vec<Jwks> = Vec::new();
        for (_, verifier) in &self.0 {
            if !sets.iter().any(|known| known.source() == verifier.keys().source()) {
                sets.push(verifier.keys().clone());
            }
        }
        sets
    }

    fn find(&self, rule: &JwtRule) -> Option<&JwtVerifier> {
        self.0.iter().find(|(known, _)| known == rule).map(|(_, verifier)| verifier)
    }

    /// The keys of another rule with the same URL.
    fn keys_of(&self, rule: &JwtRule) -> Option<&Jwks> {
        let same = |(known, _): &&(JwtRule, _)| is_url(rule) && known.keys == rule.keys;
        self.0.iter().find(same).map(|(_, verifier)| verifier.keys())
    }
}

const fn is_url(rule: &JwtRule) -> bool {
    matches!(rule.keys, JwtKeySource::Url(_))
}

fn jwt_rules(config: &Config) -> impl Iterator<Item = &JwtRule> {
    let guards = config.routes.iter().filter_map(|route| route.guard.as_ref());
    guards.flat_map(|guard| &guard.callers).flat_map(jwt_rules_of)
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the other rules verify no tokens")]
fn jwt_rules_of(rule: &CallerRule) -> Vec<&JwtRule> {
    match rule {
        CallerRule::Jwt(rule) => vec![rule],
        CallerRule::All(parts) => parts.iter().flat_map(|part| jwt_rules_of(&part.rule)).collect(),
        _ => Vec::new(),
    }
}

fn verifier(rule: &JwtRule, known: Option<&Jwks>) -> anyhow::Result<JwtVerifier> {
    let keys = match (&rule.keys, known) {
        (_, Some(keys)) => keys.clone(),
        (JwtKeySource::Url(url), None) => Jwks::url(url)?,
        (JwtKeySource::File(path), None) => Jwks::file(path)?,
        (JwtKeySource::SecretEnv(_, secret), None) => Jwks::secret(secret.0.as_bytes())?,
        (JwtKeySource::SecretFile(path), None) => {
            let secret = read_secret(path)?;
            let wrong = || format!("{} holds no secret for tokens", path.display());
            Jwks::secret(secret.trim().as_bytes()).with_context(wrong)?
        }
    };
    Ok(with_keys(rule, &keys))
}

fn with_keys(rule: &JwtRule, keys: &Jwks) -> JwtVerifier {
    JwtVerifier::new(keys, &rule.issuer, rule.audiences.clone())
        .claim(rule.claim.as_str())
        .leeway(rule.leeway)
}

/// The caller rules of a route that verify nothing: to tell an operator the stored name of a
/// caller, with [`Callers::name_unverified`].
pub fn unverified_callers(guard: &Guard, secret: &Secret) -> anyhow::Result<Callers> {
    callers(guard, secret, &CallerVerifiers::unverified(guard)?)
}

/// The caller rules of a route, with this secret.
pub(crate) fn callers(
    guard: &Guard,
    secret: &Secret,
    verifiers: &CallerVerifiers,
) -> anyhow::Result<Callers> {
    let rules = guard.callers.iter().map(|rule| caller_rule(rule, secret, verifiers));
    let callers = rules.reduce(|all, next| Ok(all?.or(next?)));
    callers.context("a guarded route needs a caller rule")?
}

fn caller_rule(
    rule: &CallerRule,
    secret: &Secret,
    verifiers: &CallerVerifiers,
) -> anyhow::Result<Callers> {
    Ok(match rule {
        CallerRule::Authorization => Callers::authorization(secret),
        CallerRule::Header(name) => Callers::header(name.clone())?,
        CallerRule::TrustedHeader { name, from } => {
            Callers::header_from(name.clone(), from.iter().copied())?
        }
        CallerRule::CredentialHeader(name) => Callers::credential_header(name.clone(), secret),
        CallerRule::Cookie(name) => Callers::cookie(name, secret),
        CallerRule::Jwt(rule) => {
            Callers::jwt(verifiers.find(rule).context("a jwt rule has no verifier")?)
        }
        CallerRule::Certificate(field) => Callers::client_certificate(*field),
        CallerRule::Host => Callers::host(),
        CallerRule::Anonymous => Callers::anonymous(),
        CallerRule::All(parts) => {
            let (optional, required): (Vec<_>, Vec<_>) =
                parts.iter().partition(|part| part.optional);
            let required = required.iter().map(|part| caller_rule(&part.rule, secret, verifiers));
            let all = required.reduce(|all, next| Ok(all?.and(next?)));
            let mut all = all.context("a caller rule needs a part that is not optional")??;
            for part in optional {
                all = all.and_optional(caller_rule(&part.rule, secret, verifiers)?);
            }
            all
        }
    })
}
