//! The fences of both sides, paired: the model's and the store's, for each record.

use std::collections::BTreeMap;

use semel_core::{Fence, RecordId};

/// A fence as the model and as the store know it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair {
    pub(super) model: Fence,
    pub(super) store: Fence,
}

/// Every fence that either side has shown, oldest first.
#[derive(Debug, Default)]
pub(super) struct Pairs(BTreeMap<RecordId, Vec<Pair>>);

impl Pairs {
    /// Takes note that both sides showed a fence of this record. One seen before must be the same;
    /// a new one must be higher than all before it.
    pub(super) fn meet(&mut self, id: &RecordId, model: Fence, store: Fence) -> Result<(), String> {
        let known = self.0.entry(id.clone()).or_default();
        if let Some(pair) = known.iter().find(|pair| pair.model == model) {
            return if pair.store == store {
                Ok(())
            } else {
                Err(format!("fence {} is now {store}", pair.store))
            };
        }
        if let Some(higher) = known.iter().find(|pair| pair.store >= store) {
            return Err(format!("fence {store} is new, but {} was before it", higher.store));
        }
        known.push(Pair { model, store });
        Ok(())
    }

    /// The fence that is `back` before the newest of this record.
    pub(super) fn newest(&self, id: &RecordId, back: usize) -> Option<Pair> {
        self.0.get(id)?.iter().rev().nth(back).copied()
    }

    /// A number on the store's side, which the model has to know by another. A number the record
    /// has not had means nothing to either.
    pub(super) fn of_store(&self, id: &RecordId, store: Fence) -> Pair {
        let known = self.0.get(id).into_iter().flatten().find(|pair| pair.store == store);
        let unissued = Fence::new(u64::MAX).unwrap();
        known.copied().unwrap_or(Pair { model: unissued, store })
    }
}
