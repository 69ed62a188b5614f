//! Opens the store of a URL, with its cache and its secret. A store is created only if there are no
//! traces of an earlier one.

#[cfg_attr(not(feature = "redis"), path = "store/no_cache.rs")]
pub(crate) mod cache;
mod identity;
mod secret;
mod traces;

use std::{fs, path::Path, sync::Arc, time::SystemTime};

use anyhow::{Context as _, bail};
use bytes::Bytes;
use jiff::Timestamp;
use semel::{MemoryStore, core::Store};
use semel_gateway::{CallerSecrets, FormerSecret};
use semel_postgres::Presence;
use semel_sqlite::{NoStore, SqliteStore};

use self::secret::{CallerKey, FormerKey, KnownSecret, SecretCheck, caller_key, former_key};
pub(crate) use self::{
    identity::public_id,
    secret::{api_tokens, existing_caller_secret, forget_secret_check, secret_beside},
    traces::Traces,
};
use semel_config::{
    Api, Config, Password, Route, ServerUrl, StoreUrl,
    private_files::{folder_of, is_open_to_others},
};

/// A store with its secrets.
pub(crate) struct OpenStore {
    /// The store, behind its cache.
    pub(crate) store: Arc<dyn Store>,
    /// The secrets that hash credentials into caller names.
    pub(crate) secrets: CallerSecrets,
    /// Secrets that were in use, and that are not configured any more.
    pub(crate) dropped_secrets: Vec<DroppedSecret>,
    /// Changes to the remembered secrets, written once the configuration is applied.
    pub(crate) secret_updates: SecretUpdates,
    /// Creation time of the store.
    pub(crate) created_at: SystemTime,
}

/// A secret that is not configured any more. There may be records that are named with it.
#[derive(Clone, Debug)]
pub(crate) struct DroppedSecret {
    /// Its entry in the store's metadata.
    pub(crate) name: Box<str>,
    /// Time when another secret replaced it.
    pub(crate) since: Timestamp,
}

/// A store without its cache.
struct BareStore {
    store: Arc<dyn Store>,
    created_at: SystemTime,
    is_new: bool,
    /// Whether a key was ever claimed in it, as far as that matters.
    has_records: bool,
}

/// Opens the store, creating it if there are no traces of an earlier one, and its secrets. It may
/// block. What the store knows of secrets does not change: a refused start must not keep the
/// previous configuration from starting again.
pub(crate) async fn open(config: &Config) -> anyhow::Result<OpenStore> {
    if config.cache.is_some() && !matches!(config.store, StoreUrl::Postgres(_)) {
        bail!("a cache is for gateways that share a store, one by postgres://: leave it out");
    }
    let BareStore { store, created_at, is_new, has_records } = match &config.store {
        StoreUrl::Memory => open_memory(),
        StoreUrl::Sqlite(path) => open_file(config, path)?,
        StoreUrl::Postgres(server) => open_database(config, server).await?,
    };
    let id = store.identity().await.context(OPEN_FAILED)?.map(public_id);
    refuse_other_store(config, id.as_deref())?;
    if is_new {
        let (store, store_id) = (&config.store, id.as_deref());
        tracing::warn!(%store, store_id, "created a new store: no key that ran before is known");
    }
    let seals_claims = config.api.as_ref().is_some_and(Api::takes_claims);
    let used = seals_claims || {
        let needs_secret = |route: &Route| route.hashes_callers() || route.issues_keys();
        config.routes.iter().any(needs_secret)
    };
    // After the store: a secret that Semel wrote says that there is one.
    let former = config.secret_before.as_ref();
    let former = former.map(|source| former_key(source, config.secret_before_value.as_ref()));
    let former = former.transpose()?;
    let (source, value) = (&config.secret, config.secret_value.as_ref());
    let key = caller_key(source, &config.store, value, used, has_records, former.as_ref())?;
    let database = match &config.store {
        StoreUrl::Postgres(server) => Some(postgres(server)?),
        StoreUrl::Memory | StoreUrl::Sqlite(_) => None,
    };
    let known = match (&key.check, &database) {
        (Some(check), _) => check.compare()?,
        (None, Some(database)) => compare_secret(database, &key, former.as_ref()).await?,
        (None, None) => KnownSecret::None,
    };
    let store = match &config.cache {
        Some(url) => cache::in_front_of(store, url).await?,
        None => store,
    };
    let former = former.filter(|former| former.print != key.print);
    let prints = former.iter().map(|former| &*former.print).chain([&*key.print]);
    let dropped_secrets = dropped_secrets(&*store, &prints.collect::<Vec<_>>()).await?;
    let mut change = None;
    let mut former_secret = None;
    if let Some(former) = &former {
        let saved = changed_at(&*store, &key.print, &former.print).await?;
        let since = saved.unwrap_or_else(Timestamp::now);
        former_secret = Some(FormerSecret { secret: former.secret.clone(), since: since.into() });
        // A secret that the store was never used with was not replaced.
        if saved.is_none() && known != KnownSecret::Current {
            change = Some(SecretChange {
                name: secret_entry(&key.print, &former.print),
                reverse: secret_entry(&former.print, &key.print),
                since,
            });
        }
    }
    let CallerKey { secret, print, origin, check } = key;
    let secrets = CallerSecrets { current: secret, former: former_secret };
    let database = database.filter(|_| origin.is_some());
    let former = former.map(|former| former.print);
    let secret_updates = SecretUpdates { change, check, database, print, former };
    Ok(OpenStore { store, secrets, dropped_secrets, secret_updates, created_at })
}

/// Changes to the saved secrets, written once a configuration is in force.
#[must_use]
pub(crate) struct SecretUpdates {
    change: Option<SecretChange>,
    check: Option<SecretCheck>,
    database: Option<semel_postgres::Options>,
    print: String,
    former: Option<String>,
}

/// One secret takes the place of another.
struct SecretChange {
    name: String,
    /// The entry of the opposite change: after a change back and forth, the time of the next
    /// change is another one.
    reverse: String,
    since: Timestamp,
}

impl SecretUpdates {
    /// Writes it to the store, first that a secret was replaced: without that, its records could be
    /// lost.
    pub(crate) async fn save(self, store: &Arc<dyn Store>) -> anyhow::Result<()> {
        if let Some(SecretChange { name, since, .. }) = &self.change {
            let since = since.to_string();
            store.set_metadata(name, Some(since.as_bytes())).await.context(SAVE_FAILED)?;
        }
        if let Some(check) = &self.check {
            check.save()?;
        }
        if let Some(database) = &self.database {
            let is_known = database.check_secret(&self.print).await.context(SAVE_FAILED)?;
            let is_replaced = match &self.former {
                Some(former) if !is_known => database.replace_secret(former, &self.print).await,
                _ => Ok(is_known),
            };
            if !is_replaced.context(SAVE_FAILED)? {
                bail!("another gateway has just begun to use this store with another secret");
            }
        }
        if let Some(SecretChange { reverse, .. }) = &self.change {
            store.set_metadata(reverse, None).await.context(SAVE_FAILED)?;
        }
        Ok(())
    }
}

/// What the names of all entries about secrets begin with.
const SECRET_PREFIX: &str = "secret:";

/// The name under which the store remembers when one secret took the place of another.
fn secret_entry(print: &str, former: &str) -> String {
    format!("{SECRET_PREFIX}{print}:{former}")
}

/// Secrets whose place another one took, except those that are configured.
async fn dropped_secrets(
    store: &dyn Store,
    configured: &[&str],
) -> anyhow::Result<Vec<DroppedSecret>> {
    let entries = store.metadata(SECRET_PREFIX).await.context(OPEN_FAILED)?;
    let dropped = |(name, value): (Box<str>, Bytes)| {
        let since: Timestamp = str::from_utf8(&value).ok()?.parse().ok()?;
        let (_, print) = name.rsplit_once(':')?;
        let is_dropped = !configured.contains(&print);
        is_dropped.then_some(DroppedSecret { name, since })
    };
    Ok(entries.into_iter().filter_map(dropped).collect())
}

/// When a secret took the place of another one, if the store knows of it.
async fn changed_at(
    store: &dyn Store,
    print: &str,
    former: &str,
) -> anyhow::Result<Option<Timestamp>> {
    let name = secret_entry(print, former);
    let known = store.metadata(&name).await.context(OPEN_FAILED)?;
    Ok(known.iter().find_map(|(_, value)| str::from_utf8(value).ok()?.parse().ok()))
}

/// Context of errors while opening.
const OPEN_FAILED: &str = "the store cannot be opened";
const SAVE_FAILED: &str = "the store cannot save which secret it is used with";

#[expect(clippy::disallowed_methods, reason = "it is as old as the process")]
fn open_memory() -> BareStore {
    let (store, created_at) = (Arc::new(MemoryStore::new()), SystemTime::now());
    BareStore { store, created_at, is_new: false, has_records: false }
}

fn open_file(config: &Config, path: &Path) -> anyhow::Result<BareStore> {
    need_folder(path)?;
    let traces = Traces::of_file(path, config.api.as_ref().map(|api| &*api.audit))?;
    let traces = traces.or_configured(config.store_id.as_deref());
    let options = semel_sqlite::Options::new().create_if_missing(traces.is_empty());
    let store = match options.open(path) {
        Err(error) if NoStore::is_cause_of(&error) => return Err(traces.refusal(&config.store)),
        opened => opened.context(OPEN_FAILED)?,
    };
    let info = store.info().clone();
    Ok(BareStore {
        store: Arc::new(store),
        created_at: info.created_at,
        is_new: info.is_new,
        has_records: info.is_used,
    })
}

async fn open_database(config: &Config, server: &ServerUrl) -> anyhow::Result<BareStore> {
    let options = postgres(server)?;
    let Presence { store: before, others, .. } =
        options.find_stores().await.context(OPEN_FAILED)?;
    if before.is_none() && options.may_migrate() {
        let audit = config.api.as_ref().map(|api| &*api.audit);
        let traces = Traces::of_database(&others, audit);
        let traces = traces.or_configured(config.store_id.as_deref());
        if !traces.is_empty() {
            return Err(traces.refusal(&config.store));
        }
    }
    let store = options.connect().await.context(OPEN_FAILED)?;
    let is_new = before.is_none();
    let present = match before {
        Some(present) => Some(present),
        None => options.find_stores().await.context(OPEN_FAILED)?.store,
    };
    let created_at = present.map_or(SystemTime::UNIX_EPOCH, |present| present.created_at);
    // Its secret is never drawn, so it does not matter whether it has records.
    Ok(BareStore { store: Arc::new(store), created_at, is_new, has_records: true })
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
            Ok(Arc::new(options.connect().await.context(OPEN_FAILED)?))
        }
    }
}

/// Opens a file that must hold a store already.
pub(crate) fn existing_file(path: &Path) -> anyhow::Result<SqliteStore> {
    match semel_sqlite::Options::new().create_if_missing(false).open(path) {
        Err(error) if NoStore::is_cause_of(&error) => {
            bail!("there is no store at {}: name it with --store sqlite:PATH", path.display())
        }
        opened => opened.context(OPEN_FAILED),
    }
}

/// How to reach a PostgreSQL store.
pub(crate) fn postgres(server: &ServerUrl) -> anyhow::Result<semel_postgres::Options> {
    let url = server.to_connect(passwords(server)?.as_deref());
    Ok(semel_postgres::Options::parse(&url)?)
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

/// Compares a configured secret with the one that the store was used with before. A former secret
/// may be followed by another one. Changes nothing.
async fn compare_secret(
    store: &semel_postgres::Options,
    key: &CallerKey,
    former: Option<&FormerKey>,
) -> anyhow::Result<KnownSecret> {
    let Some(origin) = &key.origin else { return Ok(KnownSecret::None) };
    let uncompared = "the secret cannot be compared";
    let is_current = store.compare_secret(&key.print).await.context(uncompared)?;
    let is_former = match former {
        Some(former) => store.compare_secret(&former.print).await.context(uncompared)?,
        None => false,
    };
    match (is_current, is_former) {
        (true, true) => return Ok(KnownSecret::None),
        (true, false) => return Ok(KnownSecret::Current),
        (false, true) => return Ok(KnownSecret::Former),
        (false, false) => {}
    }
    bail!(
        "{origin} holds another secret than the one that this store was used with: no caller \
         would be recognised, and keys that have run would run again; set the old one again, or \
         name it with `secret_before_env` or `secret_before_file`, or, if that is what you want: \
         {}",
        store.forget_secret()
    )
}

pub(crate) fn need_folder(path: &Path) -> anyhow::Result<()> {
    let folder = folder_of(path);
    if !folder.is_dir() {
        bail!("the folder {} does not exist; create it first", folder.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests;
