//! Writes lines out: a bounded buffer, and the thread that empties it.

use std::{
    io::{self, Write},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

/// Size of the buffer. Lines that do not fit are counted and dropped.
const BUFFER_BYTES_MAX: usize = 4 << 20;

/// Delay between two writes, so that lines are written in batches.
const BATCH_DELAY: Duration = Duration::from_millis(10);

/// How long shutdown waits for a reader that does not read.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Takes lines without blocking.
#[derive(Clone, Debug)]
pub(super) struct LogWriter(Arc<SharedBuffer>);

/// Writes out the buffer when it is dropped.
#[derive(Debug)]
#[must_use]
pub struct FlushGuard(Arc<SharedBuffer>);

#[derive(Debug, Default)]
struct SharedBuffer {
    buffer: Mutex<Buffer>,
    /// Notified when there is something to write, when the thread must end, and when it has ended.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Buffer {
    bytes: Vec<u8>,
    /// Lines dropped since the last one that fit.
    dropped: u64,
    ending: bool,
    ended: bool,
}

impl LogWriter {
    pub(super) fn start(out: impl Write + Send + 'static) -> io::Result<(Self, FlushGuard)> {
        let shared = Arc::new(SharedBuffer::default());
        let theirs = Arc::clone(&shared);
        thread::Builder::new().name("semel-log".to_owned()).spawn(move || theirs.write_out(out))?;
        Ok((Self(Arc::clone(&shared)), FlushGuard(shared)))
    }

    /// Takes a line, with its end.
    pub(super) fn write(&self, line: &[u8]) {
        let mut buffer = self.0.lock();
        let first = buffer.bytes.is_empty();
        if buffer.bytes.len().saturating_add(line.len()) > BUFFER_BYTES_MAX {
            buffer.dropped = buffer.dropped.saturating_add(1);
        } else {
            buffer.bytes.extend_from_slice(line);
        }
        drop(buffer);
        // The thread checks again by itself until the buffer is empty.
        if first {
            self.0.changed.notify_all();
        }
    }
}

impl SharedBuffer {
    /// Writes lines until shutdown.
    fn write_out(&self, mut out: impl Write) {
        let mut lines = Vec::new();
        loop {
            let (dropped, ending) = self.take(&mut lines);
            // A failure of the log cannot be logged.
            let _ = out.write_all(&lines);
            lines.clear();
            if dropped > 0 {
                tracing::warn!(
                    dropped,
                    "log lines were dropped: the reader of the log is too slow"
                );
            }
            if ending {
                let _ = out.flush();
                self.lock().ended = true;
                self.changed.notify_all();
                return;
            }
            thread::sleep(BATCH_DELAY);
        }
    }

    /// Waits for lines and takes them. It ends only when the buffer is empty.
    fn take(&self, lines: &mut Vec<u8>) -> (u64, bool) {
        let idle =
            |buffer: &mut Buffer| buffer.bytes.is_empty() && buffer.dropped == 0 && !buffer.ending;
        let buffer = self.changed.wait_while(self.lock(), idle);
        let mut buffer = buffer.unwrap_or_else(PoisonError::into_inner);
        std::mem::swap(&mut buffer.bytes, lines);
        let dropped = std::mem::take(&mut buffer.dropped);
        (dropped, buffer.ending && lines.is_empty() && dropped == 0)
    }

    fn lock(&self) -> MutexGuard<'_, Buffer> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for FlushGuard {
    fn drop(&mut self) {
        let mut buffer = self.0.lock();
        buffer.ending = true;
        self.0.changed.notify_all();
        let _ = self.0.changed.wait_timeout_while(buffer, FLUSH_TIMEOUT, |buffer| !buffer.ended);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// A reader that reads on demand.
    struct SlowReader {
        turns: Receiver<()>,
        read: Sender<Vec<u8>>,
    }

    impl Write for SlowReader {
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

    fn slow() -> (LogWriter, FlushGuard, Sender<()>, Receiver<Vec<u8>>) {
        let ((turn, turns), (read, lines)) = (channel(), channel());
        let (writer, flush) = LogWriter::start(SlowReader { turns, read }).unwrap();
        (writer, flush, turn, lines)
    }

    #[test]
    fn the_buffer_is_written_out_at_shutdown() {
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
    fn a_reader_that_never_reads_delays_shutdown_by_the_timeout_only() {
        let (writer, flush, turn, _lines) = slow();
        writer.write(b"a\n");
        let begun = tokio::time::Instant::now();
        drop(flush);
        assert!(begun.elapsed() >= FLUSH_TIMEOUT);
        drop(turn);
    }
}
