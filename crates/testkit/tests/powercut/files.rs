//! Plain file operations on the simulated disk, whose durable outcome is known exactly.

use crate::{Disk, rerun, shim};
use semel_testkit::powercut::{self, AfterFailedSync, Options, Stats};
use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const DIRECTORY: &str = "POWERCUT_TEST_DIRECTORY";
const OPERATION: &str = "POWERCUT_TEST_OPERATION";

#[test]
fn the_shadow_holds_exactly_what_was_synced() {
    let disk = Disk::new();
    fs::create_dir_all(disk.watch()).unwrap();
    for name in ["settled", "unsettled", "adopted"] {
        fs::write(disk.watch().join(name), "from before").unwrap();
        if name == "settled" {
            powercut::settle(&disk.watch(), &disk.shadow()).unwrap();
        }
    }
    operate(&disk, "several_kinds", &disk.options());

    let read = |name: &str| fs::read_to_string(disk.shadow().join(name)).ok();
    assert_eq!(read("settled").as_deref(), Some("from before"));
    assert_eq!(read("unsettled"), None, "it was never synced");
    assert_eq!(read("adopted").as_deref(), Some("from before"), "synced by another process");
    assert_eq!(read("appended").as_deref(), Some("synced"));
    assert_eq!(read("several").as_deref(), Some("one two"));
    assert_eq!(read("truncated").as_deref(), Some("long\0\0\0\0end"));
    assert_eq!(read("recreated").as_deref(), Some("old"));
    assert_eq!(read("below/this/new-name").as_deref(), Some("renamed"));
    assert_eq!(read("below/this/old-name"), None);
    assert_eq!(read("replaced").as_deref(), Some(""), "renamed before it was synced");
    assert_eq!(read("deleted"), None);
    assert_eq!(read("index-shm"), None);
    assert_eq!(Stats::read(&disk.shadow()).unwrap().syncs, 9);
}

#[test]
fn a_write_behind_a_failed_sync_is_lost_kept_or_durable() {
    let lost = AfterFailedSync::Lose;
    let kept = AfterFailedSync::Keep;
    for (fail, ambiguous, after_failed_sync, expected) in [
        (100, 0, lost, "\0\0\0\0\0\0later"),
        (100, 0, kept, "first later"),
        (0, 100, lost, "first later"),
    ] {
        let disk = Disk::new();
        let options = Options {
            fail_sync_percent: fail,
            ambiguous_sync_percent: ambiguous,
            after_failed_sync,
            inject_max: 1,
            ..disk.options()
        };
        operate(&disk, "failing_sync", &options);
        let found = fs::read_to_string(disk.shadow().join("file")).unwrap();
        assert_eq!(found, expected, "{fail} {ambiguous} {after_failed_sync:?}");
    }
}

#[test]
fn early_writes_are_whole_or_torn_between_sectors() {
    let disk = Disk::new();
    operate(&disk, "unsynced_pages", &Options { early_percent: 50, ..disk.options() });
    let mut lengths = Vec::new();
    for page in 0..PAGES {
        let found = fs::read(disk.shadow().join(page.to_string())).unwrap_or_default();
        assert!(found.iter().all(|byte| *byte == b'x'));
        lengths.push(found.len());
    }
    assert!(lengths.iter().all(|length| length % 512 == 0), "{lengths:?}");
    assert!(lengths.contains(&0) && lengths.contains(&4096), "{lengths:?}");
    assert!(lengths.iter().any(|length| (1..4096).contains(length)), "{lengths:?}");
}

#[test]
fn files_that_are_gone_leave_room_for_others() {
    let disk = Disk::new();
    operate(&disk, "many_files", &disk.options());
    assert_eq!(fs::read_to_string(disk.shadow().join("kept")).unwrap(), "299");
    assert!(!disk.shadow().join("file").exists());
}

#[test]
fn more_ranges_than_the_table_holds_are_synced_all_the_same() {
    let disk = Disk::new();
    operate(&disk, "scattered_bytes", &disk.options());
    let (real, shadow) = (disk.watch().join("file"), disk.shadow().join("file"));
    assert!(fs::read(real).unwrap() == fs::read(shadow).unwrap());
}

/// Performs one of the operations below in a child, on a disk that forgets.
fn operate(disk: &Disk, operation: &str, options: &Options) {
    let mut command = rerun("files::files_child");
    command.env(DIRECTORY, disk.watch()).env(OPERATION, operation);
    shim().apply(&mut command, options).unwrap();
    let run = command.output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
}

const PAGES: usize = 60;

#[test]
fn files_child() {
    let Some(dir) = env::var_os(DIRECTORY).map(PathBuf::from) else { return };
    match env::var_os(OPERATION).unwrap().to_str().unwrap() {
        "several_kinds" => several_kinds(&dir),
        "failing_sync" => failing_sync(&dir),
        "unsynced_pages" => unsynced_pages(&dir),
        "many_files" => many_files(&dir),
        "scattered_bytes" => scattered_bytes(&dir),
        other => panic!("no such operation: {other}"),
    }
    .unwrap();
}

fn failing_sync(dir: &Path) -> io::Result<()> {
    let file = File::create(dir.join("file"))?;
    file.write_all_at(b"first ", 0)?;
    assert_eq!(file.sync_data().unwrap_err().raw_os_error(), Some(5), "EIO");
    file.write_all_at(b"later", 6)?;
    file.sync_data()
}

fn unsynced_pages(dir: &Path) -> io::Result<()> {
    (0..PAGES).try_for_each(|page| fs::write(dir.join(page.to_string()), [b'x'; 4096]))
}

/// More files than the library can watch at a time, half of them deleted and half replaced.
fn many_files(dir: &Path) -> io::Result<()> {
    for count in 0..300 {
        fs::write(dir.join("file"), "deleted")?;
        fs::remove_file(dir.join("file"))?;
        fs::write(dir.join("file"), count.to_string())?;
        File::open(dir.join("file"))?.sync_all()?;
        fs::rename(dir.join("file"), dir.join("kept"))?;
    }
    Ok(())
}

/// Every other byte of a file, in an order that neither grows nor shrinks.
fn scattered_bytes(dir: &Path) -> io::Result<()> {
    let file = File::create(dir.join("file"))?;
    for step in 0..6000_u64 {
        let place = step * 7919 % 6000;
        file.write_all_at(&[b'a' + u8::try_from(place % 26).unwrap()], 2 * place)?;
    }
    file.sync_data()
}

fn several_kinds(dir: &Path) -> io::Result<()> {
    File::open(dir.join("adopted"))?.sync_all()?;

    let mut appended = OpenOptions::new().append(true).create(true).open(dir.join("appended"))?;
    appended.write_all(b"synced")?;
    appended.sync_data()?;
    appended.write_all(b" and not")?;

    // A sync covers what was written through another descriptor that is closed by now.
    let several = File::create(dir.join("several"))?;
    several.write_all_at(b"one", 0)?;
    several.try_clone()?.write_all_at(b" ", 3)?;
    OpenOptions::new().write(true).open(dir.join("several"))?.write_all_at(b"two", 4)?;
    several.sync_all()?;

    // What a truncation took does not come back when the file grows again.
    let truncated = File::create(dir.join("truncated"))?;
    truncated.write_all_at(b"long and forgotten", 0)?;
    truncated.sync_all()?;
    truncated.set_len(4)?;
    truncated.write_all_at(b"end", 8)?;
    truncated.sync_all()?;

    fs::write(dir.join("recreated"), "old")?;
    File::open(dir.join("recreated"))?.sync_all()?;
    fs::write(dir.join("recreated"), "unsynced")?;

    fs::create_dir_all(dir.join("below/this"))?;
    let renamed = File::create(dir.join("below/this/old-name"))?;
    renamed.write_all_at(b"rename", 0)?;
    renamed.sync_all()?;
    fs::rename(dir.join("below/this/old-name"), dir.join("below/this/new-name"))?;
    renamed.write_all_at(b"d", 6)?;
    renamed.sync_all()?;

    for name in ["replaced", "deleted"] {
        let file = File::create(dir.join(name))?;
        file.write_all_at(b"here", 0)?;
        if name == "deleted" {
            file.sync_all()?;
        }
    }
    fs::write(dir.join("replacement"), "unsynced")?;
    fs::rename(dir.join("replacement"), dir.join("replaced"))?;
    fs::remove_file(dir.join("deleted"))?;
    File::create(dir.join("index-shm"))?.sync_all()
}
