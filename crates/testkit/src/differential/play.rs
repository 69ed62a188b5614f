//! Plays one history on the store and the model and compares their results and records.

use std::{fmt::Debug, sync::Arc};

use semel_core::{
    About, Answer, Captured, Claim, Claimant, Claimed, Fence, Finish, Grant, ListQuery, OwnerToken,
    Reason, RecordId, Resolution, Snapshot, StateName, Store, Summary,
};

use super::{
    history::{
        By, FenceChoice, Filter, HandleChoice, HistoryAct, HistoryEnd, HistoryStep, RECORDS,
        RandomHistory, Request,
    },
    model::Model,
    pairs::{Pair, Pairs},
};
use crate::{
    conform::{Handle, answer, fingerprint, id},
    fixture::Fixture,
    with,
};

/// Both sides of one history.
pub(super) struct Player<'a> {
    fixture: &'a dyn Fixture,
    handles: [Handle; 2],
    ids: Vec<RecordId>,
    model: Model,
    pairs: Pairs,
}

impl<'a> Player<'a> {
    pub(super) fn new(number: u64, fixture: &'a dyn Fixture, stores: [&Arc<dyn Store>; 2]) -> Self {
        let scope = format!("history-{number}");
        let [first, second] = stores;
        let first = Handle::new(Arc::clone(first));
        Self {
            fixture,
            handles: [first.clone(), first.beside(Arc::clone(second))],
            ids: (0..RECORDS).map(|record| id(&scope, "caller", &format!("k{record}"))).collect(),
            model: Model::new(),
            pairs: Pairs::default(),
        }
    }

    pub(super) async fn play(&mut self, history: &RandomHistory) -> Result<(), String> {
        for (at, (handle, operation)) in history.0.iter().enumerate() {
            let done = self.step(*handle, operation).await;
            done.map_err(|difference| format!("at {at}, {operation:?}: {difference}"))?;
        }
        Ok(())
    }

    async fn step(&mut self, handle: HandleChoice, operation: &HistoryStep) -> Result<(), String> {
        let store = self.handles[usize::from(handle == HandleChoice::Second)].clone();
        let epochs = (store.epoch().await.0, self.model.epoch);
        match operation {
            HistoryStep::Claim(request) => self.claim(&store, request).await?,
            HistoryStep::Advance(by) => {
                self.model.advance(*by);
                self.fixture.advance(*by).await;
            }
            HistoryStep::List(filter) => {
                let query = self.query(filter);
                self.list(&store, &query).await?;
            }
            HistoryStep::Reap => {
                self.model.reap();
                store.reap_all().await;
            }
            HistoryStep::Sweep => {
                self.model.sweep();
                store.sweep_all().await;
            }
            HistoryStep::Renew { .. }
            | HistoryStep::Finish { .. }
            | HistoryStep::Resolve { .. } => self.fenced(&store, operation).await?,
        }
        self.compare_records(&store).await?;
        let raised = (store.epoch().await.0 - epochs.0, self.model.epoch - epochs.1);
        same("the epoch rises by", &raised.0, &raised.1)
    }

    async fn claim(&mut self, store: &Handle, request: &Request) -> Result<(), String> {
        let id = self.ids[request.record].clone();
        let owner = OwnerToken::from_bytes([request.owner; 16]);
        let claim = with(Claim::new(id, fingerprint(request.fingerprint), owner), |claim| {
            claim.lease = request.lease;
            claim.retention = request.retention;
            claim.on_unknown = request.on_unknown;
            claim.hold_for = request.hold_for;
            claim.about = About::new(&format!("owner {}", request.owner));
            claim.captured = Captured::new([("owner", "ö&=%")]);
        });
        match (store.claim(&claim).await, self.model.claim(&claim)) {
            (Claimed::Granted(store), Claimed::Granted(model)) => {
                self.pairs.meet(&claim.id, model.fence, store.fence)?;
                same("the grant", &Grant::new(model.fence, store.attempt), &model)
            }
            (store, model) => same("the claim", &store, &model),
        }
    }

    /// The operations that carry a fence.
    async fn fenced(&mut self, store: &Handle, operation: &HistoryStep) -> Result<(), String> {
        match operation {
            HistoryStep::Renew { record, by, lease } => {
                let (id, on_store, on_model) = self.writer(store, *record, *by);
                let result = store.renew_by(&id, on_store, *lease).await;
                same("the renewal", &result, &self.model.renew(&id, on_model, *lease))
            }
            HistoryStep::Finish { record, by, end } => {
                let (id, on_store, on_model) = self.writer(store, *record, *by);
                let finish = match end {
                    HistoryEnd::Complete(answer) => Finish::complete(numbered(*answer)),
                    HistoryEnd::Release(release) => {
                        Finish::release(*release, Reason::Answered(429))
                    }
                    HistoryEnd::Hold => Finish::hold(Reason::ConnectionLost(7)),
                    HistoryEnd::Forget => Finish::forget(Reason::Answered(307)),
                };
                let result = store.finish_by(&id, on_store, &finish).await;
                same("the end", &result, &self.model.finish(&id, on_model, &finish))
            }
            HistoryStep::Resolve { record, seen, act } => {
                let (id, seen) = self.named(*record, *seen);
                let act = match act {
                    HistoryAct::Completed(answer) => Resolution::Completed(numbered(*answer)),
                    HistoryAct::Released => Resolution::Released,
                    HistoryAct::Forgotten(Some(state)) => Resolution::Deleted(*state),
                    HistoryAct::Forgotten(None) => {
                        let seen = self.model.get(&id);
                        let state = seen.map_or(StateName::Held, |seen| seen.state.name());
                        Resolution::Deleted(state)
                    }
                };
                let result = store.resolve(&id, seen.store, &act).await;
                same("the act", &result, &self.model.resolve(&id, seen.model, &act))
            }
            HistoryStep::Claim(_)
            | HistoryStep::Advance(_)
            | HistoryStep::List(_)
            | HistoryStep::Reap
            | HistoryStep::Sweep => Err("carries no fence".to_owned()),
        }
    }

    fn query(&self, filter: &Filter) -> ListQuery {
        with(ListQuery::new(), |query| {
            query.key = filter.key.map(|record| self.ids[record].key.clone());
            query.state = filter.state;
            query.scope = Some(self.ids[0].scope.clone());
            query.age_min = filter.age_min;
            query.age_max = filter.age_max;
            query.lapsed = filter.lapsed;
            query.reason = filter.reason.map(Into::into);
            query.limit = filter.limit;
        })
    }

    /// The record, and who writes to it, on both sides.
    fn writer(&self, store: &Handle, record: usize, by: By) -> (RecordId, Claimant, Claimant) {
        let (id, pair) = self.named(record, by.fence);
        let granted = store.claimant(&id, pair.store).owner;
        let owner = by.owner.map_or(granted, |owner| OwnerToken::from_bytes([owner; 16]));
        let (on_store, on_model) =
            (Claimant::new(pair.store, owner), Claimant::new(pair.model, owner));
        (id, on_store, on_model)
    }

    /// The record, and the fence that a history means, on both sides.
    fn named(&self, record: usize, named: FenceChoice) -> (RecordId, Pair) {
        let id = self.ids[record].clone();
        let newest = self.pairs.newest(&id, 0);
        let pair = match named {
            FenceChoice::Current => newest,
            FenceChoice::Stale(back) => self.pairs.newest(&id, back),
            FenceChoice::Foreign => {
                let other = &self.ids[(record + 1) % RECORDS];
                self.pairs.newest(other, 0).map(|other| self.pairs.of_store(&id, other.store))
            }
            FenceChoice::Unissued => newest.map(|newest| {
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
        let line = |(id, seen): (RecordId, Snapshot)| Summary::new(id, seen);
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
                    let store = with(store, |it| it.fence = model.fence);
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
