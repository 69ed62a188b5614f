//! Files that only their owner may read, and the paths beside a store's file.

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io,
    path::{Path, PathBuf},
};

use anyhow::Context as _;

/// The file beside a store's file: its path and a suffix.
pub fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

/// The folder that a file is in.
pub fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        Some(_) | None => Path::new("."),
    }
}

/// Makes the names in a file's folder durable.
pub fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(folder_of(path))?.sync_all()
}

/// How to open a file for writing that only its owner may read, from its creation on.
pub fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Whether other users may read a file.
#[cfg(unix)]
pub fn is_open_to_others(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    fs::metadata(path).is_ok_and(|about| about.permissions().mode() & 0o077 != 0)
}

/// Whether other users may read a file.
#[cfg(not(unix))]
pub fn is_open_to_others(_: &Path) -> bool {
    false
}

/// Reads the secret in a file, and warns if other users may read it.
pub fn read_secret(path: &Path) -> anyhow::Result<String> {
    let text = fs::read_to_string(path)
        .with_context(|| format!("the secret in {} cannot be read", path.display()))?;
    if is_open_to_others(path) {
        let path = path.display();
        tracing::warn!(%path, "the secret can be read by other users: chmod 600");
    }
    Ok(text)
}
