//! A gate that a test opens when the operations behind it may continue.

use std::sync::Arc;

use tokio::sync::Semaphore;

/// Closed until a test opens it. Clones are the same gate.
#[derive(Clone, Debug)]
pub struct Gate(Arc<Semaphore>);

impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}

impl Gate {
    /// A closed gate.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(Semaphore::new(0)))
    }

    /// Lets every operation through, now and later.
    pub fn open(&self) {
        self.0.close();
    }

    /// Lets one operation through.
    pub fn open_for_one(&self) {
        self.0.add_permits(1);
    }

    /// Waits until the gate is open for this operation.
    pub async fn wait_open(&self) {
        if let Ok(permit) = self.0.acquire().await {
            permit.forget();
        }
    }
}
