//! The operations that run: by locked files beside the database, which every process sees, those
//! with `semel-sqlite` included. A database in memory has no other process.

use std::{
    collections::HashSet,
    io,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use semel::{
    core::{RecordId, StoreError, StoreErrorKind},
    joint::{ClaimFile, ClaimFiles},
};
use tokio::task::spawn_blocking;

#[derive(Clone, Debug)]
pub(super) enum Claims {
    Files(ClaimFiles),
    Memory(InMemory),
}

/// The right to run an operation, until it is dropped.
#[derive(Debug)]
pub(super) enum Claim {
    File { _claim: ClaimFile },
    Memory { claims: InMemory, id: RecordId },
}

#[derive(Clone, Debug, Default)]
pub(super) struct InMemory(Arc<Mutex<HashSet<RecordId>>>);

impl Claims {
    /// The claims of the database in this file; an empty name is a database in memory.
    pub(super) async fn open(file: String) -> Result<Self, StoreError> {
        if file.is_empty() {
            return Ok(Self::Memory(InMemory::default()));
        }
        blocking(move || ClaimFiles::open(Path::new(&file))).await.map(Self::Files)
    }

    /// Takes an operation; `None` if it is running.
    pub(super) async fn take(&self, id: &RecordId) -> Result<Option<Claim>, StoreError> {
        match self {
            Self::Files(files) => {
                let (files, id) = (files.clone(), id.clone());
                let taken = blocking(move || files.take(&id)).await?;
                Ok(taken.map(|claim| Claim::File { _claim: claim }))
            }
            Self::Memory(claims) => {
                let taken = claims.lock().insert(id.clone());
                Ok(taken.then(|| Claim::Memory { claims: claims.clone(), id: id.clone() }))
            }
        }
    }

    /// Whether an operation is running.
    pub(super) async fn is_taken(&self, id: &RecordId) -> Result<bool, StoreError> {
        match self {
            Self::Files(files) => {
                let (files, id) = (files.clone(), id.clone());
                blocking(move || files.is_taken(&id)).await
            }
            Self::Memory(claims) => Ok(claims.lock().contains(id)),
        }
    }
}

impl InMemory {
    fn lock(&self) -> MutexGuard<'_, HashSet<RecordId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        match self {
            Self::File { .. } => {}
            Self::Memory { claims, id } => {
                claims.lock().remove(id);
            }
        }
    }
}

/// Works with files off the threads of the runtime.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, StoreError> {
    let done = spawn_blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error)));
    done.map_err(|error| {
        let message = format!("the folder of claims beside the database: {error}");
        StoreError::new(StoreErrorKind::Unavailable, message).because(error)
    })
}
