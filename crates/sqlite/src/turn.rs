//! Turns between processes that write to one file.
//!
//! SQLite's write lock is unfair: a process that writes without pause keeps it, and another waits
//! until it has finished. So a writer first takes a lock on a file beside the database, keeps it
//! while it waits for SQLite's lock, and gives it back once it has that. Whoever has just written
//! must come this way again, and finds the other one before it.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

/// How long a writer waits for another process before it tells its callers.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct Turn {
    file: File,
}

impl Turn {
    /// Opens the lock file of the database at `path`.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let turn = turn_path(path);
        if let Ok(file) = OpenOptions::new().create_new(true).append(true).open(&turn) {
            // Whoever may write to the database may wait for it.
            file.set_permissions(fs::metadata(path)?.permissions())?;
        }
        Ok(Self { file: OpenOptions::new().append(true).open(turn)? })
    }

    /// Waits for the turn; `false` when patience has run out.
    pub(crate) fn wait(&self) -> io::Result<bool> {
        let mut pause = Pause::default();
        loop {
            match self.file.try_lock() {
                Ok(()) => return Ok(true),
                Err(TryLockError::WouldBlock) if pause.sleep() => {}
                Err(TryLockError::WouldBlock) => return Ok(false),
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
    }

    pub(crate) fn pass_on(&self) -> io::Result<()> {
        self.file.unlock()
    }
}

fn turn_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push("-turn");
    name.into()
}

/// Short sleeps that grow, until patience has run out.
#[derive(Debug)]
pub(crate) struct Pause {
    next: Duration,
    slept: Duration,
}

impl Default for Pause {
    fn default() -> Self {
        Self { next: Duration::from_micros(50), slept: Duration::ZERO }
    }
}

impl Pause {
    /// Sleeps; `false` when patience has run out.
    pub(crate) fn sleep(&mut self) -> bool {
        if self.slept >= PATIENCE {
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
        let turn = Turn::open(path).unwrap();
        running.fetch_add(1, Ordering::SeqCst);
        while running.load(Ordering::SeqCst) < 2 {}
        for _ in 0..ROUNDS {
            assert!(turn.wait().unwrap());
            let mut pause = Pause::default();
            let mut log = loop {
                match lock.try_lock() {
                    Ok(log) => break log,
                    Err(_) => assert!(pause.sleep()),
                }
            };
            turn.pass_on().unwrap();
            log.push(name);
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn two_writers_without_pause_take_turns() {
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
        assert!(changes > ROUNDS, "only {changes} changes of turn: {log:?}");
    }
}
