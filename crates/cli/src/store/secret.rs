//! The secret that turns a credential into a caller's name, the token of operators, and the files
//! that they are in.

use std::{
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, anyhow, bail};
use data_encoding::HEXLOWER;
use semel_tower::Secret;
use sha2::{Digest as _, Sha256};

use semel_admin::ApiTokens;
use semel_config::{
    Api, BearerToken, CallerSecret, Config, SecretSource, StoreUrl, TokenSource,
    private_files::{beside, private, read_secret, sync_folder},
};

/// What the files beside a store's file are called.
pub(super) const SECRET_SUFFIX: &str = ".secret";
pub(super) const SECRET_CHECK_SUFFIX: &str = ".secret-check";

/// Prefix of a secret that Semel generated: it shows that there was a store.
const DRAWN_PREFIX: &str = "semel-secret-";

/// Where the secret of a SQLite store is, unless the configuration says otherwise.
pub(crate) fn secret_beside(store: &Path) -> PathBuf {
    beside(store, SECRET_SUFFIX)
}

/// The secret that turns a credential into a caller's name.
#[derive(Debug)]
pub(super) struct CallerKey {
    pub(super) secret: Secret,
    /// A fingerprint that identifies the secret without revealing it.
    pub(super) print: String,
    /// Its location if an operator configured it; `None` if it was generated.
    pub(super) origin: Option<String>,
    /// The file beside a SQLite store that is compared with it.
    pub(super) check: Option<SecretCheck>,
}

/// What a store knows of the configured secrets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KnownSecret {
    /// It was used with none so far.
    None,
    Current,
    Former,
}

/// A secret that was in use before.
#[derive(Debug)]
pub(super) struct FormerKey {
    pub(super) secret: Secret,
    pub(super) print: String,
}

/// Finds the secret that was in use before. `value` is what the environment held.
pub(super) fn former_key(
    source: &SecretSource,
    value: Option<&CallerSecret>,
) -> anyhow::Result<FormerKey> {
    let (text, origin) = match source {
        SecretSource::Env(name) => {
            let value = value.with_context(|| format!("the variable {name} is not set"))?;
            (value.0.clone(), format!("the variable {name}"))
        }
        SecretSource::File(path) => (read_secret(path)?, path.display().to_string()),
        SecretSource::BesideStore => bail!("a former secret is in a variable or in a file"),
    };
    let text = text.trim_end();
    let secret = Secret::new(text).with_context(|| format!("{origin} has no valid secret"))?;
    Ok(FormerKey { secret, print: print_of(text) })
}

/// Finds the secret, or draws one where that is safe. `value` is what the environment held; `used`
/// is whether any route identifies callers by a credential; `has_records` whether the store was
/// used before. `former` is the secret before.
pub(super) fn caller_key(
    source: &SecretSource,
    store: &StoreUrl,
    value: Option<&CallerSecret>,
    used: bool,
    has_records: bool,
    former: Option<&FormerKey>,
) -> anyhow::Result<CallerKey> {
    let (text, origin) = match (source, store) {
        (SecretSource::Env(name), _) => {
            let CallerSecret(text) =
                value.with_context(|| format!("the variable {name} is not set"))?;
            (text.clone(), Some(format!("the variable {name}")))
        }
        (SecretSource::File(path), _) => (read_secret(path)?, Some(path.display().to_string())),
        (SecretSource::BesideStore, StoreUrl::Sqlite(store)) => {
            let path = secret_beside(store);
            if used && has_records {
                require_secret_file(store, &path)?;
            }
            (read_or_make(&path)?, Some(path.display().to_string()))
        }
        // No route needs it: a configuration that does is refused before.
        (SecretSource::BesideStore, StoreUrl::Postgres(_) | StoreUrl::Memory) => (draw()?, None),
    };
    let text = text.trim_end();
    let shown = || origin.as_deref().unwrap_or("a drawn secret");
    let secret = Secret::new(text).with_context(|| format!("{} has no valid secret", shown()))?;
    let print = print_of(text);
    let check = match store {
        StoreUrl::Sqlite(store) if used => Some(SecretCheck {
            path: beside(store, SECRET_CHECK_SUFFIX),
            print: print.clone(),
            origin: shown().to_owned(),
            former: former.map(|former| former.print.clone()),
        }),
        StoreUrl::Sqlite(_) | StoreUrl::Postgres(_) | StoreUrl::Memory => None,
    };
    Ok(CallerKey { secret, print, origin, check })
}

/// The secret of a configuration, which must exist.
pub(crate) fn existing_caller_secret(config: &Config) -> anyhow::Result<Secret> {
    let text = match (&config.secret, &config.store) {
        (SecretSource::Env(name), _) => {
            let value = config.secret_value.as_ref();
            value.with_context(|| format!("the variable {name} is not set"))?.0.clone()
        }
        (SecretSource::File(path), _) => read_secret(path)?,
        (SecretSource::BesideStore, StoreUrl::Sqlite(store)) => read_secret(&secret_beside(store))?,
        (SecretSource::BesideStore, StoreUrl::Postgres(_) | StoreUrl::Memory) => {
            bail!("the configuration names no secret, so callers have no names that last")
        }
    };
    Secret::new(text.trim_end()).context("the secret is invalid")
}

fn print_of(secret: &str) -> String {
    let mut hash = Sha256::new();
    hash.update(b"the secret of a store of semel\0");
    hash.update(secret.as_bytes());
    HEXLOWER.encode(hash.finalize().get(..16).unwrap_or_default())
}

/// Refuses to draw a secret for a store that has been used: with another secret no caller would be
/// recognised, and every key that has run would run again.
fn require_secret_file(store: &Path, secret: &Path) -> anyhow::Result<()> {
    if !secret.exists() {
        let (store, secret) = (store.display(), secret.display());
        bail!(
            "{store} has records, and its secret {secret} is missing: with a new one no caller \
             would \
             be recognised, and keys that have run would run again; restore the file, or, if \
             that is intended, create one: openssl rand -hex 32 > {secret}"
        );
    }
    Ok(())
}

/// Compares the secret with the one that the store was used with before, by a hash beside the
/// store. A former secret may be followed by another one.
#[derive(Debug)]
pub(super) struct SecretCheck {
    path: PathBuf,
    print: String,
    origin: String,
    former: Option<String>,
}

impl SecretCheck {
    /// Refuses a secret that the store was not used with. Changes nothing.
    pub(super) fn compare(&self) -> anyhow::Result<KnownSecret> {
        let known = match fs::read_to_string(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(KnownSecret::None),
            read => read.with_context(|| format!("{} cannot be read", self.path.display()))?,
        };
        let known = known.trim_end();
        if known == self.print {
            return Ok(KnownSecret::Current);
        }
        if self.former.as_deref() == Some(known) {
            return Ok(KnownSecret::Former);
        }
        bail!(
            "{} holds another secret than the one that this store was used with: no caller would \
             be recognised, and keys that have run would run again; set the old one again, or name \
             it with `secret_before_env` or `secret_before_file`, or, if that is what you want, \
             delete {}",
            self.origin,
            self.path.display()
        )
    }

    /// Saves that the store is used with this secret.
    pub(super) fn save(&self) -> anyhow::Result<()> {
        read_or_keep(&self.path, &self.print)?;
        // Another process may have been faster.
        if self.compare()? == KnownSecret::Former {
            let unwritten = || format!("{} cannot be written", self.path.display());
            replace(&self.path, self.print.as_bytes()).with_context(unwritten)?;
        }
        Ok(())
    }
}

/// Forgets which secret a store was used with: the one to come is another store.
pub(crate) fn forget_secret_check(store: &Path) -> anyhow::Result<()> {
    let check = beside(store, SECRET_CHECK_SUFFIX);
    match fs::remove_file(&check) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("{} cannot be removed", check.display()))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// The tokens that the API accepts.
pub(crate) fn api_tokens(api: &Api) -> anyhow::Result<ApiTokens> {
    let mut tokens = ApiTokens::new();
    let operator = match &api.operator_token_file {
        Some(path) => Some(token_in(path)?),
        None => api.operator_token.clone(),
    };
    if let Some(operator) = &operator {
        tokens = tokens.with_operator(operator);
    }
    for token in &api.tokens {
        let secret = |source: &TokenSource| match source {
            TokenSource::Env(_, token) => Ok(token.clone()),
            TokenSource::File(path) => token_in(path),
        };
        let secrets = token.secrets.iter().map(secret).collect::<anyhow::Result<Vec<_>>>()?;
        tokens = tokens.with(token, &secrets);
    }
    Ok(tokens)
}

fn token_in(path: &Path) -> anyhow::Result<BearerToken> {
    let token = BearerToken::new(&read_secret(path)?);
    token.map_err(|wrong| anyhow!("the file {} {wrong}", path.display()))
}

/// The secret in a file, which is created if it is missing. If several processes create it at once,
/// one wins, and the others read its secret.
pub(super) fn read_or_make(path: &Path) -> anyhow::Result<String> {
    read_or_keep(path, &format!("{DRAWN_PREFIX}{}", draw()?))?;
    read_secret(path)
}

/// Whether the secret in a file was drawn by Semel.
pub(super) fn is_drawn(path: &Path) -> anyhow::Result<bool> {
    let text = fs::read_to_string(path);
    let text = text.with_context(|| format!("the secret in {} cannot be read", path.display()))?;
    Ok(text.starts_with(DRAWN_PREFIX))
}

/// What a file holds, which is this if the file is not there.
fn read_or_keep(path: &Path, text: &str) -> anyhow::Result<String> {
    let made = || format!("{} cannot be made", path.display());
    if !path.try_exists().with_context(made)? {
        make(path, text.as_bytes()).with_context(made)?;
    }
    fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))
}

/// Makes a file with this content, whole and durable, unless it is there already.
fn make(path: &Path, content: &[u8]) -> io::Result<()> {
    let temporary = beside(path, &format!(".{}", draw().map_err(io::Error::other)?));
    let mut file = private().create_new(true).open(&temporary)?;
    let linked = file
        .write_all(content)
        .and_then(|()| file.sync_all())
        // A link, not a rename: it never replaces what another process has put there.
        .and_then(|()| fs::hard_link(&temporary, path));
    fs::remove_file(&temporary)?;
    match linked {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        Ok(()) | Err(_) => sync_folder(path),
    }
}

/// Replaces the content of a file, whole and durable.
fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let temporary = beside(path, &format!(".{}", draw().map_err(io::Error::other)?));
    let mut file = private().create_new(true).open(&temporary)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    sync_folder(path)
}

/// 32 random bytes, as 64 hexadecimal digits.
fn draw() -> anyhow::Result<String> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).context("the system has no random numbers")?;
    Ok(HEXLOWER.encode(&bytes))
}

#[cfg(test)]
mod tests {
    use std::thread;

    use semel_config::private_files::is_open_to_others;

    use super::*;

    /// As a start does that goes on.
    fn save(key: &CallerKey) -> anyhow::Result<()> {
        let check = key.check.as_ref().unwrap();
        check.compare()?;
        check.save()
    }

    #[test]
    fn the_secret_beside_a_store_is_made_once_for_this_user_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("semel.db.secret");
        let made: Vec<String> = thread::scope(|scope| {
            let threads: Vec<_> =
                (0..8).map(|_| scope.spawn(|| read_or_make(&path).unwrap())).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(made.first().unwrap().len(), DRAWN_PREFIX.len() + 64);
        assert!(made.iter().all(|secret| Some(secret) == made.first()));
        assert!(!is_open_to_others(&path));
        let left: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
        assert_eq!(left.len(), 1, "no temporary file is left");
        let store = StoreUrl::Sqlite(folder.path().join("semel.db"));
        assert!(caller_key(&SecretSource::BesideStore, &store, None, true, false, None).is_ok());
    }

    #[test]
    fn a_token_may_come_from_a_file_and_is_trimmed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        assert!(format!("{:#}", token_in(&path).unwrap_err()).contains("cannot be read"));
        for bad in ["", "short", "an operator's token", "an-operators-tök€n"] {
            fs::write(&path, bad).unwrap();
            let error = token_in(&path).unwrap_err().to_string();
            assert!(error.contains("/token ") && (bad.is_empty() || !error.contains(bad)));
        }
        fs::write(&path, " \n an-operators-token \r\n").unwrap();
        let BearerToken(token) = token_in(&path).unwrap();
        assert_eq!(token, "an-operators-token");
    }

    #[test]
    fn a_secret_may_come_from_a_variable_or_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let from =
            |source| caller_key(&source, &StoreUrl::Memory, None, true, false, None).map(|_| ());
        let value = CallerSecret("0123456789abcdef".into());
        let good = SecretSource::Env("GOOD".into());
        assert!(caller_key(&good, &StoreUrl::Memory, Some(&value), true, false, None).is_ok());
        let error = from(SecretSource::Env("OTHER".into())).unwrap_err();
        assert_eq!(error.to_string(), "the variable OTHER is not set");
        let path = folder.path().join("secret");
        fs::write(&path, "short\n").unwrap();
        let error = format!("{:#}", from(SecretSource::File(path.clone())).unwrap_err());
        assert!(error.contains("5 bytes"), "{error}");
        fs::write(&path, "0123456789abcdef\n").unwrap();
        assert!(from(SecretSource::File(path)).is_ok());
        assert!(from(SecretSource::BesideStore).is_ok());
    }

    #[test]
    fn a_secret_may_follow_the_one_that_the_store_was_used_with() {
        let folder = tempfile::tempdir().unwrap();
        let store = StoreUrl::Sqlite(folder.path().join("semel.db"));
        let key = |text: &str| {
            let source = SecretSource::Env("BEFORE".into());
            former_key(&source, Some(&CallerSecret(text.to_owned()))).unwrap()
        };
        let start = |text: &str, former: Option<&FormerKey>| {
            let (source, value) = (SecretSource::Env("S".into()), CallerSecret(text.to_owned()));
            let key = caller_key(&source, &store, Some(&value), true, false, former)?;
            save(&key)
        };
        let (one, two) = ("the first secret, long", "the second secret, long");
        start(one, None).unwrap();
        assert!(start(two, None).is_err());
        assert!(start(two, Some(&key("another secret, long"))).is_err());
        start(two, Some(&key(one))).unwrap();
        start(two, None).unwrap();
        assert!(start(one, None).is_err(), "the store is used with the second now");
        start(one, Some(&key(two))).unwrap();
    }

    #[test]
    fn a_store_that_has_been_used_keeps_its_secret() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("semel.db");
        let store = StoreUrl::Sqlite(path.clone());
        let start_with = |source: &SecretSource, value: Option<&str>, has_records| {
            let value = value.map(|value| CallerSecret(value.to_owned()));
            save(&caller_key(source, &store, value.as_ref(), true, has_records, None)?)
        };
        let start = |source: &SecretSource, value| start_with(source, value, true);
        let (beside_store, env) = (SecretSource::BesideStore, SecretSource::Env("S".into()));
        start_with(&beside_store, None, false).unwrap();
        start(&beside_store, None).unwrap();
        let error = start(&env, Some("another secret than before")).unwrap_err().to_string();
        assert!(error.contains("another secret"), "{error}");
        fs::remove_file(beside(&path, ".secret")).unwrap();
        let error = start(&beside_store, None).unwrap_err().to_string();
        assert!(error.contains("restore the file"), "{error}");
        assert!(!beside(&path, ".secret").exists(), "none is drawn");
    }
}
