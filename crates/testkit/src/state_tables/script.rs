//! What the service answers in each row of the state tables.

use super::{Before, ENDINGS, EndingRow};
use crate::gate::Gate;

/// The answers of a service, by key and run. Clones share their gate.
#[derive(Clone, Debug, Default)]
pub struct Script {
    gate: Gate,
}

impl Script {
    /// The key of a row of [`ENDINGS`].
    #[must_use]
    pub fn ending_key(index: usize) -> String {
        format!("ending-{index}")
    }

    /// The key of a row of [`MEETINGS`](super::MEETINGS).
    #[must_use]
    pub fn meeting_key(before: Before, same: bool) -> String {
        format!("{before:?}-{same}")
    }

    /// What the first run of a request waits for that another is to meet.
    #[must_use]
    pub const fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Whether this run waits for the gate.
    #[must_use]
    pub fn waits(&self, key: &str, run: usize) -> bool {
        run == 1 && key.starts_with("InFlight")
    }

    /// The status of this run and the header that it sends. Its body is `run` and the number.
    #[must_use]
    pub fn answer(
        &self,
        key: &str,
        run: usize,
    ) -> (u16, Option<(&'static str, &'static str)>, String) {
        let (status, header) = if run == 1 { Self::first(key) } else { (201, None) };
        (status, header, format!("run {run}"))
    }

    fn first(key: &str) -> (u16, Option<(&'static str, &'static str)>) {
        if let Some(index) = key.strip_prefix("ending-").and_then(|index| index.parse().ok()) {
            let row: Option<&EndingRow> = ENDINGS.get::<usize>(index);
            return row.map_or((201, None), |row| (row.status, row.header));
        }
        let status = match key.split('-').next() {
            Some("Released") => 429,
            Some("Forgotten") => 421,
            Some("Held") => 503,
            _ => 201,
        };
        (status, None)
    }
}

#[cfg(test)]
mod tests {
    use semel_core::{AnswerFacts, GrpcStatus, Policy, Verdict};

    use super::*;

    #[test]
    fn the_default_policy_gives_the_verdict_of_every_ending() {
        for row in ENDINGS {
            let said = match row.header {
                Some(("idempotency-outcome", said)) => Verdict::from_header(said.as_bytes()),
                _ => None,
            };
            let asks_for_retry = row.header.is_some() && said.is_none();
            let facts =
                AnswerFacts { status: row.status, grpc: GrpcStatus::No, said, asks_for_retry };
            assert_eq!(Policy::default().verdict(&facts), row.verdict, "{row:?}");
        }
    }
}
