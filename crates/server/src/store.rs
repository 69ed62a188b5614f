//! Opens the store that a URL names, with the cache in front of it and the secret that belongs to
//! it.

mod secret;

use std::{fs, path::Path, sync::Arc, time::SystemTime};

use anyhow::{Context as _, bail};
use jiff::Timestamp;
use semel::{MemoryStore, core::Store};
use semel_sqlite::SqliteStore;
use semel_tower::Secret;

use self::secret::{CallerKey, FormerKey, caller_key, former_key};
pub(crate) use self::secret::{
    beside, folder_of, hexadecimal, is_open_to_others, operator_token, private, read_secret,
    sync_folder,
};
use crate::config::{CacheUrl, Config, Password, Route, ServerUrl, StoreUrl};

/// The secrets that callers' names are made with.
#[derive(Clone, Debug)]
pub(crate) struct CallerSecrets {
    /// Records are written under this one.
    pub(crate) current: Secret,
    /// Records may be found under this one, too.
    pub(crate) former: Option<FormerSecret>,
}

/// A secret that was in use before.
#[derive(Clone, Debug)]
pub(crate) struct FormerSecret {
    pub(crate) secret: Secret,
    /// When another one took its place.
    pub(crate) since: SystemTime,
}

impl CallerSecrets {
    pub(crate) const fn new(current: Secret) -> Self {
        Self { current, former: None }
    }
}

/// Opens what a server works with: the store, made if it is not there, and the secrets that its
/// callers' names are made with. It may block.
pub(crate) async fn open(config: &Config) -> anyhow::Result<(Arc<dyn Store>, CallerSecrets)> {
    if config.cache.is_some() && !matches!(config.store, StoreUrl::Postgres(_)) {
        bail!("a cache is for gateways that share a store, one by postgres://: leave it out");
    }
    let used = config.routes.iter().any(Route::hashes_callers);
    let former = config.secret_before.as_ref();
    let former = former.map(|source| former_key(source, config.secret_before_value.as_ref()));
    let former = former.transpose()?;
    // Before the store: whether that is a new one decides whether a secret may be drawn.
    let value = config.secret_value.as_ref();
    let key = caller_key(&config.secret, &config.store, value, used, former.as_ref())?;
    let store: Arc<dyn Store> = match &config.store {
        StoreUrl::Memory => Arc::new(MemoryStore::new()),
        StoreUrl::Sqlite(path) => Arc::new(open_file(path)?),
        StoreUrl::Postgres(server) => {
            let options = postgres(server)?;
            let store = options.connect().await.context(UNOPENED)?;
            recognise(&options, &key, former.as_ref()).await?;
            Arc::new(store)
        }
    };
    let store = behind(store, config.cache.as_ref()).await?;
    let former = match former.filter(|former| former.print != key.print) {
        Some(former) => {
            let since = changed_at(&*store, &key.print, &former.print).await?;
            Some(FormerSecret { secret: former.secret, since })
        }
        None => None,
    };
    Ok((store, CallerSecrets { current: key.secret, former }))
}

/// When a secret took the place of another one: when that was first said of this store.
async fn changed_at(store: &dyn Store, print: &str, former: &str) -> anyhow::Result<SystemTime> {
    let name = format!("secret:{print}:{former}");
    let known = store.metadata(&name).await.context(UNOPENED)?;
    let known = known.iter().find_map(|(_, value)| str::from_utf8(value).ok()?.parse().ok());
    let since: Timestamp = match known {
        Some(since) => since,
        None => {
            let now = Timestamp::now();
            let text = now.to_string();
            store.set_metadata(&name, Some(text.as_bytes())).await.context(UNOPENED)?;
            now
        }
    };
    Ok(since.into())
}

/// What is said before the reason.
const UNOPENED: &str = "the store cannot be opened";

/// Opens a store that must be there already: a mistyped name must not look like an empty store.
pub(crate) async fn open_existing(url: &StoreUrl) -> anyhow::Result<Arc<dyn Store>> {
    match url {
        StoreUrl::Memory => bail!(
            "a store in memory lives inside its server: name that with --server http://HOST:PORT"
        ),
        StoreUrl::Sqlite(path) if !path.exists() => {
            bail!("there is no store at {}: name it with --store sqlite:PATH", path.display())
        }
        StoreUrl::Sqlite(path) => Ok(Arc::new(open_file(path)?)),
        StoreUrl::Postgres(server) => {
            let options = postgres(server)?.migrating(false);
            Ok(Arc::new(options.connect().await.context(UNOPENED)?))
        }
    }
}

/// How to reach a PostgreSQL store.
pub(crate) fn postgres(server: &ServerUrl) -> anyhow::Result<semel_postgres::Options> {
    let url = server.to_connect(passwords(server)?.as_deref());
    Ok(semel_postgres::Options::parse(&url)?)
}

/// How to reach a Redis cache.
pub(crate) fn redis(CacheUrl(server): &CacheUrl) -> anyhow::Result<semel_redis::Options> {
    Ok(semel_redis::Options::parse(&server.to_connect(None))?)
}

/// The file with passwords, if that is where the password of this server is.
fn passwords(server: &ServerUrl) -> anyhow::Result<Option<String>> {
    let Password::InFile(path) = server.password() else { return Ok(None) };
    let shown = path.display();
    let text = fs::read_to_string(path);
    let text = text.with_context(|| format!("the passwords in {shown} cannot be read"))?;
    if is_open_to_others(path) {
        bail!("the passwords in {shown} can be read by other users: chmod 600 {shown}");
    }
    Ok(Some(text))
}

async fn behind(store: Arc<dyn Store>, cache: Option<&CacheUrl>) -> anyhow::Result<Arc<dyn Store>> {
    let Some(cache) = cache else { return Ok(store) };
    let front = semel_redis::Front::connect(store, redis(cache)?).await;
    Ok(Arc::new(front.context("the cache cannot be used")?))
}

/// Compares a configured secret with the one that the store was used with before. A former secret
/// may be followed by another one.
async fn recognise(
    store: &semel_postgres::Options,
    key: &CallerKey,
    former: Option<&FormerKey>,
) -> anyhow::Result<()> {
    let Some(origin) = &key.origin else { return Ok(()) };
    let uncompared = "the secret cannot be compared";
    if store.recognise(&key.print).await.context(uncompared)? {
        return Ok(());
    }
    if let Some(former) = former
        && store.replace_secret(&former.print, &key.print).await.context(uncompared)?
    {
        return Ok(());
    }
    bail!(
        "{origin} holds another secret than the one that this store was used with: every caller \
         would be a stranger, and keys that have run would run again; set the old one again, or \
         name it with `secret_before_env` or `secret_before_file`, or, if that is what you want: \
         {}",
        store.forget_secret()
    )
}

fn open_file(path: &Path) -> anyhow::Result<SqliteStore> {
    need_folder(path)?;
    SqliteStore::open(path).context(UNOPENED)
}

fn need_folder(path: &Path) -> anyhow::Result<()> {
    let folder = folder_of(path);
    if !folder.is_dir() {
        bail!("the folder {} is not there: make it first", folder.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("missing").join("semel.db");
        let error = open_file(&path).unwrap_err().to_string();
        assert!(error.contains("missing is not there"), "{error}");
    }

    #[test]
    fn what_is_not_a_store_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notes.txt");
        fs::write(&path, "not a database, whatever its name says".repeat(100)).unwrap();
        let error = format!("{:#}", open_file(&path).unwrap_err());
        assert!(error.contains("not a SQLite database"), "{error}");
    }

    #[tokio::test]
    async fn a_store_that_must_be_there_is_not_made() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("semel.db");
        let url = StoreUrl::Sqlite(path.clone());
        assert!(open_existing(&url).await.is_err());
        assert!(!path.exists());
        drop(open_file(&path).unwrap());
        assert!(open_existing(&url).await.is_ok());
    }
}
