//! A fair lock between processes that write to one file.
//!
//! SQLite's write lock is unfair: a process that writes continuously keeps it, and another one
//! starves. So a writer first locks a file beside the database, holds that lock while it waits for
//! SQLite's lock, and releases it once it has SQLite's lock. A process that has just written finds
//! the other one already waiting.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

/// How long a writer waits for the locks of another process before its callers get an error.
pub(crate) const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct FairLock {
    file: File,
}

impl FairLock {
    /// Opens the lock file of the database at `path`.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let fair_lock = lock_path(path);
        if let Ok(file) = OpenOptions::new().create_new(true).append(true).open(&fair_lock) {
            // Every user that may write to the database may use the lock.
            file.set_permissions(fs::metadata(path)?.permissions())?;
        }
        Ok(Self { file: OpenOptions::new().append(true).open(fair_lock)? })
    }

    /// Takes the lock; `false` after [`LOCK_TIMEOUT`].
    pub(crate) fn lock(&self) -> io::Result<bool> {
        let mut backoff = LockBackoff::default();
        loop {
            match self.file.try_lock() {
                Ok(()) => return Ok(true),
                Err(TryLockError::WouldBlock) if backoff.sleep() => {}
                Err(TryLockError::WouldBlock) => return Ok(false),
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
    }

    pub(crate) fn unlock(&self) -> io::Result<()> {
        self.file.unlock()
    }
}

fn lock_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push("-turn");
    name.into()
}

/// Exponential sleeps, until [`LOCK_TIMEOUT`] in total.
#[derive(Debug)]
pub(crate) struct LockBackoff {
    next: Duration,
    slept: Duration,
}

impl Default for LockBackoff {
    fn default() -> Self {
        Self { next: Duration::from_micros(50), slept: Duration::ZERO }
    }
}

impl LockBackoff {
    /// Sleeps; `false` after [`LOCK_TIMEOUT`].
    pub(crate) fn sleep(&mut self) -> bool {
        if self.slept >= LOCK_TIMEOUT {
            return false;
        }
        thread::sleep(self.next);
        self.slept += self.next;
        self.next = (self.next * 2).min(Duration::from_millis(1));
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    };

    use super::*;

    const ROUNDS: usize = 50;

    /// Writes `ROUNDS` times: `lock` stands for SQLite's write lock, which is polled for.
    fn write(path: &Path, lock: &Mutex<Vec<usize>>, name: usize, running: &AtomicUsize) {
        let fair_lock = FairLock::open(path).unwrap();
        running.fetch_add(1, Ordering::SeqCst);
        while running.load(Ordering::SeqCst) < 2 {}
        for _ in 0..ROUNDS {
            assert!(fair_lock.lock().unwrap());
            let mut backoff = LockBackoff::default();
            let mut log = loop {
                match lock.try_lock() {
                    Ok(log) => break log,
                    Err(_) => assert!(backoff.sleep()),
                }
            };
            fair_lock.unlock().unwrap();
            log.push(name);
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn two_continuous_writers_alternate() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("semel.db");
        fs::write(&path, "").unwrap();
        let (lock, running) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
        let writers = [0, 1].map(|name| {
            let (path, lock, running) = (path.clone(), Arc::clone(&lock), Arc::clone(&running));
            thread::spawn(move || write(&path, &lock, name, &running))
        });
        for writer in writers {
            writer.join().unwrap();
        }
        let log = lock.lock().unwrap();
        let changes = log.windows(2).filter(|pair| pair[0] != pair[1]).count();
        assert!(changes > ROUNDS, "only {changes} changes of the writer: {log:?}");
    }
}
