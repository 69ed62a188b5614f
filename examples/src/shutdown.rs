//! The shutdown signal of a service.

use std::{future::Future, io};

use tokio::{
    select,
    signal::unix::{SignalKind, signal},
};

/// Ends when the process is asked to end: by Ctrl-C, or by the SIGTERM of whatever started it.
///
/// # Errors
///
/// If the process cannot listen to signals.
pub fn requested() -> io::Result<impl Future<Output = ()> + Send + 'static> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}
