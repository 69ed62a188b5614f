//! The shadow directory as the parent sees it: copying it, arming it, reading its counters.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Its existence in the shadow lets syncs fail under `Inject::WhenArmed`.
pub(super) const ARMED: &str = ".powercut-armed";
/// Where the library keeps its counters, in the shadow.
const STATS: &str = ".powercut-stats";

/// Puts into `into` what the disk holds after a power cut, and nothing else.
///
/// The child must be dead. `into` may be the watched directory itself, for the next life on the
/// same disk; whatever it held is removed first, since the power cut took it.
///
/// # Errors
///
/// If a file cannot be read, removed or written, or if one directory contains the other.
pub fn after_cut(shadow: &Path, into: &Path) -> io::Result<()> {
    replace(shadow, into)
}

/// Declares everything in `watch` durable, by making the shadow a copy of it.
///
/// For a database that was prepared before the child starts.
///
/// # Errors
///
/// If a file cannot be read, removed or written, or if one directory contains the other.
pub fn settle(watch: &Path, shadow: &Path) -> io::Result<()> {
    replace(watch, shadow)
}

/// Lets syncs fail from now on, in a child that runs with `Inject::WhenArmed`.
///
/// # Errors
///
/// If the control file cannot be created.
pub fn arm(shadow: &Path) -> io::Result<()> {
    fs::write(shadow.join(ARMED), "")
}

/// Lets syncs succeed again, in a child that runs with `Inject::WhenArmed`.
///
/// # Errors
///
/// If the shadow is not armed.
pub fn disarm(shadow: &Path) -> io::Result<()> {
    fs::remove_file(shadow.join(ARMED))
}

/// What the library counted in the last child that ran on a shadow, as of its last sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Writes to watched files.
    pub writes: u64,
    /// Writes that were durable, at least in part, before any sync.
    pub early: u64,
    /// Syncs of watched files, of whatever outcome.
    pub syncs: u64,
    /// Syncs that failed and made nothing durable.
    pub failed: u64,
    /// Syncs that failed and made everything durable.
    pub ambiguous: u64,
}

impl Stats {
    /// Reads the counters; also while the child runs.
    ///
    /// # Errors
    ///
    /// If there are none, which means that the library was never loaded.
    pub fn read(shadow: &Path) -> io::Result<Self> {
        let text = fs::read_to_string(shadow.join(STATS))?;
        let mut words = text.split_whitespace();
        let mut stats = Self::default();
        while let (Some(name), Some(value)) = (words.next(), words.next()) {
            let value = value.parse().map_err(io::Error::other)?;
            match name {
                "writes" => stats.writes = value,
                "early" => stats.early = value,
                "syncs" => stats.syncs = value,
                "failed" => stats.failed = value,
                "ambiguous" => stats.ambiguous = value,
                other => return Err(io::Error::other(format!("unknown counter {other:?}"))),
            }
        }
        Ok(stats)
    }
}

/// Creates two directories and refuses them if one contains the other.
pub(super) fn create_pair(one: &Path, other: &Path) -> io::Result<(PathBuf, PathBuf)> {
    fs::create_dir_all(one)?;
    fs::create_dir_all(other)?;
    let (one, other) = (one.canonicalize()?, other.canonicalize()?);
    if one.starts_with(&other) || other.starts_with(&one) {
        let why = format!("{} and {} overlap", one.display(), other.display());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    Ok((one, other))
}

fn replace(from: &Path, to: &Path) -> io::Result<()> {
    let (from, to) = create_pair(from, to)?;
    for entry in fs::read_dir(&to)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    copy_tree(&from, &to)
}

fn copy_tree(from: &Path, to: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let name = entry.file_name();
        let target = to.join(&name);
        if entry.file_type()?.is_dir() {
            fs::create_dir(&target)?;
            copy_tree(&entry.path(), &target)?;
        } else if !is_ours(name.to_str()) {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

/// Whether a file is no part of the disk: ours, or shared memory that dies with the power.
fn is_ours(name: Option<&str>) -> bool {
    name.is_some_and(|name| name == ARMED || name == STATS || name.ends_with("-shm"))
}
