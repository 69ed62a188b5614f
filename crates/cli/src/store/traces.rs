//! Traces of an earlier store. If there are any, no store is created implicitly: a lost store that
//! is recreated empty would run every key again.

use std::{
    fs, io,
    path::{self, Path, PathBuf},
};

use anyhow::{Context as _, anyhow};

use super::secret::{SECRET_CHECK_SUFFIX, SECRET_SUFFIX, is_drawn};
use semel_config::{StoreUrl, private_files::beside};
use semel_telemetry::escape;

/// Traces of an earlier store, as phrases.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Traces(Vec<String>);

/// What Semel keeps beside a SQLite file, and what it is.
const FILES: [(&str, &str); 3] = [
    (SECRET_CHECK_SUFFIX, "the check of its secret"),
    (".audit.jsonl", "its audit log"),
    ("-turn", "its lock file"),
];

/// What SQLite keeps beside it.
const LOG_SUFFIX: &str = "-wal";

impl Traces {
    /// Traces of an earlier store in the file at `path`.
    ///
    /// A store is made before everything that counts here. So these are looked for first, and the
    /// store after them: another process that makes all of it at this moment is not mistaken.
    pub(crate) fn of_file(path: &Path, audit: Option<&Path>) -> anyhow::Result<Self> {
        let mut traces = Vec::new();
        let secret = beside(path, SECRET_SUFFIX);
        // A provisioned secret was made for a store to come.
        if exists(&secret)? && is_drawn(&secret)? {
            traces.push(format!("{} (a secret that Semel wrote)", secret.display()));
        }
        for (suffix, what) in FILES {
            let file = beside(path, suffix);
            if exists(&file)? {
                traces.push(format!("{} ({what})", file.display()));
            }
        }
        let log = beside(path, LOG_SUFFIX);
        if is_orphaned(&log, path)? {
            traces.push(format!("{} (its write-ahead log)", log.display()));
        }
        let elsewhere = audit.filter(|audit| **audit != *beside(path, ".audit.jsonl"));
        if let Some(audit) = elsewhere
            && exists(audit)?
        {
            traces.push(format!("{} (the audit log)", audit.display()));
        }
        Ok(Self(traces))
    }

    /// Traces of an earlier store in a database: tables of other stores, and an audit log that
    /// was written to.
    pub(crate) fn of_database(tables: &[String], audit: Option<&Path>) -> Self {
        let tables = tables.iter().map(|table| format!("the table {table} of another store"));
        let written = audit.filter(|audit| fs::metadata(audit).is_ok_and(|file| file.len() > 0));
        let audit = written.map(|audit| format!("{} (the audit log)", audit.display()));
        Self(tables.chain(audit).collect())
    }

    /// A configuration that names the store expects it.
    pub(crate) fn or_configured(mut self, store_id: Option<&str>) -> Self {
        if let Some(id) = store_id {
            self.0.push(format!("`store_id = \"{id}\"` in the configuration"));
        }
        self
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The error that refuses to create a store, with the command that creates one.
    pub(crate) fn refusal(&self, url: &StoreUrl) -> anyhow::Error {
        anyhow!(
            "there is no store at {url}, but there was one before, as these say: {}. Without it \
             every key that has run runs again. Put it back (is the volume mounted, and is this \
             the right name?) or restore a backup. To begin with an empty store instead: \
             semel migrate --new-store --store {}",
            self.0.join(", "),
            escape::shell(&named(url)),
        )
    }
}

/// The URL of a store for a command that is typed elsewhere.
fn named(url: &StoreUrl) -> String {
    match url {
        StoreUrl::Sqlite(path) => format!("sqlite:{}", absolute(path).display()),
        StoreUrl::Postgres(_) | StoreUrl::Memory => url.to_string(),
    }
}

fn absolute(path: &Path) -> PathBuf {
    path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Whether there is a file of this name, be it a link that leads nowhere.
fn exists(path: &Path) -> anyhow::Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).with_context(|| format!("{} cannot be seen", path.display())),
    }
}

/// Whether a write-ahead log has lost its database.
///
/// A first start that was killed leaves an empty log, or the beginning of one beside a database
/// without tables. SQLite reads such a log together with its database, and what the two hold is for
/// the opening to judge. The log's size is read first: a process that creates a store at this
/// moment writes to the database before it writes to the log.
fn is_orphaned(log: &Path, database: &Path) -> anyhow::Result<bool> {
    Ok(bytes_in(log)? > 0 && bytes_in(database)? == 0)
}

/// The size of a file; 0 if there is none.
fn bytes_in(path: &Path) -> anyhow::Result<u64> {
    match fs::metadata(path) {
        Ok(file) => Ok(file.len()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(error).with_context(|| format!("{} cannot be seen", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traces(folder: &Path) -> Vec<String> {
        Traces::of_file(&folder.join("semel.db"), None).unwrap().0
    }

    #[test]
    fn files_that_semel_wrote_are_traces_and_a_provisioned_secret_is_not() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(traces(folder.path()), [""; 0]);
        let secret = folder.path().join("semel.db.secret");
        fs::write(&secret, "0123456789abcdef0123456789abcdef\n").unwrap();
        assert_eq!(traces(folder.path()), [""; 0]);
        fs::remove_file(&secret).unwrap();
        let store = folder.path().join("semel.db");
        super::super::secret::read_or_make(&secret).unwrap();
        assert_eq!(traces(folder.path()).len(), 1);
        for (suffix, _) in FILES {
            fs::remove_dir_all(folder.path()).unwrap();
            fs::create_dir(folder.path()).unwrap();
            fs::write(beside(&store, suffix), "").unwrap();
            assert_eq!(traces(folder.path()).len(), 1, "{suffix}");
        }
    }

    #[test]
    fn an_audit_log_is_a_trace_of_a_store_only_if_the_database_is_lost() {
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join("semel.db");
        let log = beside(&store, LOG_SUFFIX);
        fs::write(&log, "").unwrap();
        assert_eq!(traces(folder.path()), [""; 0], "an empty log holds nothing");
        fs::write(&log, "frames").unwrap();
        assert_eq!(traces(folder.path()).len(), 1, "the database is gone");
        fs::write(&store, "").unwrap();
        assert_eq!(traces(folder.path()).len(), 1, "the database has lost its content");
        fs::write(&store, "pages").unwrap();
        assert_eq!(traces(folder.path()), [""; 0], "SQLite reads the two together");
    }

    #[test]
    fn an_audit_log_elsewhere_is_a_trace_of_a_store() {
        let (folder, log) = (tempfile::tempdir().unwrap(), tempfile::NamedTempFile::new().unwrap());
        let store = folder.path().join("semel.db");
        let found = Traces::of_file(&store, Some(log.path())).unwrap();
        assert_eq!(found.0.len(), 1);
        assert!(Traces::of_database(&[], Some(log.path())).is_empty(), "the audit log is empty");
        fs::write(&log, "{}\n").unwrap();
        assert!(!Traces::of_database(&[], Some(log.path())).is_empty());
    }

    #[test]
    fn the_refusal_names_the_command_for_this_store() {
        let traces = Traces::default().or_configured(Some("0123"));
        let url = StoreUrl::Sqlite("/data/my store.db".into());
        let error = traces.refusal(&url).to_string();
        let command = "semel migrate --new-store --store 'sqlite:/data/my store.db'";
        assert!(error.ends_with(command), "{error}");
        assert!(error.contains("`store_id = \"0123\"`"), "{error}");
    }
}
