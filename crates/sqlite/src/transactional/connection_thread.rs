//! A thread that owns a connection and runs jobs on it, in order.

use std::{
    any::Any,
    fmt, io,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::mpsc,
    thread,
};

use rusqlite::{Connection, Error, ffi};
use tokio::sync::oneshot;

type ConnectionJob = Box<dyn FnOnce(&Connection) + Send>;

/// A handle of the thread. The thread ends and closes its connection when the last handle is
/// dropped.
#[derive(Clone)]
pub(super) struct ConnectionThread(mpsc::Sender<ConnectionJob>);

impl ConnectionThread {
    pub(super) fn start(name: &str, connection: Connection) -> io::Result<Self> {
        let (sender, jobs) = mpsc::channel::<ConnectionJob>();
        let work = move || jobs.into_iter().for_each(|job| job(&connection));
        thread::Builder::new().name(name.to_owned()).spawn(work)?;
        Ok(Self(sender))
    }

    /// Queues a job, which runs even if no caller waits for it.
    pub(super) fn send(&self, job: impl FnOnce(&Connection) + Send + 'static) {
        // The thread outlives its handles.
        let _ = self.0.send(Box::new(job));
    }

    /// Queues a job and waits for its result. The job runs even if the caller stops waiting. A
    /// panic resumes in the caller and does not end the thread.
    pub(super) async fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> T + Send + 'static,
    ) -> rusqlite::Result<T> {
        let (reply_tx, reply) = oneshot::channel::<Result<T, Box<dyn Any + Send>>>();
        self.send(move |connection| {
            let _ = reply_tx.send(catch_unwind(AssertUnwindSafe(|| work(connection))));
        });
        match reply.await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(panic)) => resume_unwind(panic),
            Err(_) => Err(failure(ffi::SQLITE_ABORT, "the thread of the database has ended")),
        }
    }
}

/// An error with one of SQLite's codes.
pub(super) fn failure(code: i32, message: &str) -> Error {
    Error::SqliteFailure(ffi::Error::new(code), Some(message.to_owned()))
}

impl fmt::Debug for ConnectionThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ConnectionThread")
    }
}
