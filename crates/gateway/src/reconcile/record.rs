//! What the reader of a scope knows of one held record.

use semel::core::{
    Caller, Fence, Snapshot,
    reconcile::{ReconcileProgress, ReconcileStep},
};
use tokio::time::Instant;

/// The reads of one held record.
#[derive(Debug)]
pub(super) struct HeldRecord {
    pub(super) fence: Fence,
    pub(super) progress: ReconcileProgress,
    pub(super) reads: u32,
    /// When it is read next; `None` if it is read no more.
    pub(super) next: Option<Instant>,
}

impl HeldRecord {
    pub(super) fn new(fence: Fence, now: Instant) -> Self {
        Self { fence, progress: ReconcileProgress::default(), reads: 0, next: Some(now) }
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.next.is_some_and(|next| next <= now)
    }
}

/// What the templates of a rule may name. A value that a client sent is never taken for the key or
/// the caller: a record may have been captured under an earlier configuration.
pub(super) fn values(key: &str, caller: &Caller, seen: &Snapshot) -> Vec<(String, String)> {
    let captured = seen.captured.iter();
    let mut values: Vec<(String, String)> =
        captured.filter(|(name, _)| !matches!(&**name, "key" | "caller")).collect();
    values.push(("key".to_owned(), key.to_owned()));
    if let Some(name) = clear_name(caller) {
        values.push(("caller".to_owned(), name.to_owned()));
    }
    values
}

/// The name of a caller that a header names in clear: `7` of `header:x-merchant-id:7`.
fn clear_name(caller: &Caller) -> Option<&str> {
    let (_, name) = caller.as_str().strip_prefix("header:")?.split_once(':')?;
    Some(name)
}

/// A step in a few words, for the note and the log.
pub(super) const fn word(step: &ReconcileStep) -> &'static str {
    match step {
        ReconcileStep::Complete(_) => "completed",
        ReconcileStep::Release => "released",
        ReconcileStep::ReadAgain(_) => "read again",
        ReconcileStep::StopAtTwo => "two found; an operator decides",
        ReconcileStep::GiveUp => "given up; an operator decides",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_caller_that_a_header_names_has_a_clear_name() {
        let name = |text| clear_name(&Caller::from_stored(text).unwrap()).map(str::to_owned);
        assert_eq!(name("header:x-merchant-id:a:7").as_deref(), Some("a:7"));
        for other in ["jwt:https://issuer:7", "credential:x-api-key:0f", "", "app:jobs"] {
            assert_eq!(name(other), None, "{other}");
        }
    }
}
