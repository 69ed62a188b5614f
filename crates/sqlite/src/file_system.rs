//! Which file system a database is on.
//!
//! The write-ahead log shares memory between processes, and leases are measured on the boot clock
//! of one machine. On a file system that several machines can mount, two of them would corrupt the
//! file or grant one claim twice. SQLite does not notice: such file systems map memory for each
//! machine by itself. So the type of the file system is read from the kernel.

use std::{fmt, io, path::Path};

use semel_core::{StoreError, StoreErrorKind};

/// The type of a file system, by the magic number that the kernel gives for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSystem {
    /// `None` where the kernel does not provide it.
    magic: Option<u32>,
}

/// What a type of file system means for a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Other machines may write to it.
    Network,
    /// Its content ends with the machine.
    Memory,
    /// A local disk.
    Disk,
}

/// The types that have a name here. All others count as local disks.
const TYPES: [(u32, &str, Kind); 27] = [
    (0x0000_6969, "NFS", Kind::Network),
    (0x0000_517b, "SMB", Kind::Network),
    (0xff53_4d42, "CIFS", Kind::Network),
    (0xfe53_4d42, "SMB2", Kind::Network),
    (0x6573_5546, "FUSE", Kind::Network),
    (0x0102_1997, "9p", Kind::Network),
    (0x00c3_6400, "Ceph", Kind::Network),
    (0x0bd0_0bd0, "Lustre", Kind::Network),
    (0x4750_4653, "GPFS", Kind::Network),
    (0x1983_0326, "BeeGFS", Kind::Network),
    (0x2003_0528, "OrangeFS", Kind::Network),
    (0xaad7_aaea, "PanFS", Kind::Network),
    (0x5346_414f, "AFS", Kind::Network),
    (0x6b41_4653, "AFS", Kind::Network),
    (0x7375_7245, "Coda", Kind::Network),
    (0x0000_564c, "NCP", Kind::Network),
    (0x0116_1970, "GFS2", Kind::Network),
    (0x7461_636f, "OCFS2", Kind::Network),
    (0x786f_4256, "VirtualBox shared folder", Kind::Network),
    (0xbacb_acbc, "VMware shared folder", Kind::Network),
    (0x0102_1994, "tmpfs", Kind::Memory),
    (0x8584_58f6, "ramfs", Kind::Memory),
    (0x0000_ef53, "ext4", Kind::Disk),
    (0x5846_5342, "XFS", Kind::Disk),
    (0x9123_683e, "Btrfs", Kind::Disk),
    (0x2fc1_2fc1, "ZFS", Kind::Disk),
    (0x794c_7630, "overlay", Kind::Disk),
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
        self.kind() == Kind::Network
    }

    /// Whether its content is lost when the machine stops.
    #[must_use]
    pub fn is_memory(self) -> bool {
        self.kind() == Kind::Memory
    }

    fn kind(self) -> Kind {
        self.known().map_or(Kind::Disk, |(_, _, kind)| kind)
    }

    fn known(self) -> Option<(u32, &'static str, Kind)> {
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
    // The kernel's word has a sign and may be longer; the magic numbers have 32 bits.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "32 bits are meant")]
    let magic = found.f_type as u32;
    Ok(Some(magic))
}

/// Elsewhere the type cannot be had by safe calls.
#[cfg(not(target_os = "linux"))]
fn magic(path: &Path) -> io::Result<Option<u32>> {
    path.metadata().map(|_| None)
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
    fn network_file_systems_are_told_from_local_ones() {
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
    fn the_kernel_is_asked_for_a_file_or_for_its_folder() {
        let shared_memory = FileSystem::of(Path::new("/dev/shm/no-such-file")).unwrap();
        assert!(shared_memory.is_memory(), "{shared_memory}");
        assert_eq!(FileSystem::of(Path::new("/dev/shm")).unwrap(), shared_memory);
        let relative = FileSystem::of(Path::new("no-such-file")).unwrap();
        assert_eq!(relative, FileSystem::of(&std::env::current_dir().unwrap()).unwrap());
        assert!(FileSystem::of(Path::new("/no/such/folder/file")).is_err());
    }
}
