//! Detects the file system of a database.
//!
//! The write-ahead log shares memory between processes, and leases are measured on the boot clock
//! of one machine. On a file system that several machines can mount, two of them would corrupt the
//! file or grant one claim twice. SQLite does not detect this, because such file systems map memory
//! for each machine separately. So the type of the file system is read from the kernel.

use std::{fmt, io, path::Path};

use semel_core::{DiskSpace, StoreError, StoreErrorKind};

/// The type of a file system, by the magic number that the kernel gives for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSystem {
    /// `None` where the kernel does not provide it.
    magic: Option<u32>,
}

/// What a type of file system means for a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileSystemKind {
    /// Other machines may write to it.
    Network,
    /// Its content ends with the machine.
    Memory,
    /// A local disk.
    Disk,
}

/// The known types. All others count as local disks.
const TYPES: [(u32, &str, FileSystemKind); 27] = [
    (0x0000_6969, "NFS", FileSystemKind::Network),
    (0x0000_517b, "SMB", FileSystemKind::Network),
    (0xff53_4d42, "CIFS", FileSystemKind::Network),
    (0xfe53_4d42, "SMB2", FileSystemKind::Network),
    (0x6573_5546, "FUSE", FileSystemKind::Network),
    (0x0102_1997, "9p", FileSystemKind::Network),
    (0x00c3_6400, "Ceph", FileSystemKind::Network),
    (0x0bd0_0bd0, "Lustre", FileSystemKind::Network),
    (0x4750_4653, "GPFS", FileSystemKind::Network),
    (0x1983_0326, "BeeGFS", FileSystemKind::Network),
    (0x2003_0528, "OrangeFS", FileSystemKind::Network),
    (0xaad7_aaea, "PanFS", FileSystemKind::Network),
    (0x5346_414f, "AFS", FileSystemKind::Network),
    (0x6b41_4653, "AFS", FileSystemKind::Network),
    (0x7375_7245, "Coda", FileSystemKind::Network),
    (0x0000_564c, "NCP", FileSystemKind::Network),
    (0x0116_1970, "GFS2", FileSystemKind::Network),
    (0x7461_636f, "OCFS2", FileSystemKind::Network),
    (0x786f_4256, "VirtualBox shared folder", FileSystemKind::Network),
    (0xbacb_acbc, "VMware shared folder", FileSystemKind::Network),
    (0x0102_1994, "tmpfs", FileSystemKind::Memory),
    (0x8584_58f6, "ramfs", FileSystemKind::Memory),
    (0x0000_ef53, "ext4", FileSystemKind::Disk),
    (0x5846_5342, "XFS", FileSystemKind::Disk),
    (0x9123_683e, "Btrfs", FileSystemKind::Disk),
    (0x2fc1_2fc1, "ZFS", FileSystemKind::Disk),
    (0x794c_7630, "overlay", FileSystemKind::Disk),
];

impl FileSystem {
    /// The file system of a file, or of its folder if it is not there yet.
    ///
    /// # Errors
    ///
    /// If neither can be reached.
    pub fn of(path: &Path) -> io::Result<Self> {
        match magic(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let folder = path.parent().filter(|folder| *folder != Path::new(""));
                Ok(Self { magic: magic(folder.unwrap_or(Path::new(".")))? })
            }
            found => Ok(Self { magic: found? }),
        }
    }

    /// The file system with this magic number, as `statfs` gives it.
    #[must_use]
    pub const fn from_magic(magic: u32) -> Self {
        Self { magic: Some(magic) }
    }

    /// Whether other machines may write to it. A store refuses it.
    ///
    /// FUSE counts: the kernel does not say whether a network is behind it.
    #[must_use]
    pub fn is_network(self) -> bool {
        self.kind() == FileSystemKind::Network
    }

    /// Whether its content is lost when the machine stops.
    #[must_use]
    pub fn is_memory(self) -> bool {
        self.kind() == FileSystemKind::Memory
    }

    fn kind(self) -> FileSystemKind {
        self.known().map_or(FileSystemKind::Disk, |(_, _, kind)| kind)
    }

    fn known(self) -> Option<(u32, &'static str, FileSystemKind)> {
        TYPES.into_iter().find(|(magic, ..)| self.magic == Some(*magic))
    }
}

impl fmt::Display for FileSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.known(), self.magic) {
            (Some((_, name, _)), _) => f.write_str(name),
            (None, Some(magic)) => write!(f, "type {magic:#x}"),
            (None, None) => f.write_str("unknown type"),
        }
    }
}

#[cfg(target_os = "linux")]
fn magic(path: &Path) -> io::Result<Option<u32>> {
    let found = rustix::fs::statfs(path)?;
    // The field is signed and may be longer; the magic numbers have 32 bits.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "32 bits are meant")]
    let magic = found.f_type as u32;
    Ok(Some(magic))
}

/// Other systems have no safe call for the type.
#[cfg(not(target_os = "linux"))]
fn magic(path: &Path) -> io::Result<Option<u32>> {
    path.metadata().map(|_| None)
}

/// The space of the file system that a file is on.
#[cfg(target_os = "linux")]
pub(crate) fn space(path: &Path) -> Option<DiskSpace> {
    let found = rustix::fs::statvfs(path).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
    Some(DiskSpace { total: bytes(found.f_blocks), available: bytes(found.f_bavail) })
}

/// Not implemented on other systems.
#[cfg(not(target_os = "linux"))]
pub(crate) const fn space(_: &Path) -> Option<DiskSpace> {
    None
}

/// Refuses a database on a network file system.
pub(crate) fn refuse_network(path: &Path, file_system: FileSystem) -> Result<(), StoreError> {
    if !file_system.is_network() {
        return Ok(());
    }
    let message = format!(
        "{}: this is a network file system ({file_system}): two machines could corrupt the file \
         or run one key twice; put it on a local disk (in a container: on a named volume), or \
         use PostgreSQL",
        path.display()
    );
    Err(StoreError::new(StoreErrorKind::Unavailable, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_distinguished_from_local_ones() {
        for magic in [0x6969, 0xff53_4d42, 0xfe53_4d42, 0x6573_5546, 0x0102_1997, 0x00c3_6400] {
            assert!(FileSystem::from_magic(magic).is_network(), "{magic:#x}");
        }
        for magic in [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0x1234_5678] {
            assert!(!FileSystem::from_magic(magic).is_network(), "{magic:#x}");
        }
        assert_eq!(FileSystem::from_magic(0x6969).to_string(), "NFS");
        assert_eq!(FileSystem::from_magic(0x1234_5678).to_string(), "type 0x12345678");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_missing_file_is_looked_up_by_its_folder() {
        let shared_memory = FileSystem::of(Path::new("/dev/shm/no-such-file")).unwrap();
        assert!(shared_memory.is_memory(), "{shared_memory}");
        assert_eq!(FileSystem::of(Path::new("/dev/shm")).unwrap(), shared_memory);
        let relative = FileSystem::of(Path::new("no-such-file")).unwrap();
        assert_eq!(relative, FileSystem::of(&std::env::current_dir().unwrap()).unwrap());
        assert!(FileSystem::of(Path::new("/no/such/folder/file")).is_err());
    }
}
