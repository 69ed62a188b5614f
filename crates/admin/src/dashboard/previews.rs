//! Previews: the records that an operator saw before resolving all that match. Only they are
//! resolved.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use data_encoding::HEXLOWER;
use tokio::time::Instant;

use crate::requests::SeenRecord;

/// Maximum number of records in a preview: resolving them takes ten seconds.
pub(super) const PREVIEW_MAX: usize = 2000;

/// Maximum number of previews. A new one replaces the oldest.
const PREVIEWS_MAX: usize = 16;

/// How long a preview can be confirmed.
const PREVIEW_AGE_MAX: Duration = Duration::from_secs(15 * 60);

/// The open previews.
#[derive(Default)]
pub(super) struct Previews(Mutex<VecDeque<KeptPreview>>);

struct KeptPreview {
    id: String,
    subject: String,
    records: Vec<SeenRecord>,
    made: Instant,
}

impl Previews {
    /// Keeps the records that this user was shown. The result names the preview; `None` if the
    /// system has no random numbers.
    pub(super) fn keep(&self, subject: &str, records: Vec<SeenRecord>) -> Option<String> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).ok()?;
        let id = HEXLOWER.encode(&bytes);
        let (named, subject, made) = (id.clone(), subject.to_owned(), Instant::now());
        let mut previews = self.lock();
        previews.push_back(KeptPreview { id, subject, records, made });
        while previews.len() > PREVIEWS_MAX {
            previews.pop_front();
        }
        Some(named)
    }

    /// The records of a preview of this user.
    pub(super) fn find(&self, subject: &str, id: &str) -> Option<Vec<SeenRecord>> {
        let previews = self.lock();
        let preview = previews.iter().find(|it| it.id == id && it.subject == subject)?;
        (preview.made.elapsed() < PREVIEW_AGE_MAX).then(|| preview.records.clone())
    }

    /// Forgets a preview that was confirmed.
    pub(super) fn remove(&self, id: &str) {
        self.lock().retain(|preview| preview.id != id);
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<KeptPreview>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(key: &str) -> Vec<SeenRecord> {
        let (scope, caller) = ("payments".to_owned(), String::new());
        vec![SeenRecord { scope, caller, key: key.to_owned(), fence: 7 }]
    }

    #[tokio::test(start_paused = true)]
    async fn a_preview_is_confirmed_by_the_one_who_saw_it_and_in_time() {
        let previews = Previews::default();
        let id = previews.keep("zoe", record("k")).unwrap();
        assert_eq!(previews.find("zoe", &id), Some(record("k")));
        assert_eq!(previews.find("ada", &id), None);
        tokio::time::advance(PREVIEW_AGE_MAX).await;
        assert_eq!(previews.find("zoe", &id), None);
    }

    #[test]
    fn a_bounded_number_of_previews_is_kept() {
        let previews = Previews::default();
        let first = previews.keep("zoe", record("first")).unwrap();
        let last = (0..PREVIEWS_MAX).map(|_| previews.keep("zoe", record("k")).unwrap()).last();
        assert_eq!(previews.find("zoe", &first), None);
        let last = last.unwrap();
        assert!(previews.find("zoe", &last).is_some());
        previews.remove(&last);
        assert!(previews.find("zoe", &last).is_none());
    }
}
