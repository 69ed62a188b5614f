//! What a front knows and does besides handing questions on: it looks, judges what it finds, and
//! writes down what the store has said.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use semel_core::{
    Answer, Changed, Claim, Claimant, Claimed, Effect, Epoch, Fingerprint, Grant, Occupied,
    RecordId, Store, StoreError, StoreId, time::millis,
};
use tokio::time::{Instant, timeout};

use crate::{
    Options,
    appetite::Appetite,
    clock::Clock,
    entry::{Entry, Name, Place, Said},
    grants::{Granted, Grants},
    known::Known,
    post::{Note, Post},
    wakes::Wakes,
};

/// How long an entry is kept at most. Clients repeat soon or not at all.
const KEPT_MILLIS_MAX: u64 = 10 * 60 * 1000;

/// How long a hint is good for at most.
const HINT_MAX: Duration = Duration::from_secs(1);

/// How long a watch is good for without looking, since what gateways say may get lost.
const WATCH: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) identity: StoreId,
    clock: Clock,
    asked_only: bool,
    pub(crate) post: Post,
    pub(crate) known: Known,
    pub(crate) wakes: Wakes,
    pub(crate) appetite: Appetite,
    pub(crate) grants: Grants,
    tally: Tally,
    born: Instant,
    /// Until when hints are not believed, in milliseconds since it was born.
    doubt: AtomicU64,
}

#[derive(Debug, Default)]
struct Tally {
    looks: AtomicU64,
    hits: AtomicU64,
    hints: AtomicU64,
    writes: AtomicU64,
}

/// What a front has done so far, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Claims that were looked up in Redis.
    pub looks: u64,
    /// Claims that Redis answered: replays, and keys that were used for another request.
    pub hits: u64,
    /// Claims that were told to wait because Redis knew that somebody runs them.
    pub hints: u64,
    /// Entries that were written.
    pub writes: u64,
    /// Whether Redis is in use now.
    pub connected: bool,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Core {
    pub(crate) fn new(store: Arc<dyn Store>, identity: StoreId, options: &Options) -> Self {
        Self {
            store,
            identity,
            clock: options.clock.clone(),
            asked_only: options.asked_only,
            post: Post::default(),
            known: Known::default(),
            wakes: Wakes::default(),
            appetite: Appetite::default(),
            grants: Grants::default(),
            tally: Tally::default(),
            born: Instant::now(),
            doubt: AtomicU64::new(0),
        }
    }

    pub(crate) fn counts(&self) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            looks: read(&self.tally.looks),
            hits: read(&self.tally.hits),
            hints: read(&self.tally.hints),
            writes: read(&self.tally.writes),
            connected: self.post.is_open(),
        }
    }

    fn name(&self, id: &RecordId) -> Name {
        Place::of(&self.identity, id).name()
    }

    // === claims ===

    /// What Redis says to a claim. The store must have been heard of before, or else nothing that
    /// could be found would count.
    pub(crate) async fn look(&self, claim: &Claim) -> Option<Occupied> {
        self.known.epoch(Instant::now())?;
        count(&self.tally.looks);
        let place = Place::of(&self.identity, &claim.id);
        let bytes = self.post.look(place.name()).await?;
        let entry = Entry::read(&bytes, &place)?;
        let occupied = self.judge(entry, claim)?;
        let waits = matches!(occupied, Occupied::InFlight { .. });
        count(if waits { &self.tally.hints } else { &self.tally.hits });
        self.appetite.repeated();
        Some(occupied)
    }

    fn judge(&self, entry: Entry, claim: &Claim) -> Option<Occupied> {
        if self.known.epoch(Instant::now())? != entry.epoch {
            return None;
        }
        let same = entry.fingerprint == claim.fingerprint;
        match entry.said {
            Said::Completed(answer) => {
                let now = self.clock.now().saturating_add(self.clock.margin());
                let left = Duration::from_millis(entry.expires.checked_sub(now)?);
                if !same {
                    return Some(Occupied::FingerprintMismatch);
                }
                Some(Occupied::Completed { answer, expires_in: left })
            }
            Said::InFlight => {
                let left = entry.expires.saturating_sub(self.clock.now());
                let lease_left = Duration::from_millis(left);
                let good = same && left > 0 && !self.doubts();
                good.then_some(Occupied::InFlight { lease_left })
            }
        }
    }

    /// Asks the store, and remembers what may be of use.
    pub(crate) async fn ask(&self, claim: &Claim, looked: bool) -> Result<Claimed, StoreError> {
        // Both before the record is read: what is read may be newer, never older.
        let epoch = self.known.epoch(Instant::now());
        let asked = self.clock.now();
        // Of a claim that is asked again it is not known when it was granted.
        let keep = looked && !self.asked_only && !self.doubts();
        let mut unsettled = Unsettled { core: self, lease: claim.lease, settled: false };
        let claimed = self.store.claim(claim).await;
        unsettled.settled = match &claimed {
            Ok(_) => true,
            Err(error) => error.effect() == Effect::None,
        };
        match &claimed {
            Ok(Claimed::Granted(Grant { fence, .. })) if looked => {
                self.appetite.wasted();
                if keep {
                    self.grants.put(*fence, claim, asked);
                }
            }
            Ok(Claimed::Occupied(occupied)) if self.post.is_open() => match epoch {
                Some(epoch) => self.met(claim, occupied, asked, epoch),
                // Where there is appetite, the store's epoch is asked for.
                None => self.appetite.repeated(),
            },
            Ok(_) | Err(_) => {}
        }
        claimed
    }

    /// The store refused a claim that was sent at `asked`. Only a completed record may be cached;
    /// a record in flight may be hinted (law 12).
    fn met(&self, claim: &Claim, occupied: &Occupied, asked: u64, epoch: Epoch) {
        if let Occupied::Completed { answer, expires_in } = occupied {
            let expires = asked.saturating_add(millis(*expires_in));
            let said = Said::Completed(answer.clone());
            if self.write(&claim.id, claim.fingerprint, epoch, expires, said) {
                self.appetite.repeated();
            }
        } else if let Occupied::InFlight { lease_left } = occupied
            && !self.clock.is_exact()
        {
            let expires = asked.saturating_add(millis((*lease_left).min(HINT_MAX)));
            self.write(&claim.id, claim.fingerprint, epoch, expires, Said::InFlight);
            // The owner removes the hint when the operation ends.
            self.post.note(Note::Await(self.name(&claim.id), None));
        } else if *occupied == Occupied::FingerprintMismatch {
            self.appetite.repeated();
        }
    }

    /// Writes an entry; whether it is one that can be written.
    fn write(
        &self,
        id: &RecordId,
        fingerprint: Fingerprint,
        epoch: Epoch,
        expires: u64,
        said: Said,
    ) -> bool {
        let hint = said == Said::InFlight;
        let margin = if hint { 0 } else { self.clock.margin() };
        let left = expires.saturating_sub(margin).saturating_sub(self.clock.now());
        let millis = left.min(KEPT_MILLIS_MAX);
        let place = Place::of(&self.identity, id);
        let entry = Entry { fingerprint, epoch, expires, said }.write(&place);
        let Some(entry) = entry.filter(|_| millis > 0) else { return false };
        if self.post.note(Note::Put { name: place.name(), entry, millis, hint }) {
            count(&self.tally.writes);
        }
        true
    }

    // === doubts ===

    /// Whether a claim of this process may have been granted without our knowing: then what runs
    /// "elsewhere" may be our own, and only the store can tell by its owner (law 7).
    fn doubts(&self) -> bool {
        millis(self.born.elapsed()) < self.doubt.load(Ordering::Relaxed)
    }

    /// For as long as such a claim may be asked again.
    fn doubt(&self, lease: Duration) {
        let until = self.born.elapsed().saturating_add(lease.saturating_mul(12));
        self.doubt.fetch_max(millis(until), Ordering::Relaxed);
    }

    // === ends ===

    /// What is known of a claim that is about to be ended, and the epoch before that.
    pub(crate) fn ending(&self, by: Claimant) -> Option<(Granted, Epoch)> {
        let granted = self.grants.take(by)?;
        Some((granted, self.known.epoch(Instant::now())?))
    }

    /// The store has recorded the answer.
    pub(crate) fn completed(
        &self,
        id: &RecordId,
        answer: &Answer,
        ending: Option<(Granted, Epoch)>,
    ) {
        self.changed(id);
        if let Some((granted, epoch)) = ending
            && let Some(expires) = granted.expires(self.clock.now(), self.clock.margin())
        {
            let said = Said::Completed(answer.clone());
            self.write(id, granted.fingerprint, epoch, expires, said);
        }
    }

    /// What a record was, it is no longer: those who wait for it are told.
    pub(crate) fn changed(&self, id: &RecordId) {
        if self.wakes.any() {
            let name = self.name(id);
            if self.wakes.changed(&name, Instant::now()) {
                self.post.note(Note::Changed(name));
            }
        }
    }

    /// An operator has acted here, or may have.
    pub(crate) fn acted(&self, id: &RecordId) {
        self.known.forget(Instant::now());
        self.post.note(Note::Remove(self.name(id)));
        self.changed(id);
    }

    // === waiting ===

    /// Ends when some gateway says that the record has changed.
    pub(crate) async fn watch(self: &Arc<Self>, id: &RecordId) -> Option<Changed> {
        if !self.post.is_open() {
            return None;
        }
        let name = self.name(id);
        let woken = self.wakes.wait(name)?;
        let place = Waiting { core: Arc::clone(self), name };
        self.wakes.want(&[name], Instant::now());
        if !self.post.announce(name).await {
            return None;
        }
        Some(Box::pin(async move {
            let _place = place;
            let _ = timeout(WATCH, woken).await;
        }))
    }
}

/// Somebody's place among those who wait.
struct Waiting {
    core: Arc<Core>,
    name: Name,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.core.wakes.leave(&self.name);
    }
}

/// A claim that the store was asked. If its asker goes away, or is told that nobody knows, it may
/// have been granted.
struct Unsettled<'a> {
    core: &'a Core,
    lease: Duration,
    settled: bool,
}

impl Drop for Unsettled<'_> {
    fn drop(&mut self) {
        if !self.settled {
            self.core.doubt(self.lease);
        }
    }
}
