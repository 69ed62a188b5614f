//! Memory limit of this process: the memory of the machine, or a lower cgroup limit.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::LazyLock,
};

/// Memory budget if the size of the memory is unknown.
const MEMORY_BUDGET_UNKNOWN: usize = 256 << 20;

/// Minimum of the default memory budget.
const MEMORY_BUDGET_MIN: usize = 16 << 20;

/// The default memory budget: a quarter of the memory limit, in whole mebibytes.
pub(super) fn default_memory_budget() -> usize {
    static BUDGET: LazyLock<usize> = LazyLock::new(|| quarter_of(memory_bytes(Path::new("/"))));
    *BUDGET
}

fn quarter_of(memory: Option<u64>) -> usize {
    let quarter = memory.and_then(|bytes| usize::try_from(bytes / 4).ok());
    let quarter = quarter.map(|bytes| bytes >> 20 << 20);
    quarter.unwrap_or(MEMORY_BUDGET_UNKNOWN).max(MEMORY_BUDGET_MIN)
}

/// The memory of the machine, or the lowest memory limit of this process's cgroups. `root` is the
/// root of the file system.
fn memory_bytes(root: &Path) -> Option<u64> {
    let machine = fs::read_to_string(root.join("proc/meminfo")).ok();
    let machine = machine.as_deref().and_then(parse_mem_total);
    cgroup_limits(root).chain(machine).min()
}

/// `MemTotal` of `/proc/meminfo`.
fn parse_mem_total(meminfo: &str) -> Option<u64> {
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = total.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// Memory limits of this process's cgroups, versions 1 and 2. The limits of parent groups apply
/// too. In a container the path of the group may not be visible; then the root group is its own.
fn cgroup_limits(root: &Path) -> impl Iterator<Item = u64> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let files: Vec<PathBuf> = groups.lines().flat_map(|line| limit_files(root, line)).collect();
    let read = |file: PathBuf| fs::read_to_string(file).ok()?.trim().parse().ok();
    files.into_iter().filter_map(read)
}

/// Candidate limit files for a line of `/proc/self/cgroup`: `0::/path` is version 2,
/// `4:memory:/path` is version 1.
fn limit_files(root: &Path, line: &str) -> Vec<PathBuf> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { return Vec::new() };
    let (top, name) = match controllers {
        "" => ("sys/fs/cgroup", "memory.max"),
        _ if controllers.split(',').any(|controller| controller == "memory") => {
            ("sys/fs/cgroup/memory", "memory.limit_in_bytes")
        }
        _ => return Vec::new(),
    };
    let path = Path::new(path.trim_start_matches('/'));
    path.ancestors().map(|group| root.join(top).join(group).join(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(files: &[(&str, &str)]) -> Option<u64> {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        memory_bytes(folder.path())
    }

    const MEMINFO: (&str, &str) =
        ("proc/meminfo", "MemTotal:       16384 kB\nMemFree:         1024 kB\n");

    #[test]
    fn without_a_cgroup_limit_the_memory_of_the_machine_counts() {
        assert_eq!(machine(&[MEMINFO]), Some(16 << 20));
        assert_eq!(machine(&[]), None);
        let unlimited =
            [MEMINFO, ("proc/self/cgroup", "0::/a/b\n"), ("sys/fs/cgroup/a/b/memory.max", "max\n")];
        assert_eq!(machine(&unlimited), Some(16 << 20));
    }

    #[test]
    fn the_limits_of_a_cgroup_and_its_parents_count() {
        let group = ("proc/self/cgroup", "0::/a/b\n");
        let own = ("sys/fs/cgroup/a/b/memory.max", "3000000\n");
        let above = ("sys/fs/cgroup/a/memory.max", "2000000\n");
        assert_eq!(machine(&[MEMINFO, group, own]), Some(3_000_000));
        assert_eq!(machine(&[MEMINFO, group, own, above]), Some(2_000_000));
        let container =
            [MEMINFO, ("proc/self/cgroup", "0::/\n"), ("sys/fs/cgroup/memory.max", "1000000\n")];
        assert_eq!(machine(&container), Some(1_000_000));
    }

    #[test]
    fn the_limit_of_a_cgroup_of_version_1_counts() {
        let groups = ("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/docker/c\n");
        let hidden = ("sys/fs/cgroup/memory/memory.limit_in_bytes", "4000000\n");
        let own = ("sys/fs/cgroup/memory/docker/c/memory.limit_in_bytes", "3000000\n");
        assert_eq!(machine(&[MEMINFO, groups, hidden]), Some(4_000_000));
        assert_eq!(machine(&[MEMINFO, groups, hidden, own]), Some(3_000_000));
        let huge = ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(machine(&[MEMINFO, groups, huge]), Some(16 << 20));
    }

    #[test]
    fn the_budget_is_a_quarter_of_the_memory() {
        assert_eq!(quarter_of(Some((1 << 30) + 12_345)), 256 << 20);
        assert_eq!(quarter_of(Some(1 << 20)), MEMORY_BUDGET_MIN);
        assert_eq!(quarter_of(None), MEMORY_BUDGET_UNKNOWN);
    }
}
