//! Claims of running operations: locked files beside the database, which every process sees, those
//! with `semel-sqlite` included. An in-memory database belongs to one process.

use std::{
    collections::HashSet,
    io,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use semel::{
    core::{RecordId, StoreError, StoreErrorKind},
    transactional::{ClaimFile, ClaimFiles},
};
use tokio::task::spawn_blocking;

#[derive(Clone, Debug)]
pub(super) enum OperationClaims {
    Files(ClaimFiles),
    Memory(MemoryClaims),
}

/// The right to run an operation, until it is dropped.
#[derive(Debug)]
pub(super) enum OperationClaim {
    File { _claim: ClaimFile },
    Memory { claims: MemoryClaims, id: RecordId },
}

#[derive(Clone, Debug, Default)]
pub(super) struct MemoryClaims(Arc<Mutex<HashSet<RecordId>>>);

impl OperationClaims {
    /// Opens the claims of the database in this file; an empty name is an in-memory database.
    pub(super) async fn open(file: String) -> Result<Self, StoreError> {
        if file.is_empty() {
            return Ok(Self::Memory(MemoryClaims::default()));
        }
        blocking(move || ClaimFiles::open(Path::new(&file))).await.map(Self::Files)
    }

    /// Claims an operation; `None` if it is running.
    pub(super) async fn take(&self, id: &RecordId) -> Result<Option<OperationClaim>, StoreError> {
        match self {
            Self::Files(files) => {
                let (files, id) = (files.clone(), id.clone());
                let taken = blocking(move || files.take(&id)).await?;
                Ok(taken.map(|claim| OperationClaim::File { _claim: claim }))
            }
            Self::Memory(claims) => {
                let taken = claims.lock().insert(id.clone());
                Ok(taken.then(|| OperationClaim::Memory { claims: claims.clone(), id: id.clone() }))
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

impl MemoryClaims {
    fn lock(&self) -> MutexGuard<'_, HashSet<RecordId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for OperationClaim {
    fn drop(&mut self) {
        match self {
            Self::File { .. } => {}
            Self::Memory { claims, id } => {
                claims.lock().remove(id);
            }
        }
    }
}

/// Runs file operations on a blocking thread.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, StoreError> {
    let done = spawn_blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error)));
    done.map_err(|error| {
        let message = format!("the folder of claims beside the database: {error}");
        StoreError::new(StoreErrorKind::Unavailable, message).because(error)
    })
}
