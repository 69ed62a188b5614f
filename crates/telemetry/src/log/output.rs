//! Where lines go: a bounded queue, and the thread that empties it.

use std::{
    io::{self, BufWriter, Write},
    sync::{Arc, OnceLock},
    thread,
    time::Duration,
};

use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};

/// Maximum number of lines in the queue. Lines that do not fit are counted and dropped.
pub(super) const QUEUED_LINES_MAX: usize = 16 << 10;

/// Delay after each write, so that lines are written in batches and a request rarely has to wake
/// the thread.
const BATCH_DELAY: Duration = Duration::from_millis(10);

/// Counts the lines that were dropped because the reader of the log is too slow.
#[derive(Clone, Debug)]
pub struct DroppedLines(ErrorCounter);

impl DroppedLines {
    /// How many lines were dropped since the start.
    pub fn count(&self) -> u64 {
        u64::try_from(self.0.dropped_lines()).unwrap_or(u64::MAX)
    }
}

/// Starts the thread that writes lines to `out`. The queue is written out when the guard is
/// dropped, unless the reader takes longer than a second for it.
pub(super) fn start(out: impl Write + Send + 'static) -> (NonBlocking, WorkerGuard, DroppedLines) {
    let dropped = Arc::new(OnceLock::new());
    let out =
        BatchedOutput { out: BufWriter::new(out), dropped: Arc::clone(&dropped), reported: 0 };
    let builder = NonBlockingBuilder::default().lossy(true).thread_name("semel-log");
    let (writer, guard) = builder.buffered_lines_limit(QUEUED_LINES_MAX).finish(out);
    let counter = DroppedLines(writer.error_counter());
    let _ = dropped.set(counter.clone());
    (writer, guard, counter)
}

/// Writes in batches, and logs how many lines were dropped. A failure of the log cannot be logged,
/// so it is ignored.
struct BatchedOutput<W: Write> {
    out: BufWriter<W>,
    dropped: Arc<OnceLock<DroppedLines>>,
    /// The number of dropped lines that has been logged.
    reported: u64,
}

impl<W: Write> Write for BatchedOutput<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let _ = self.out.write_all(line);
        Ok(line.len())
    }

    /// Is called when the queue is empty.
    fn flush(&mut self) -> io::Result<()> {
        let _ = self.out.flush();
        let dropped = self.dropped.get().map_or(0, DroppedLines::count);
        let unreported = dropped.saturating_sub(self.reported);
        if unreported > 0 {
            self.reported = dropped;
            tracing::warn!(
                dropped = unreported,
                "log lines were dropped: the reader of the log is too slow"
            );
        }
        thread::sleep(BATCH_DELAY);
        Ok(())
    }
}
