//! Which orders are likely duplicates.
//!
//! Orders may come in any order, so all of them are remembered until the end, but of each only its
//! time, line and id, under a hash of what makes it equal to others. The words for that are kept
//! only where it came at least twice.

use std::{
    collections::{BTreeMap, HashMap, hash_map::Entry},
    sync::Arc,
    time::Duration,
};

use sha2::{Digest as _, Sha256};

use super::amount::Amount;

/// Below this gap, two equal orders count as a double click.
const DOUBLE_CLICK_MICROS: i64 = 2_000_000;

/// Below this gap, as a retry.
const RETRY_MICROS: i64 = 30_000_000;

/// One order.
#[derive(Clone, Copy, Debug)]
pub(super) struct OrderRow<'a> {
    pub(super) customer: &'a str,
    pub(super) product: &'a str,
    /// Empty where there is only one.
    pub(super) currency: &'a str,
    pub(super) amount: Amount,
    /// In microseconds since 1970.
    pub(super) at: i64,
    /// The line in the file.
    pub(super) line: u64,
    /// Empty where there is no column for it.
    pub(super) id: &'a str,
}

/// When and where an order was found.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FoundOrder {
    pub(super) at: i64,
    pub(super) line: u64,
    pub(super) id: Box<str>,
}

/// Collects orders and finds likely duplicates.
#[derive(Debug)]
pub(super) struct DuplicateDetector {
    within: i64,
    orders: u64,
    seen: HashMap<u128, Occurrence>,
    repeated: Vec<DuplicateGroup>,
}

#[derive(Debug)]
enum Occurrence {
    Once(FoundOrder),
    /// The place in `repeated`.
    Again(usize),
}

/// Equal orders, each within the window after the one before.
///
/// Its words are shared: one customer's orders of one product may make very many groups.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DuplicateGroup {
    pub(super) customer: Arc<str>,
    pub(super) product: Arc<str>,
    pub(super) currency: Arc<str>,
    pub(super) amount: Amount,
    /// The earliest first.
    pub(super) orders: Vec<FoundOrder>,
}

/// How far apart likely duplicates are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct GapCounts {
    pub(super) clicks: u64,
    pub(super) retries: u64,
    pub(super) longer: u64,
}

/// Sums by currency.
pub(super) type SumsByCurrency = BTreeMap<Arc<str>, Amount>;

/// The result.
#[derive(Debug, Default)]
pub(super) struct DetectionResult {
    pub(super) orders: u64,
    /// Those that cost the most first.
    pub(super) groups: Vec<DuplicateGroup>,
    pub(super) surplus_orders: u64,
    pub(super) surplus: SumsByCurrency,
    /// What was paid back too often, apart: it makes up for nothing that was charged twice.
    pub(super) refunds: SumsByCurrency,
    pub(super) gaps: GapCounts,
}

impl DuplicateDetector {
    pub(super) fn new(within: Duration) -> Self {
        let within = i64::try_from(within.as_micros()).unwrap_or(i64::MAX);
        Self { within, orders: 0, seen: HashMap::new(), repeated: Vec::new() }
    }

    pub(super) fn add(&mut self, order: &OrderRow<'_>) {
        self.orders = self.orders.saturating_add(1);
        let mut seen = match self.seen.entry(order.hash()) {
            Entry::Occupied(seen) => seen,
            Entry::Vacant(first) => {
                first.insert(Occurrence::Once(order.found()));
                return;
            }
        };
        let again = Occurrence::Again(self.repeated.len());
        match std::mem::replace(seen.get_mut(), again) {
            Occurrence::Once(first) => {
                self.repeated.push(DuplicateGroup {
                    customer: order.customer.into(),
                    product: order.product.into(),
                    currency: order.currency.into(),
                    amount: order.amount,
                    orders: vec![first, order.found()],
                });
            }
            Occurrence::Again(place) => {
                seen.insert(Occurrence::Again(place));
                if let Some(group) = self.repeated.get_mut(place) {
                    group.orders.push(order.found());
                }
            }
        }
    }

    pub(super) fn finish(self) -> DetectionResult {
        let mut verdict = DetectionResult { orders: self.orders, ..DetectionResult::default() };
        for mut equal in self.repeated {
            equal.orders.sort_unstable();
            let near =
                |one: &FoundOrder, two: &FoundOrder| two.at.saturating_sub(one.at) <= self.within;
            for orders in equal.orders.chunk_by(near).filter(|orders| orders.len() > 1) {
                let group = equal.part(orders);
                verdict.count(&group);
                verdict.groups.push(group);
            }
        }
        verdict.groups.sort_by(|one, two| {
            let order = two.surplus().cmp(&one.surplus());
            order
                .then_with(|| one.orders.cmp(&two.orders))
                .then_with(|| one.words().cmp(&two.words()))
        });
        verdict
    }
}

impl DetectionResult {
    fn count(&mut self, group: &DuplicateGroup) {
        self.surplus_orders = self.surplus_orders.saturating_add(group.surplus_orders());
        let sums = if group.amount.is_negative() { &mut self.refunds } else { &mut self.surplus };
        let sum = sums.entry(Arc::clone(&group.currency)).or_default();
        *sum = sum.plus(group.surplus());
        for gap in group.gaps() {
            match gap {
                ..DOUBLE_CLICK_MICROS => self.gaps.clicks += 1,
                DOUBLE_CLICK_MICROS..RETRY_MICROS => self.gaps.retries += 1,
                RETRY_MICROS.. => self.gaps.longer += 1,
            }
        }
    }
}

impl DuplicateGroup {
    /// A group of its own of some of these.
    fn part(&self, orders: &[FoundOrder]) -> Self {
        Self {
            customer: Arc::clone(&self.customer),
            product: Arc::clone(&self.product),
            currency: Arc::clone(&self.currency),
            amount: self.amount,
            orders: orders.to_vec(),
        }
    }

    /// Number of duplicates of the first order.
    fn surplus_orders(&self) -> u64 {
        u64::try_from(self.orders.len()).unwrap_or(u64::MAX).saturating_sub(1)
    }

    /// What those come to, charged or paid back.
    fn surplus(&self) -> Amount {
        self.amount.abs().times(self.surplus_orders().into())
    }

    /// From each to the next, in microseconds.
    pub(super) fn gaps(&self) -> impl Iterator<Item = i64> + '_ {
        let pairs = self.orders.iter().zip(self.orders.iter().skip(1));
        pairs.map(|(one, two)| two.at.saturating_sub(one.at))
    }

    fn words(&self) -> (&str, &str, &str) {
        (&self.customer, &self.product, &self.currency)
    }
}

impl OrderRow<'_> {
    fn found(&self) -> FoundOrder {
        FoundOrder { at: self.at, line: self.line, id: self.id.into() }
    }

    /// What makes it equal to others. So many bytes that two that differ never meet.
    fn hash(&self) -> u128 {
        let mut hash = Sha256::new();
        for text in [self.customer, self.product, self.currency] {
            hash.update(text.len().to_be_bytes());
            hash.update(text);
        }
        hash.update(self.amount.to_bytes());
        let half = hash.finalize().first_chunk().copied();
        u128::from_be_bytes(half.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests;
