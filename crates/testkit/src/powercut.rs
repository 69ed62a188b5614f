//! Power-cut simulation: a child process whose disk keeps only synced data.
//!
//! A killed process loses no written data, because the page cache survives. So `kill -9` proves
//! little about durability. Here a small C library is compiled at test time and loaded into a child
//! with `LD_PRELOAD`. It passes every write below a *watched* directory through. In a *shadow*
//! directory it maintains the state that a disk would have after a power failure. Kill the child at
//! any moment and open the shadow.
//!
//! ```no_run
//! # fn main() -> std::io::Result<()> {
//! use semel_testkit::powercut::{self, Options, Shim};
//! use std::{path::Path, process::Command};
//!
//! let shim = Shim::build(Path::new("target/tmp"))?;
//! let mut command = Command::new("the-program-under-test");
//! let options = Options { early_percent: 30, seed: 7, ..Options::new("data", "shadow") };
//! shim.apply(&mut command, &options)?;
//! let mut child = command.spawn()?;
//! // … collect what the child acknowledges, then:
//! child.kill()?;
//! child.wait()?;
//! assert!(powercut::Stats::read(Path::new("shadow"))?.syncs > 0);
//! powercut::after_cut(Path::new("shadow"), Path::new("recovered"))?;
//! // … open "recovered": everything acknowledged must be there.
//! # Ok(())
//! # }
//! ```
//!
//! # Simulated faults
//!
//! - A write or a truncation is durable once an `fsync` or `fdatasync` on *any* descriptor of that
//!   file has returned. The sync copies into the shadow and does not reach the real disk.
//! - A kill during a sync leaves part of it behind.
//! - [`Options::early_percent`]: some writes are durable before any sync, whole or only a prefix of
//!   whole 512-byte sectors, so that any subset of the unsynced writes may survive.
//! - [`Options::fail_sync_percent`]: a sync fails with `EIO` and nothing became durable. With
//!   [`AfterFailedSync::Lose`] those writes are lost for later syncs as well, as on Linux.
//! - [`Options::ambiguous_sync_percent`]: everything became durable, and `EIO` is reported.
//! - Files already in the watched directory are *not* durable until they are synced, because
//!   the library saw no sync of them. [`settle`] declares them durable.
//!
//! # Limits
//!
//! - Directory entries: a name is durable with the file's first sync, and an `unlink` or `rename`
//!   at once, in order. A deleted file that comes back is not simulated.
//! - Damage to synced data, or to data adjacent to a write.
//! - Writes that bypass the wrapped calls: mappings, `io_uring`, `copy_file_range`, `sendfile`,
//!   C's `stdio`; nor are `O_SYNC`, `syncfs` and `msync` taken for syncs. Each of these makes the
//!   shadow hold *less*, so that a test fails rather than passes by mistake.
//! - More than one process at a time on the same pair of directories, or a child that starts
//!   children of its own there: the library would not see the other's writes.
//! - A statically linked child, or one that makes system calls without libc. [`Stats::read`]
//!   fails if the library was never loaded.
//!
//! Files whose names end in `-shm` are ignored: they are `SQLite`'s shared memory, rebuilt after a
//! crash. A 64-bit Linux with glibc and a C compiler called `cc` are required. Elsewhere this
//! module compiles, and [`Shim::build`] returns an error; exclude tests that need it with
//! `#[cfg(all(target_os = "linux", target_pointer_width = "64"))]`.

mod disk;
mod options;

pub use disk::{Stats, after_cut, arm, disarm, settle};
pub use options::{AfterFailedSync, Inject, Options};

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::atomic::{AtomicU64, Ordering};

const SOURCE: &str = include_str!("powercut/shim.c");

/// The compiled library, ready to be loaded into children.
#[derive(Debug, Clone)]
pub struct Shim {
    library: PathBuf,
}

impl Shim {
    /// Compiles the library into `dir`, or reuses an existing one.
    ///
    /// A good `dir` for integration tests is `env!("CARGO_TARGET_TMPDIR")`. Several processes may
    /// build into the same one at a time.
    ///
    /// # Errors
    ///
    /// On a system that is not a 64-bit Linux, without a C compiler, if it refuses the source, or
    /// if `dir` cannot be written or has a path that `LD_PRELOAD` cannot express.
    pub fn build(dir: &Path) -> io::Result<Self> {
        if !cfg!(all(target_os = "linux", target_pointer_width = "64")) {
            let message = "power cuts can be simulated only on a 64-bit Linux";
            return Err(io::Error::new(io::ErrorKind::Unsupported, message));
        }
        fs::create_dir_all(dir)?;
        let dir = dir.canonicalize()?;
        if dir.to_str().is_none_or(|text| text.contains([' ', ':'])) {
            let message = format!("LD_PRELOAD cannot name a file in {}", dir.display());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let mut hasher = DefaultHasher::new();
        SOURCE.hash(&mut hasher);
        let name = format!("powercut-{:016x}", hasher.finish());
        let library = dir.join(format!("{name}.so"));
        if !library.exists() {
            compile(&dir, &name, &library)?;
        }
        Ok(Self { library })
    }

    /// Makes `command` run on the simulated disk.
    ///
    /// Creates both directories. The settings are passed as environment variables, so the
    /// environment of the command must not be cleared afterwards.
    ///
    /// # Errors
    ///
    /// If a directory cannot be created, if one of them contains the other, or if the
    /// percentages of syncs exceed 100 together.
    pub fn apply(&self, command: &mut Command, options: &Options) -> io::Result<()> {
        for (name, value) in options.environment()? {
            command.env(name, value);
        }
        command.env("LD_PRELOAD", &self.library);
        Ok(())
    }
}

/// Compiles under a unique name and renames, so that no process loads an incomplete library.
fn compile(dir: &Path, name: &str, library: &Path) -> io::Result<()> {
    static BUILDS: AtomicU64 = AtomicU64::new(0);
    let build = BUILDS.fetch_add(1, Ordering::Relaxed);
    let unique = format!("{name}-{}-{build}", process::id());
    let source = dir.join(format!("{unique}.c"));
    let output = dir.join(format!("{unique}.so"));
    fs::write(&source, SOURCE)?;
    let output_of_cc = Command::new("cc")
        .args(["-std=gnu11", "-O2", "-Wall", "-shared", "-fPIC", "-o"])
        .args([&output, &source])
        .arg("-pthread")
        .output();
    fs::remove_file(&source)?;
    let output_of_cc = output_of_cc.map_err(|error| {
        let message = format!("the power-cut tests need a C compiler called `cc`: {error}");
        io::Error::new(error.kind(), message)
    })?;
    if !output_of_cc.status.success() {
        let errors = String::from_utf8_lossy(&output_of_cc.stderr);
        return Err(io::Error::other(format!("`cc` failed on the power-cut library: {errors}")));
    }
    fs::rename(output, library)
}
