//! The outside world: a payment provider that charges whenever it is asked to.

use std::{
    collections::BTreeSet,
    fs::{self, OpenOptions},
    io::{self, Write},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::sleep;

/// A pretend provider, whose cards decide what happens.
///
/// | card | what the provider does |
/// |---|---|
/// | `tok_visa` | charges it |
/// | `tok_declined` | says no |
/// | `tok_far` | cannot be reached at first; charges when it is tried again |
/// | `tok_silent` | charges it, and the answer is lost |
///
/// Each charge is a line of its statement. Clones are the same provider.
#[derive(Clone, Debug)]
pub(super) struct Provider(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    statement: PathBuf,
    takes: Duration,
    /// The references of far cards that were tried before.
    tried: Mutex<BTreeSet<String>>,
}

/// Why there is no charge, or may be none.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProviderError {
    /// A final no.
    #[error("the card was declined: {0}")]
    Declined(&'static str),
    /// Nothing was sent, so nothing was charged.
    #[error("the payment provider cannot be reached")]
    Unreachable,
    /// It was sent, and its outcome is unknown.
    #[error("the payment provider did not answer")]
    Silent(#[source] io::Error),
}

impl Provider {
    /// A provider with this statement, where a charge takes some time.
    pub(super) fn new(statement: PathBuf, takes: Duration) -> Self {
        Self(Arc::new(Inner { statement, takes, tried: Mutex::default() }))
    }

    /// Charges a card and returns the id of the charge. The reference is ours: by it, a charge can
    /// be found again. (A real provider takes it as an idempotency key as well.)
    pub(super) async fn charge(
        &self,
        reference: &str,
        card: &str,
        cents: u32,
    ) -> Result<String, ProviderError> {
        match card {
            "tok_declined" => return Err(ProviderError::Declined("insufficient funds")),
            "tok_far" if self.tried().insert(reference.to_owned()) => {
                return Err(ProviderError::Unreachable);
            }
            _ => {}
        }
        sleep(self.0.takes / 2).await;
        let charge = self.write(reference, cents).map_err(ProviderError::Silent)?;
        sleep(self.0.takes / 2).await;
        if card == "tok_silent" {
            return Err(ProviderError::Silent(io::ErrorKind::TimedOut.into()));
        }
        Ok(charge)
    }

    /// The charge with this reference, if there is one.
    pub(super) async fn find(&self, reference: &str) -> Result<Option<String>, ProviderError> {
        let lines = self.statement().map_err(|_| ProviderError::Unreachable)?;
        Ok(lines.iter().find_map(|line| match line.split(' ').collect::<Vec<_>>()[..] {
            [charge, of, _] if of == reference => Some(charge.to_owned()),
            _ => None,
        }))
    }

    /// Every charge there is: its id, its reference, its cents.
    fn statement(&self) -> io::Result<Vec<String>> {
        match fs::read_to_string(&self.0.statement) {
            Ok(text) => Ok(text.lines().map(str::to_owned).collect()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    fn write(&self, reference: &str, cents: u32) -> io::Result<String> {
        // Two at once must not get the same id.
        let _alone = self.tried();
        let charge = format!("ch_{}", self.statement()?.len() + 1);
        let mut file = OpenOptions::new().create(true).append(true).open(&self.0.statement)?;
        writeln!(file, "{charge} {reference} {cents}")?;
        Ok(charge)
    }

    fn tried(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.0.tried.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
