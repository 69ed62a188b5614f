//! Claims between processes that share a database file: one locked file for each running operation.
//!
//! SQLite has one lock for all writers, and an operation that took it at its claim would keep it
//! during a call to a bank. So a claim locks a file beside the database, which has no content. The
//! lock ends with its process, however the process ends.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io,
    path::{Path, PathBuf},
};

use semel_core::{Fingerprint, RecordId};

/// The running operations on a database file, for implementations of [`Database`](super::Database).
/// All users of the file must take the same claims: `semel-sqlite` and `semel-sqlx` do.
#[derive(Clone, Debug)]
pub struct ClaimFiles(PathBuf);

/// The right to run an operation, until it is dropped.
#[derive(Debug)]
pub struct ClaimFile {
    /// Closing it releases the lock, after the name is removed.
    file: File,
    path: PathBuf,
}

impl ClaimFiles {
    /// The claims of the database at `path`, which must exist. Files of crashed processes are
    /// removed.
    ///
    /// # Errors
    ///
    /// If the directory of claims beside the file cannot be created or read.
    pub fn open(path: &Path) -> io::Result<Self> {
        // Canonical, whatever links lead to it: all users of the file must find the same directory.
        let mut folder = fs::canonicalize(path)?.into_os_string();
        folder.push("-claims");
        let claims = Self(folder.into());
        fs::create_dir_all(&claims.0)?;
        for entry in fs::read_dir(&claims.0)? {
            drop(ClaimFile::take(entry?.path()));
        }
        Ok(claims)
    }

    /// Claims an operation; `None` if it is running. It does not wait.
    ///
    /// # Errors
    ///
    /// If its file cannot be created or locked.
    pub fn take(&self, id: &RecordId) -> io::Result<Option<ClaimFile>> {
        ClaimFile::take(self.path(id))
    }

    /// Whether an operation is running.
    ///
    /// # Errors
    ///
    /// If its file cannot be opened.
    pub fn is_taken(&self, id: &RecordId) -> io::Result<bool> {
        // A shared lock, so that two lookups do not block each other; and only if the file exists.
        match File::open(self.path(id)) {
            Ok(file) => match file.try_lock_shared() {
                Ok(()) => Ok(false),
                Err(TryLockError::WouldBlock) => Ok(true),
                Err(TryLockError::Error(error)) => Err(error),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The file of an operation. Its name is a digest, because clients must not choose file names.
    fn path(&self, id: &RecordId) -> PathBuf {
        let parts = [id.scope.as_str(), id.caller.as_str(), id.key.as_str()].map(str::as_bytes);
        let digest = Fingerprint::of_parts("semel.transactional", &parts);
        let name: String = digest.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        self.0.join(name)
    }
}

impl ClaimFile {
    fn take(path: PathBuf) -> io::Result<Option<Self>> {
        loop {
            let file = OpenOptions::new().create(true).append(true).open(&path)?;
            match file.try_lock() {
                Ok(()) if is_at(&file, &path)? => return Ok(Some(Self { file, path })),
                // The previous owner has removed the file meanwhile: this lock is on an unlinked
                // file.
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
    }
}

/// Whether this file still has this name.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt as _;
    let ours = file.metadata()?;
    match fs::metadata(path) {
        Ok(named) => Ok((named.dev(), named.ino()) == (ours.dev(), ours.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Where files cannot be compared, none is removed.
#[cfg(not(unix))]
fn is_at(_: &File, _: &Path) -> io::Result<bool> {
    Ok(true)
}

impl Drop for ClaimFile {
    fn drop(&mut self) {
        // The name first: a process that opens and locks the file afterwards sees that it is
        // unlinked.
        #[cfg(unix)]
        let _ = fs::remove_file(&self.path);
        let _ = self.file.unlock();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicU32, Ordering},
        thread,
    };

    use semel_core::{Caller, Key, Scope};

    use super::*;

    fn database(folder: &Path) -> PathBuf {
        let path = folder.join("shop.db");
        fs::write(&path, "").unwrap();
        path
    }

    fn id(key: &str) -> RecordId {
        RecordId::new(Scope::new("s").unwrap(), Caller::anonymous(), Key::new(key).unwrap())
    }

    #[test]
    fn a_claim_is_taken_once_until_it_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let path = database(folder.path());
        let (one, other) = (ClaimFiles::open(&path).unwrap(), ClaimFiles::open(&path).unwrap());
        for (one, other) in [(&one, &other), (&other, &one)] {
            let claim = one.take(&id("k")).unwrap().unwrap();
            assert!(one.take(&id("k")).unwrap().is_none());
            assert!(other.take(&id("k")).unwrap().is_none());
            assert!(other.is_taken(&id("k")).unwrap());
            assert!(other.take(&id("l")).unwrap().is_some());
            drop(claim);
            assert!(!other.is_taken(&id("k")).unwrap());
        }
        assert_eq!(fs::read_dir(&one.0).unwrap().count(), 0);
    }

    #[test]
    fn the_claim_file_of_a_crashed_process_is_free_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = database(folder.path());
        let claims = ClaimFiles::open(&path).unwrap();
        fs::write(claims.path(&id("k")), "").unwrap();
        assert!(!claims.is_taken(&id("k")).unwrap());
        assert!(claims.take(&id("k")).unwrap().is_some());
        fs::write(claims.path(&id("k")), "").unwrap();
        let living = claims.take(&id("l")).unwrap().unwrap();
        drop(ClaimFiles::open(&path).unwrap());
        assert_eq!(fs::read_dir(&claims.0).unwrap().count(), 1);
        assert!(claims.is_taken(&id("l")).unwrap());
        drop(living);
    }

    #[test]
    fn two_never_have_it_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let claims = ClaimFiles::open(&database(folder.path())).unwrap();
        let (inside, taken) = (AtomicU32::new(0), AtomicU32::new(0));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while taken.load(Ordering::SeqCst) < 2_000 {
                        let Some(claim) = claims.take(&id("k")).unwrap() else { continue };
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        taken.fetch_add(1, Ordering::SeqCst);
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drop(claim);
                    }
                });
            }
        });
    }
}
