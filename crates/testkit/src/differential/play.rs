//! Plays one history on both sides and compares what each is told and shows.

use std::{fmt::Debug, sync::Arc};

use semel_core::{
    Answer, Claim, Claimed, Fence, Grant, ListQuery, OwnerToken, RecordId, Resolution, Snapshot,
    StateName, Store, Summary,
};

use super::{
    history::{Act, Door, History, Named, Operation, RECORDS, Request},
    model::Model,
    pairs::{Pair, Pairs},
};
use crate::{
    conform::{Handle, answer, fingerprint, id},
    fixture::Fixture,
};

/// Both sides of one history.
pub(super) struct Player<'a> {
    fixture: &'a dyn Fixture,
    doors: [Handle; 2],
    ids: Vec<RecordId>,
    model: Model,
    pairs: Pairs,
}

impl<'a> Player<'a> {
    pub(super) fn new(number: u64, fixture: &'a dyn Fixture, stores: [&Arc<dyn Store>; 2]) -> Self {
        let scope = format!("history-{number}");
        Self {
            fixture,
            doors: stores.map(|store| Handle::new(Arc::clone(store))),
            ids: (0..RECORDS).map(|record| id(&scope, "caller", &format!("k{record}"))).collect(),
            model: Model::new(),
            pairs: Pairs::default(),
        }
    }

    pub(super) async fn play(&mut self, history: &History) -> Result<(), String> {
        for (at, (door, operation)) in history.0.iter().enumerate() {
            let done = self.step(*door, operation).await;
            done.map_err(|difference| format!("at {at}, {operation:?}: {difference}"))?;
        }
        Ok(())
    }

    async fn step(&mut self, door: Door, operation: &Operation) -> Result<(), String> {
        let store = self.doors[usize::from(door == Door::Second)].clone();
        let epochs = (store.epoch().await.0, self.model.epoch);
        match operation {
            Operation::Claim(request) => self.claim(&store, request).await?,
            Operation::Advance(by) => {
                self.model.advance(*by);
                self.fixture.advance(*by).await;
            }
            Operation::List { state, age_min, limit } => {
                let scope = Some(self.ids[0].scope.clone());
                let (state, age_min, limit) = (*state, *age_min, *limit);
                let query = ListQuery { state, scope, age_min, after: None, limit };
                self.list(&store, &query).await?;
            }
            Operation::Reap => {
                self.model.reap();
                store.reap_all().await;
            }
            Operation::Sweep => {
                self.model.sweep();
                store.sweep_all().await;
            }
            Operation::Renew { .. }
            | Operation::Complete { .. }
            | Operation::Release { .. }
            | Operation::Hold { .. }
            | Operation::Resolve { .. } => self.fenced(&store, operation).await?,
        }
        self.compare_records(&store).await?;
        let raised = (store.epoch().await.0 - epochs.0, self.model.epoch - epochs.1);
        same("the epoch rises by", &raised.0, &raised.1)
    }

    async fn claim(&mut self, store: &Handle, request: &Request) -> Result<(), String> {
        let claim = Claim {
            id: self.ids[request.record].clone(),
            fingerprint: fingerprint(request.fingerprint),
            owner: OwnerToken::from_bytes([request.owner; 16]),
            lease: request.lease,
            retention: request.retention,
            on_unknown: request.on_unknown,
        };
        match (store.claim(&claim).await, self.model.claim(&claim)) {
            (Claimed::Granted(store), Claimed::Granted(model)) => {
                self.pairs.meet(&claim.id, model.fence, store.fence)?;
                same("the grant", &Grant { fence: model.fence, ..store }, &model)
            }
            (store, model) => same("the claim", &store, &model),
        }
    }

    /// The operations that carry a fence.
    async fn fenced(&mut self, store: &Handle, operation: &Operation) -> Result<(), String> {
        match operation {
            Operation::Renew { record, fence, lease } => {
                let (id, fence) = self.named(*record, *fence);
                let told = store.renew(&id, fence.store, *lease).await;
                same("the renewal", &told, &self.model.renew(&id, fence.model, *lease))
            }
            Operation::Complete { record, fence, answer } => {
                let (id, fence) = self.named(*record, *fence);
                let answer = numbered(*answer);
                let told = store.complete(&id, fence.store, &answer).await;
                same("the answer", &told, &self.model.complete(&id, fence.model, &answer))
            }
            Operation::Release { record, fence, tried } => {
                let (id, fence) = self.named(*record, *fence);
                let told = store.release(&id, fence.store, *tried).await;
                same("the release", &told, &self.model.release(&id, fence.model, *tried))
            }
            Operation::Hold { record, fence } => {
                let (id, fence) = self.named(*record, *fence);
                let told = store.hold(&id, fence.store).await;
                same("the hold", &told, &self.model.hold(&id, fence.model))
            }
            Operation::Resolve { record, seen, act } => {
                let (id, seen) = self.named(*record, *seen);
                let act = match act {
                    Act::Completed(answer) => Resolution::Completed(numbered(*answer)),
                    Act::Released => Resolution::Released,
                    Act::Forgotten(Some(state)) => Resolution::Forgotten(*state),
                    Act::Forgotten(None) => {
                        let seen = self.model.get(&id);
                        let state = seen.map_or(StateName::Held, |seen| seen.standing.name());
                        Resolution::Forgotten(state)
                    }
                };
                let told = store.resolve(&id, seen.store, &act).await;
                same("the act", &told, &self.model.resolve(&id, seen.model, &act))
            }
            Operation::Claim(_)
            | Operation::Advance(_)
            | Operation::List { .. }
            | Operation::Reap
            | Operation::Sweep => Err("carries no fence".to_owned()),
        }
    }

    /// The record, and the fence that a history means, on both sides.
    fn named(&self, record: usize, named: Named) -> (RecordId, Pair) {
        let id = self.ids[record].clone();
        let newest = self.pairs.newest(&id, 0);
        let pair = match named {
            Named::Current => newest,
            Named::Stale(back) => self.pairs.newest(&id, back),
            Named::Foreign => {
                let other = &self.ids[(record + 1) % RECORDS];
                self.pairs.newest(other, 0).map(|other| self.pairs.of_store(&id, other.store))
            }
            Named::Unissued => newest.map(|newest| {
                let number = newest.store.get().saturating_add(1_000_000);
                self.pairs.of_store(&id, Fence::new(number).unwrap())
            }),
        };
        let never = || self.pairs.of_store(&id, Fence::new(u64::MAX).unwrap());
        let pair = pair.unwrap_or_else(never);
        (id, pair)
    }

    async fn list(&self, store: &Handle, query: &ListQuery) -> Result<(), String> {
        let listed = store.list(query).await;
        let line = |(id, seen): (RecordId, Snapshot)| Summary {
            id,
            state: seen.standing.name(),
            fence: seen.fence,
            attempt: seen.attempt,
            age: seen.age,
        };
        let mut wanted: Vec<Summary> = self.model.all().into_iter().map(line).collect();
        wanted.retain(|line| query.takes(line));
        for line in &mut wanted {
            let newest = self.pairs.newest(&line.id, 0).filter(|pair| pair.model == line.fence);
            line.fence = newest.ok_or("the newest fence is not known")?.store;
        }
        same("the listing", &listed, &wanted)
    }

    /// Compares every record of the history, and pairs what an operator's act has raised.
    async fn compare_records(&mut self, store: &Handle) -> Result<(), String> {
        for id in &self.ids {
            match (store.get(id).await, self.model.get(id)) {
                (Some(store), Some(model)) => {
                    self.pairs.meet(id, model.fence, store.fence)?;
                    let store = Snapshot { fence: model.fence, ..store };
                    same(id.key.as_str(), &store, &model)?;
                }
                (store, model) => same(id.key.as_str(), &store, &model)?,
            }
        }
        Ok(())
    }
}

fn numbered(number: u8) -> Answer {
    if number == 0 { Answer::failed() } else { answer(&format!("answer {number}")) }
}

fn same<T: Debug + PartialEq>(what: &str, store: &T, model: &T) -> Result<(), String> {
    if store == model {
        return Ok(());
    }
    Err(format!("{what} differs\n  store: {store:?}\n  rules: {model:?}"))
}
