//! Checks a SQLite store.

use std::path::Path;

use semel_sqlite::FileSystem;

use super::{FindingView, identity};
use crate::store;

/// Checks a file, and opens it if its file system is suitable.
pub(super) fn check(path: &Path) -> anyhow::Result<Vec<FindingView>> {
    let place = FileSystem::of(path).map(diagnose);
    let unfit = place.as_ref().is_ok_and(|place| place.level == "error");
    let mut views: Vec<FindingView> = place.into_iter().collect();
    if unfit {
        return Ok(views);
    }
    let store = store::existing_file(path)?;
    let bytes = std::fs::metadata(path).map_or(0, |about| about.len());
    views.insert(0, FindingView::fine("store", format!("{} opens; {bytes} bytes", path.display())));
    let info = store.info();
    views.push(identity(info.id, info.created_at));
    Ok(views)
}

fn diagnose(file_system: FileSystem) -> FindingView {
    const MOVE: &str = "stop the server, move the file and those beside it to a local disk";
    if file_system.is_network() {
        let found = format!(
            "{file_system} is a network file system: two machines could corrupt the file or run \
             one key twice, and a server refuses it"
        );
        return FindingView::error("disk", found, &[MOVE, "or use PostgreSQL"]);
    }
    if file_system.is_memory() {
        let found = format!("{file_system}: everything is lost when this machine stops");
        return FindingView::warning("disk", found, &[MOVE]);
    }
    FindingView::fine("disk", format!("{file_system}, a local file system"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_file_system_is_an_error_and_memory_a_warning() {
        let level = |magic| diagnose(FileSystem::from_magic(magic)).level;
        assert_eq!(level(0x6969), "error", "NFS");
        assert_eq!(level(0x6573_5546), "error", "FUSE");
        assert_eq!(level(0x0102_1994), "warning", "tmpfs");
        assert_eq!(level(0xef53), "fine", "ext4");
    }
}
