//! Checks that the names of a database still lead to the open files.
//!
//! A file that is removed or replaced while it is open can still be written, but is never read
//! again: the next process finds another file under its name, or creates one, and grants every
//! claim again. SQLite does not check this. The log and the shared memory beside the file matter as
//! well: a process that does not find them creates new ones and does not see the locks of this
//! process.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
};

use semel_core::{StoreError, StoreErrorKind};

/// The database, its log and its shared memory.
const SUFFIXES: [&str; 3] = ["", "-wal", "-shm"];

/// The files of a database that is open.
#[derive(Clone, Debug)]
pub(crate) struct OpenFiles(Vec<OpenFile>);

#[derive(Clone, Debug)]
struct OpenFile {
    path: PathBuf,
    number: FileNumber,
}

/// Identifies a file on this machine while it is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileNumber {
    device: u64,
    inode: u64,
}

/// An open file was removed or replaced.
#[derive(Debug)]
pub(crate) struct FileReplaced {
    path: PathBuf,
    /// Whether the database itself is in place.
    database_is_there: bool,
    change: FileChange,
}

#[derive(Debug)]
enum FileChange {
    /// Nothing has its name.
    Removed,
    /// Another file has its name.
    FileReplaced,
    /// Its name cannot be looked up.
    Unknown(io::Error),
}

impl OpenFiles {
    /// The files of the database at `path`, which a connection has open.
    pub(crate) fn at(path: &Path) -> io::Result<Self> {
        // By the target of links: SQLite puts the other files beside that.
        let target = fs::canonicalize(path)?;
        let files = SUFFIXES.map(|suffix| {
            let path = if suffix.is_empty() {
                path.to_owned()
            } else {
                let mut name = target.clone().into_os_string();
                name.push(suffix);
                name.into()
            };
            Ok(OpenFile { number: number(&path)?, path })
        });
        files.into_iter().collect::<io::Result<_>>().map(Self)
    }

    /// Whether each name leads to the file that is open.
    pub(crate) fn check(&self) -> Result<(), FileReplaced> {
        self.compare(|open, found| open == found)
    }

    /// The same before the files are reopened. A file system that was mounted again may be another
    /// device; an inode is not reused while it is open.
    pub(crate) fn check_inodes(&self) -> Result<(), FileReplaced> {
        self.compare(|open, found| open.inode == found.inode)
    }

    fn compare(&self, same: impl Fn(FileNumber, FileNumber) -> bool) -> Result<(), FileReplaced> {
        for (at, OpenFile { path, number: open }) in self.0.iter().enumerate() {
            let change = match number(path) {
                Ok(found) if same(*open, found) => continue,
                Ok(_) => FileChange::FileReplaced,
                Err(error) if error.kind() == io::ErrorKind::NotFound => FileChange::Removed,
                Err(error) => FileChange::Unknown(error),
            };
            // The database is the first of them.
            return Err(FileReplaced { path: path.clone(), database_is_there: at > 0, change });
        }
        Ok(())
    }
}

#[cfg(unix)]
fn number(path: &Path) -> io::Result<FileNumber> {
    use std::os::unix::fs::MetadataExt as _;
    let about = fs::metadata(path)?;
    Ok(FileNumber { device: about.dev(), inode: about.ino() })
}

/// Systems without inodes do not allow the removal of an open file either.
#[cfg(not(unix))]
fn number(path: &Path) -> io::Result<FileNumber> {
    fs::metadata(path).map(|_| FileNumber { device: 0, inode: 0 })
}

impl FileReplaced {
    /// The kind of the store error.
    pub(crate) const fn kind(&self) -> StoreErrorKind {
        match self.change {
            FileChange::Removed | FileChange::Unknown(_) => StoreErrorKind::Unavailable,
            FileChange::FileReplaced => StoreErrorKind::Corrupt,
        }
    }

    /// Whether the log can still be written back to the database: only the log was removed, and no
    /// new log exists.
    pub(crate) const fn leaves_database_intact(&self) -> bool {
        self.database_is_there && matches!(self.change, FileChange::Removed)
    }
}

impl fmt::Display for FileReplaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match &self.change {
            FileChange::Removed => write!(
                f,
                "{path}: the file was removed while it was open: put it back, or restart to begin \
                 with another"
            ),
            FileChange::FileReplaced => write!(
                f,
                "{path}: another file has taken the place of the one that was open: put that one \
                 back, or restart to go on with this one"
            ),
            FileChange::Unknown(error) => write!(f, "{path}: the file cannot be reached: {error}"),
        }
    }
}

impl From<FileReplaced> for StoreError {
    fn from(replaced: FileReplaced) -> Self {
        Self::new(replaced.kind(), replaced.to_string())
    }
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use super::*;

    fn opened(folder: &Path) -> (PathBuf, OpenFiles) {
        let path = folder.join("semel.db");
        for suffix in SUFFIXES {
            fs::write(folder.join(format!("semel.db{suffix}")), "").unwrap();
        }
        let files = OpenFiles::at(&path).unwrap();
        files.check().unwrap();
        (path, files)
    }

    #[test]
    fn a_file_that_is_moved_is_missed_until_it_is_back() {
        let folder = tempfile::tempdir().unwrap();
        for suffix in SUFFIXES {
            let (_, files) = opened(folder.path());
            let (name, away) =
                (folder.path().join(format!("semel.db{suffix}")), folder.path().join("away"));
            fs::rename(&name, &away).unwrap();
            let removed = files.check().unwrap_err();
            assert!(removed.to_string().contains("was removed while it was open"), "{removed}");
            fs::write(&name, "").unwrap();
            let replaced = files.check().unwrap_err();
            assert_eq!(replaced.kind(), StoreErrorKind::Corrupt);
            assert!(files.check_inodes().is_err());
            fs::rename(&away, &name).unwrap();
            files.check().unwrap();
        }
    }

    #[test]
    fn the_files_beside_a_link_are_those_beside_its_target() {
        let (folder, links) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (path, _) = opened(folder.path());
        let link = links.path().join("link.db");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let files = OpenFiles::at(&link).unwrap();
        files.check().unwrap();
        fs::remove_file(folder.path().join("semel.db-wal")).unwrap();
        assert!(files.check().is_err());
        let (other, _) = opened(tempfile::tempdir_in(folder.path()).unwrap().path());
        fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink(&other, &link).unwrap();
        assert!(files.check().is_err(), "the link leads elsewhere");
    }
}
