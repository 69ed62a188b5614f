//! A thread that has a connection, and does with it what it is told, in order.

use std::{
    any::Any,
    fmt, io,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::mpsc,
    thread,
};

use rusqlite::{Connection, Error, ffi};
use tokio::sync::oneshot;

type Job = Box<dyn FnOnce(&Connection) + Send>;

/// How to reach the thread. It ends, and closes its connection, when nobody can reach it any more.
#[derive(Clone)]
pub(super) struct Hand(mpsc::Sender<Job>);

impl Hand {
    pub(super) fn start(name: &str, connection: Connection) -> io::Result<Self> {
        let (sender, jobs) = mpsc::channel::<Job>();
        let work = move || jobs.into_iter().for_each(|job| job(&connection));
        thread::Builder::new().name(name.to_owned()).spawn(work)?;
        Ok(Self(sender))
    }

    /// Has this done once its turn comes, whoever waits for it.
    pub(super) fn send(&self, job: impl FnOnce(&Connection) + Send + 'static) {
        // The thread ends after those who can reach it.
        let _ = self.0.send(Box::new(job));
    }

    /// Has this done and waits for it. It is done even if nobody waits any more. A panic goes on
    /// here and spares the thread.
    pub(super) async fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> T + Send + 'static,
    ) -> rusqlite::Result<T> {
        let (tell, told) = oneshot::channel::<Result<T, Box<dyn Any + Send>>>();
        self.send(move |connection| {
            let _ = tell.send(catch_unwind(AssertUnwindSafe(|| work(connection))));
        });
        match told.await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(panic)) => resume_unwind(panic),
            Err(_) => Err(failure(ffi::SQLITE_ABORT, "the thread of the database has ended")),
        }
    }
}

/// An error in SQLite's words.
pub(super) fn failure(code: i32, message: &str) -> Error {
    Error::SqliteFailure(ffi::Error::new(code), Some(message.to_owned()))
}

impl fmt::Debug for Hand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hand")
    }
}
