//! Lines on their way out: a bounded buffer, and the thread that empties it.

use std::{
    io::{self, Write},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

/// How many bytes may wait. What comes while it is full is counted and left out.
const BYTES_MAX: usize = 4 << 20;

/// How long lines gather before they are written together.
const GATHER: Duration = Duration::from_millis(10);

/// How long the end of the process waits for a reader that does not read.
const PATIENCE: Duration = Duration::from_secs(2);

/// Takes lines and never waits.
#[derive(Clone, Debug)]
pub(super) struct Writer(Arc<Shared>);

/// Writes out what is still waiting when it is dropped.
#[derive(Debug)]
#[must_use]
pub(crate) struct Flush(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    /// Told when there is something to write, when it must end, and when it has ended.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    bytes: Vec<u8>,
    /// How many lines found no room since the last one that did.
    dropped: u64,
    ending: bool,
    ended: bool,
}

impl Writer {
    pub(super) fn start(out: impl Write + Send + 'static) -> io::Result<(Self, Flush)> {
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        thread::Builder::new().name("semel-log".to_owned()).spawn(move || theirs.empty(out))?;
        Ok((Self(Arc::clone(&shared)), Flush(shared)))
    }

    /// Takes a line, with its end.
    pub(super) fn write(&self, line: &[u8]) {
        let mut waiting = self.0.lock();
        let first = waiting.bytes.is_empty();
        if waiting.bytes.len().saturating_add(line.len()) > BYTES_MAX {
            waiting.dropped = waiting.dropped.saturating_add(1);
        } else {
            waiting.bytes.extend_from_slice(line);
        }
        drop(waiting);
        // The thread looks again by itself until it finds nothing.
        if first {
            self.0.changed.notify_all();
        }
    }
}

impl Shared {
    /// Writes what comes until the end.
    fn empty(&self, mut out: impl Write) {
        let mut lines = Vec::new();
        loop {
            let (dropped, ending) = self.take(&mut lines);
            // There is nobody to tell of an error.
            let _ = out.write_all(&lines);
            lines.clear();
            if dropped > 0 {
                tracing::warn!(dropped, "lines are missing here: the log was not read in time");
            }
            if ending {
                let _ = out.flush();
                self.lock().ended = true;
                self.changed.notify_all();
                return;
            }
            thread::sleep(GATHER);
        }
    }

    /// Waits for something to write, and takes it. Only with nothing left does it end.
    fn take(&self, lines: &mut Vec<u8>) -> (u64, bool) {
        let idle = |waiting: &mut Waiting| {
            waiting.bytes.is_empty() && waiting.dropped == 0 && !waiting.ending
        };
        let waiting = self.changed.wait_while(self.lock(), idle);
        let mut waiting = waiting.unwrap_or_else(PoisonError::into_inner);
        std::mem::swap(&mut waiting.bytes, lines);
        let dropped = std::mem::take(&mut waiting.dropped);
        (dropped, waiting.ending && lines.is_empty() && dropped == 0)
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Flush {
    fn drop(&mut self) {
        let mut waiting = self.0.lock();
        waiting.ending = true;
        self.0.changed.notify_all();
        let _ = self.0.changed.wait_timeout_while(waiting, PATIENCE, |waiting| !waiting.ended);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// A reader that reads when it is told to.
    struct Slow {
        turns: Receiver<()>,
        read: Sender<Vec<u8>>,
    }

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if !bytes.is_empty() {
                let _ = self.turns.recv();
                let _ = self.read.send(bytes.to_vec());
            }
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn slow() -> (Writer, Flush, Sender<()>, Receiver<Vec<u8>>) {
        let ((turn, turns), (read, lines)) = (channel(), channel());
        let (writer, flush) = Writer::start(Slow { turns, read }).unwrap();
        (writer, flush, turn, lines)
    }

    #[test]
    fn what_waits_is_written_out_at_the_end() {
        let (writer, flush, turn, lines) = slow();
        for number in 0..100 {
            writer.write(format!("{number}\n").as_bytes());
        }
        for _ in 0..100 {
            turn.send(()).unwrap();
        }
        drop(flush);
        let read: Vec<u8> = lines.try_iter().flatten().collect();
        assert_eq!(read.iter().filter(|byte| **byte == b'\n').count(), 100);
        assert!(read.starts_with(b"0\n1\n") && read.ends_with(b"98\n99\n"));
    }

    #[test]
    fn a_full_buffer_drops_lines_and_counts_them() {
        let (writer, flush, turn, lines) = slow();
        let line = vec![b'x'; 1 << 20];
        // The first may be on its way out already; it can hold no more than all but one of them.
        for _ in 0..20 {
            writer.write(&line);
        }
        let dropped = writer.0.lock().dropped;
        assert!((12..=16).contains(&dropped), "{dropped}");
        for _ in 0..20 {
            let _ = turn.send(());
        }
        drop((turn, flush));
        let read: usize = lines.try_iter().map(|lines| lines.len()).sum();
        assert_eq!(read, (20 - usize::try_from(dropped).unwrap()) << 20, "the others are whole");
    }

    #[test]
    fn a_reader_that_never_reads_holds_nobody_up_for_ever() {
        let (writer, flush, turn, _lines) = slow();
        writer.write(b"a\n");
        let begun = tokio::time::Instant::now();
        drop(flush);
        assert!(begun.elapsed() >= PATIENCE);
        drop(turn);
    }
}
