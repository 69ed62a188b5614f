//! The secret that turns a credential into a caller's name, the token of operators, and the files
//! that they are in.

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, anyhow, bail};
use semel_tower::Secret;
use sha2::{Digest as _, Sha256};

use crate::config::{Api, CallerSecret, OperatorToken, SecretSource, StoreUrl};

/// What the files beside a store's file are called.
pub(super) const SECRET_SUFFIX: &str = ".secret";
pub(super) const SECRET_CHECK_SUFFIX: &str = ".secret-check";

/// What a secret begins with that was drawn here: it tells that there was a store.
const DRAWN_PREFIX: &str = "semel-secret-";

/// The file beside a store's file: its path and a suffix.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

/// Where the secret of a SQLite store is, unless the configuration says otherwise.
pub(crate) fn secret_beside(store: &Path) -> PathBuf {
    beside(store, SECRET_SUFFIX)
}

/// The secret that turns a credential into a caller's name.
#[derive(Debug)]
pub(super) struct CallerKey {
    pub(super) secret: Secret,
    /// Tells it from another secret, and says nothing else of it.
    pub(super) print: String,
    /// Where an operator has put it; `None` if it was drawn.
    pub(super) origin: Option<String>,
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
    let secret = Secret::new(text).with_context(|| format!("{origin} holds no good secret"))?;
    Ok(FormerKey { secret, print: print_of(text) })
}

/// Finds the secret, or draws one where that is safe. `value` is what the environment held; `used`
/// is whether any route tells callers by a credential; `has_records` whether the store was used
/// before. `former` is the secret before.
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
                refuse_to_forget(store, &path)?;
            }
            (read_or_make(&path)?, Some(path.display().to_string()))
        }
        // No route needs it: a configuration that does is refused before.
        (SecretSource::BesideStore, StoreUrl::Postgres(_) | StoreUrl::Memory) => (draw()?, None),
    };
    let text = text.trim_end();
    let shown = || origin.as_deref().unwrap_or("a drawn secret");
    let secret = Secret::new(text).with_context(|| format!("{} holds no good secret", shown()))?;
    let print = print_of(text);
    if let StoreUrl::Sqlite(store) = store
        && used
    {
        recognise(&print, &beside(store, SECRET_CHECK_SUFFIX), shown(), former)?;
    }
    Ok(CallerKey { secret, print, origin })
}

fn print_of(secret: &str) -> String {
    let mut hash = Sha256::new();
    hash.update(b"the secret of a store of semel\0");
    hash.update(secret.as_bytes());
    hexadecimal(hash.finalize().get(..16).unwrap_or_default())
}

/// With another secret every caller is a stranger, and every key that was sent before would run
/// once more. So none is drawn for a store that has been used.
fn refuse_to_forget(store: &Path, secret: &Path) -> anyhow::Result<()> {
    if !secret.exists() {
        let (store, secret) = (store.display(), secret.display());
        bail!(
            "{store} has records, and its secret {secret} is not there: with a new one every \
             caller would be a stranger, and keys that have run would run again; put the file \
             back, or, if that is what you want, make one: openssl rand -hex 32 > {secret}"
        );
    }
    Ok(())
}

/// Compares the secret with the one that the store was used with before, by a hash beside the
/// store. A former secret may be followed by another one.
fn recognise(
    print: &str,
    check: &Path,
    origin: &str,
    former: Option<&FormerKey>,
) -> anyhow::Result<()> {
    let known = read_or_keep(check, print)?;
    let known = known.trim_end();
    if known == print {
        return Ok(());
    }
    if former.is_some_and(|former| former.print == known) {
        let replaced = || format!("{} cannot be written", check.display());
        return replace(check, print.as_bytes()).with_context(replaced);
    }
    bail!(
        "{origin} holds another secret than the one that this store was used with: every caller \
         would be a stranger, and keys that have run would run again; set the old one again, or \
         name it with `secret_before_env` or `secret_before_file`, or, if that is what you want, \
         delete {}",
        check.display()
    )
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

/// The secret in a file, with a word to whoever lets others read it.
pub(crate) fn read_secret(path: &Path) -> anyhow::Result<String> {
    let text = fs::read_to_string(path)
        .with_context(|| format!("the secret in {} cannot be read", path.display()))?;
    if is_open_to_others(path) {
        let path = path.display();
        tracing::warn!(%path, "the secret can be read by other users: chmod 600");
    }
    Ok(text)
}

/// What an operator has to send; `None` where nothing is configured.
pub(crate) fn operator_token(api: &Api) -> anyhow::Result<Option<OperatorToken>> {
    let Some(path) = &api.operator_token_file else { return Ok(api.operator_token.clone()) };
    let token = OperatorToken::new(&read_secret(path)?);
    token.map(Some).map_err(|wrong| anyhow!("the file {} {wrong}", path.display()))
}

/// The secret in a file, which is made if it is not there. Of several processes that make it at
/// once, one wins, and the others read what it wrote.
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

/// Makes the names in a file's folder durable.
pub(crate) fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(folder_of(path))?.sync_all()
}

/// How to open a file for writing that is this user's alone when it is made.
pub(crate) fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// The folder that a file is in.
pub(crate) fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        Some(_) | None => Path::new("."),
    }
}

/// Whether other users may read a file.
#[cfg(unix)]
pub(crate) fn is_open_to_others(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    fs::metadata(path).is_ok_and(|about| about.permissions().mode() & 0o077 != 0)
}

#[cfg(not(unix))]
pub(crate) fn is_open_to_others(_: &Path) -> bool {
    false
}

/// 32 random bytes, as 64 hexadecimal digits.
fn draw() -> anyhow::Result<String> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).context("the system has no random numbers")?;
    Ok(hexadecimal(&bytes))
}

/// Two digits for each byte.
pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

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
    fn the_operators_token_may_come_from_a_file_and_is_trimmed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let api = Api {
            listen: "127.0.0.1:0".parse().unwrap(),
            operator_token: None,
            operator_token_env: None,
            operator_token_file: Some(path.clone()),
            audit: "audit".into(),
        };
        assert!(format!("{:#}", operator_token(&api).unwrap_err()).contains("cannot be read"));
        for bad in ["", "short", "an operator's token", "an-operators-tök€n"] {
            fs::write(&path, bad).unwrap();
            let error = operator_token(&api).unwrap_err().to_string();
            assert!(error.contains("/token ") && (bad.is_empty() || !error.contains(bad)));
        }
        fs::write(&path, " \n an-operators-token \r\n").unwrap();
        let OperatorToken(token) = operator_token(&api).unwrap().unwrap();
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
            caller_key(&source, &store, Some(&value), true, false, former).map(drop)
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
            caller_key(source, &store, value.as_ref(), true, has_records, None).map(drop)
        };
        let start = |source: &SecretSource, value| start_with(source, value, true);
        let (beside_store, env) = (SecretSource::BesideStore, SecretSource::Env("S".into()));
        start_with(&beside_store, None, false).unwrap();
        start(&beside_store, None).unwrap();
        let error = start(&env, Some("another secret than before")).unwrap_err().to_string();
        assert!(error.contains("another secret"), "{error}");
        fs::remove_file(beside(&path, ".secret")).unwrap();
        let error = start(&beside_store, None).unwrap_err().to_string();
        assert!(error.contains("put the file back"), "{error}");
        assert!(!beside(&path, ".secret").exists(), "none is drawn");
    }
}
