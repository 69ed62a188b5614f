//! Opens the store that a URL names, with the cache in front of it and the secret that belongs to
//! it. A store is created only where nothing speaks of an earlier one.

mod identity;
mod secret;
mod traces;

use std::{fs, path::Path, sync::Arc, time::SystemTime};

use anyhow::{Context as _, bail};
use jiff::Timestamp;
use semel::{MemoryStore, core::Store};
use semel_postgres::Presence;
use semel_sqlite::{NoStore, SqliteStore};
use semel_tower::Secret;

use self::secret::{CallerKey, FormerKey, caller_key, former_key};
pub(crate) use self::{
    identity::public_id,
    secret::{
        beside, folder_of, forget_secret_check, hexadecimal, is_open_to_others, operator_token,
        private, read_secret, secret_beside, sync_folder,
    },
    traces::Traces,
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

/// What a server works with.
pub(crate) struct OpenStore {
    /// The store, behind its cache.
    pub(crate) store: Arc<dyn Store>,
    /// What its callers' names are made with.
    pub(crate) secrets: CallerSecrets,
    /// When the store was created.
    pub(crate) created_at: SystemTime,
}

/// A store without what is in front of it.
struct Bare {
    store: Arc<dyn Store>,
    created_at: SystemTime,
    is_new: bool,
    /// Whether a key was ever claimed in it, as far as that matters.
    has_records: bool,
}

/// Opens what a server works with: the store, created if nothing speaks of an earlier one, and the
/// secret. It may block.
pub(crate) async fn open(config: &Config) -> anyhow::Result<OpenStore> {
    if config.cache.is_some() && !matches!(config.store, StoreUrl::Postgres(_)) {
        bail!("a cache is for gateways that share a store, one by postgres://: leave it out");
    }
    let Bare { store, created_at, is_new, has_records } = match &config.store {
        StoreUrl::Memory => open_memory(),
        StoreUrl::Sqlite(path) => serve_file(config, path)?,
        StoreUrl::Postgres(server) => serve_database(config, server).await?,
    };
    let id = store.identity().await.context(UNOPENED)?.map(public_id);
    refuse_other_store(config, id.as_deref())?;
    if is_new {
        let (store, store_id) = (&config.store, id.as_deref());
        tracing::warn!(%store, store_id, "created a new store: no key that ran before is known");
    }
    let used = config.routes.iter().any(Route::hashes_callers);
    // After the store: a secret that Semel wrote says that there is one.
    let former = config.secret_before.as_ref();
    let former = former.map(|source| former_key(source, config.secret_before_value.as_ref()));
    let former = former.transpose()?;
    let (source, value) = (&config.secret, config.secret_value.as_ref());
    let key = caller_key(source, &config.store, value, used, has_records, former.as_ref())?;
    if let StoreUrl::Postgres(server) = &config.store {
        recognise(&postgres(server)?, &key, former.as_ref()).await?;
    }
    let store = behind(store, config.cache.as_ref()).await?;
    let former = match former.filter(|former| former.print != key.print) {
        Some(former) => {
            let since = changed_at(&*store, &key.print, &former.print).await?;
            Some(FormerSecret { secret: former.secret, since })
        }
        None => None,
    };
    let secrets = CallerSecrets { current: key.secret, former };
    Ok(OpenStore { store, secrets, created_at })
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

#[expect(clippy::disallowed_methods, reason = "it is as old as the process")]
fn open_memory() -> Bare {
    let (store, created_at) = (Arc::new(MemoryStore::new()), SystemTime::now());
    Bare { store, created_at, is_new: false, has_records: false }
}

fn serve_file(config: &Config, path: &Path) -> anyhow::Result<Bare> {
    need_folder(path)?;
    let traces = Traces::of_file(path, config.api.as_ref().map(|api| &*api.audit))?;
    let traces = traces.or_configured(config.store_id.as_deref());
    let options = semel_sqlite::Options::new().create_if_missing(traces.is_empty());
    let store = match options.open(path) {
        Err(error) if NoStore::is_cause_of(&error) => return Err(traces.refusal(&config.store)),
        opened => opened.context(UNOPENED)?,
    };
    let info = store.info().clone();
    Ok(Bare {
        store: Arc::new(store),
        created_at: info.created_at,
        is_new: info.is_new,
        has_records: info.is_used,
    })
}

async fn serve_database(config: &Config, server: &ServerUrl) -> anyhow::Result<Bare> {
    let options = postgres(server)?;
    let Presence { store: before, others, .. } = options.presence().await.context(UNOPENED)?;
    if before.is_none() && options.may_migrate() {
        let audit = config.api.as_ref().map(|api| &*api.audit);
        let traces = Traces::of_database(&others, audit);
        let traces = traces.or_configured(config.store_id.as_deref());
        if !traces.is_empty() {
            return Err(traces.refusal(&config.store));
        }
    }
    let store = options.connect().await.context(UNOPENED)?;
    let is_new = before.is_none();
    let present = match before {
        Some(present) => Some(present),
        None => options.presence().await.context(UNOPENED)?.store,
    };
    let created_at = present.map_or(SystemTime::UNIX_EPOCH, |present| present.created_at);
    // Its secret is never drawn, so it does not matter whether it has records.
    Ok(Bare { store: Arc::new(store), created_at, is_new, has_records: true })
}

/// Refuses a store that is not the one that the configuration names.
fn refuse_other_store(config: &Config, found: Option<&str>) -> anyhow::Result<()> {
    let Some(expected) = config.store_id.as_deref() else { return Ok(()) };
    if found == Some(expected) {
        return Ok(());
    }
    bail!(
        "{} is another store than the configuration says: its id is {}, and store_id is \
         {expected}. Keys that have run elsewhere would run again. Name the right store, or \
         change store_id",
        config.store,
        found.unwrap_or("unknown"),
    )
}

/// Opens a store that must be there already: a mistyped name must not look like an empty store.
pub(crate) async fn open_existing(url: &StoreUrl) -> anyhow::Result<Arc<dyn Store>> {
    match url {
        StoreUrl::Memory => bail!(
            "a store in memory lives inside its server: name that with --server http://HOST:PORT"
        ),
        StoreUrl::Sqlite(path) => Ok(Arc::new(existing_file(path)?)),
        StoreUrl::Postgres(server) => {
            let options = postgres(server)?.migrating(false);
            Ok(Arc::new(options.connect().await.context(UNOPENED)?))
        }
    }
}

/// Opens a file that must hold a store already.
pub(crate) fn existing_file(path: &Path) -> anyhow::Result<SqliteStore> {
    match semel_sqlite::Options::new().create_if_missing(false).open(path) {
        Err(error) if NoStore::is_cause_of(&error) => {
            bail!("there is no store at {}: name it with --store sqlite:PATH", path.display())
        }
        opened => opened.context(UNOPENED),
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

pub(crate) fn need_folder(path: &Path) -> anyhow::Result<()> {
    let folder = folder_of(path);
    if !folder.is_dir() {
        bail!("the folder {} is not there: make it first", folder.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests;
