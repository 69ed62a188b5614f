//! Batches with velocity limits: counters are decided in the transaction of their records.
//!
//! A transaction takes its records first, in the order of the statements, and then the counters in
//! the order of their keys. [`semel_core::limit`] decides here, under these locks, and the counters
//! are written back. If it refuses a claim that a statement has granted, the transaction is rolled
//! back and the other commands are sent again. That is rare: the statement of claims already leaves
//! out those whose counter is committed as full, so that a refusal locks and writes nothing.

use std::collections::BTreeMap;

use semel_core::{
    Answer, Claim, Claimed, Fenced, Occupied, RecordAction, StoreTime,
    limit::{CounterSet, LimitCounter, LimitKey, LimitKeys, OperationId, admit},
    settlement::Settlement,
};
use tokio_postgres::{Error, Row};

use super::{PendingQuery, StatementGroup, group_by_statement, pipeline};
use crate::{
    command::{
        CommandReply, LimitHint, QueuedCommand, RecordCommand, StatementOutcome, StatementStage,
    },
    digest::Digest,
    error::{ErrorClass, StatementFailure, corrupt},
    row::{self, TimestampMillis, column},
    session::{BEGIN_POOLED, BoxedParameter, Session},
    statements::StatementKind,
};

/// The statements of such a batch besides those that every batch may need.
const STATEMENTS: [StatementKind; 5] = [
    StatementKind::AddCounters,
    StatementKind::LockCounters,
    StatementKind::ReadCounters,
    StatementKind::WriteCounters,
    StatementKind::Begin,
];

/// A command and its position in the batch.
type BatchCommand<'a> = (usize, &'a QueuedCommand);

/// Sends a batch of which a command has limits.
pub(crate) async fn send(
    session: &Session,
    commands: &[QueuedCommand],
) -> Result<Vec<StatementOutcome>, StatementFailure> {
    for kind in STATEMENTS {
        session.prepare(kind).await?;
    }
    let mut outcomes: Vec<StatementOutcome> =
        commands.iter().map(QueuedCommand::outcome_without_row).collect();
    let mut left: Vec<BatchCommand<'_>> = commands.iter().enumerate().collect();
    while !left.is_empty() {
        match send_transaction(session, &left, &mut outcomes).await {
            Ok(refused) if refused.is_empty() => break,
            Ok(refused) => {
                session.execute("ROLLBACK").await?;
                left.retain(|(at, _)| !refused.contains(at));
                for (at, command) in &left {
                    set(&mut outcomes, *at, command.outcome_without_row());
                }
            }
            Err(failure) => {
                if matches!(failure.class, ErrorClass::Rejected | ErrorClass::Retryable) {
                    session.execute("ROLLBACK").await?;
                }
                return Err(failure);
            }
        }
    }
    Ok(outcomes)
}

fn set(outcomes: &mut [StatementOutcome], at: usize, outcome: StatementOutcome) {
    if let Some(place) = outcomes.get_mut(at) {
        *place = outcome;
    }
}

/// Sends the commands in one transaction and commits it. Returns the positions of refused claims;
/// then the transaction is still open.
async fn send_transaction(
    session: &Session,
    commands: &[BatchCommand<'_>],
    outcomes: &mut [StatementOutcome],
) -> Result<Vec<usize>, StatementFailure> {
    let groups = group_by_statement(commands.iter().copied(), true);
    for group in &groups {
        session.prepare(group.kind).await?;
    }
    let begin: PendingQuery<'_> = if session.dedicated {
        Box::pin(session.query(StatementKind::Begin, Vec::new()))
    } else {
        Box::pin(session.execute(BEGIN_POOLED))
    };
    let mut statements = vec![begin];
    statements.extend(groups.iter().map(|group| -> PendingQuery<'_> {
        Box::pin(session.query(group.kind, group.parameters()))
    }));
    let added = owned_keys(commands, |command| command.claim().map(|claim| claim.limits.keys()));
    statements.push(Box::pin(session.query(StatementKind::AddCounters, added)));
    let locked = owned_keys(commands, |command| Some(command.limit_keys()));
    statements.push(Box::pin(session.query(StatementKind::LockCounters, locked)));
    let mut results = pipeline(statements, true).await?;
    let counters = results.pop().unwrap_or_default();
    let mut decision = BatchDecision::new(&counters);
    for (group, rows) in groups.iter().zip(results.iter().skip(1)) {
        group.read(rows, outcomes);
        decision.note_ends(group, rows);
    }
    let refused = decision.decide(commands, outcomes);
    if refused.is_empty() {
        commit(session, commands, outcomes, &decision).await?;
    }
    Ok(refused)
}

/// The parameters of a statement on the counters of records: keys, and the record of each with its
/// owner.
fn owned_keys<'a>(
    commands: &[BatchCommand<'a>],
    keys: impl Fn(&'a QueuedCommand) -> Option<LimitKeys>,
) -> Vec<BoxedParameter<'a>> {
    let mut columns: [Vec<Option<Digest>>; 3] = Default::default();
    for (_, command) in commands {
        for key in keys(command).iter().flat_map(LimitKeys::iter) {
            let values =
                [Some(Digest(*key.as_bytes())), Some(command.digest), command.owner_after()];
            columns.iter_mut().zip(values).for_each(|(column, value)| column.push(value));
        }
    }
    columns.into_iter().map(|column| -> BoxedParameter<'a> { Box::new(column) }).collect()
}

/// Writes the counters and commits. Claims that were left out get the reason.
async fn commit(
    session: &Session,
    commands: &[BatchCommand<'_>],
    outcomes: &mut [StatementOutcome],
    decision: &BatchDecision,
) -> Result<(), StatementFailure> {
    let blocked: Vec<(usize, &Claim)> = commands
        .iter()
        .filter(|(at, _)| matches!(outcomes.get(*at), Some(StatementOutcome::Blocked)))
        .filter_map(|(at, command)| Some((*at, command.claim()?)))
        .collect();
    let mut statements: Vec<PendingQuery<'_>> = Vec::new();
    if !blocked.is_empty() {
        let keys = blocked.iter().flat_map(|(_, claim)| claim.limits.iter());
        let keys: Vec<Digest> = keys.map(|limit| Digest(*limit.key.as_bytes())).collect();
        let read = session.query(StatementKind::ReadCounters, vec![Box::new(keys)]);
        statements.push(Box::pin(read));
    }
    let changed = write_parameters(&decision.counters, decision.now);
    if let Some(parameters) = changed {
        statements.push(Box::pin(session.query(StatementKind::WriteCounters, parameters)));
    }
    statements.push(if session.dedicated {
        Box::pin(session.query(StatementKind::Commit, Vec::new()))
    } else {
        Box::pin(session.execute("COMMIT"))
    });
    let results = pipeline(statements, false).await?;
    if blocked.is_empty() {
        return Ok(());
    }
    let read = results.first().map(|rows| BatchDecision::new(rows));
    for (at, claim) in blocked {
        let refusal = read.as_ref().and_then(|read| read.refusal(claim));
        // Without a refusal, a unit has become free, or it is the operation's own.
        let undecided = || {
            let hint = LimitHint { is_locking: true, ..LimitHint::default() };
            StatementOutcome::NextWith(StatementStage::First, Box::new(hint))
        };
        set(outcomes, at, refusal.map_or_else(undecided, StatementOutcome::claimed));
    }
    Ok(())
}

/// The parameters that write the changed counters, if there are any.
fn write_parameters(counters: &CounterSet, now: StoreTime) -> Option<Vec<BoxedParameter<'static>>> {
    let number = |time: StoreTime| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
    let (mut keys, mut full, mut expiry, mut bytes) = (vec![], vec![], vec![], vec![]);
    for (key, counter) in counters.changed() {
        keys.push(Digest(*key.as_bytes()));
        full.push(counter.full_until(now).map_or(0, number));
        expiry.push(number(counter.expires_at()));
        bytes.push(counter.encode());
    }
    let is_changed = !keys.is_empty();
    is_changed.then(|| -> Vec<BoxedParameter<'static>> {
        vec![Box::new(keys), Box::new(full), Box::new(expiry), Box::new(bytes)]
    })
}

/// What the rule decides about the commands of a transaction, under its locks.
struct BatchDecision {
    counters: CounterSet,
    /// The counters that exist, unused ones included.
    locked: Vec<LimitKey>,
    /// The counters that cannot be read.
    damaged: Vec<LimitKey>,
    now: StoreTime,
    /// When the records whose executions ended were claimed.
    ended: BTreeMap<Digest, StoreTime>,
}

impl BatchDecision {
    /// Reads the rows of counters.
    fn new(rows: &[Row]) -> Self {
        let (mut counters, mut locked) = (CounterSet::default(), Vec::new());
        let (mut damaged, mut now) = (Vec::new(), StoreTime::default());
        for row in rows {
            let (Ok(Digest(key)), Ok(TimestampMillis(at))) = (row.try_get(0), row.try_get(2))
            else {
                continue;
            };
            let key = LimitKey::from_bytes(key);
            now = at;
            locked.push(key);
            match row.try_get::<_, &[u8]>(1).map(LimitCounter::decode) {
                Ok(Ok(counter)) => counters.load(key, counter),
                // Added by this transaction.
                Ok(Err(_)) if row.try_get(1).is_ok_and(<[u8]>::is_empty) => {}
                Ok(Err(_)) | Err(_) => damaged.push(key),
            }
        }
        Self { counters, locked, damaged, now, ended: BTreeMap::new() }
    }

    /// Notes when the records were claimed that a statement has ended.
    fn note_ends(&mut self, group: &StatementGroup<'_>, rows: &[Row]) {
        if matches!(group.kind, StatementKind::CompleteLimited | StatementKind::ReleaseLimited) {
            for row in rows {
                if let (Ok(digest), Ok(TimestampMillis(claimed_at))) =
                    (row::digest(row), column(row, 2, "claimed_at"))
                {
                    self.ended.insert(digest, claimed_at);
                }
            }
        }
    }

    /// Settles what ended and admits what was granted. Returns the positions of claims that must
    /// not be committed.
    fn decide(
        &mut self,
        commands: &[BatchCommand<'_>],
        outcomes: &mut [StatementOutcome],
    ) -> Vec<usize> {
        let mut refused = Vec::new();
        for (at, command) in commands {
            let Some(outcome) = outcomes.get_mut(*at) else { continue };
            let operation = OperationId::from_bytes(command.digest.0);
            if let Some(settlement) = self.settlement(command, outcome) {
                settlement.apply(operation, &mut self.counters, self.now);
            }
            let Some(claim) = command.claim().filter(|claim| !claim.limits.is_empty()) else {
                continue;
            };
            let StatementOutcome::Reply(Ok(CommandReply::Claimed(Claimed::Granted(grant)))) =
                outcome
            else {
                continue;
            };
            if command.stage == StatementStage::Reclaim {
                continue;
            }
            if claim.limits.iter().any(|limit| self.damaged.contains(&limit.key)) {
                *outcome = StatementOutcome::Reply(Err(corrupt("a counter of a limit")));
                refused.push(*at);
                continue;
            }
            if !claim.limits.iter().all(|limit| self.locked.contains(&limit.key)) {
                // A sweep has deleted an expired counter before it was locked.
                *outcome = StatementOutcome::Next(StatementStage::First);
                refused.push(*at);
                continue;
            }
            match admit(&claim.limits, operation, &mut self.counters, self.now) {
                Ok(exceeded) => grant.exceeded = exceeded,
                Err(refusal) => {
                    *outcome = StatementOutcome::claimed(Occupied::Limited(refusal));
                    refused.push(*at);
                }
            }
        }
        refused
    }

    /// What a command has settled, by its outcome.
    fn settlement(
        &self,
        command: &QueuedCommand,
        outcome: &StatementOutcome,
    ) -> Option<Settlement> {
        let StatementOutcome::Reply(Ok(reply)) = outcome else { return None };
        match (&command.command, reply) {
            (RecordCommand::Finish(_, finish), CommandReply::Fenced(Fenced::Applied)) => {
                let claimed_at = *self.ended.get(&command.digest)?;
                let kept = match &finish.action {
                    RecordAction::Complete(answer) => Some(answer),
                    RecordAction::Release(_) | RecordAction::Hold | RecordAction::Forget => None,
                };
                Some(Settlement::ended(command.limit_keys(), claimed_at, kept, Some(finish)))
            }
            (RecordCommand::Claim(_), CommandReply::Claimed(claimed)) => {
                let hint = command.hint.as_ref()?;
                let failed = Answer::failed();
                let kept = match (command.stage, claimed) {
                    (StatementStage::TakeOver, Claimed::Granted(_)) => None,
                    (StatementStage::Settle, Claimed::Occupied(Occupied::Completed { .. })) => {
                        Some(&failed)
                    }
                    _ => return None,
                };
                Some(Settlement::ended(hint.reserved.clone(), hint.claimed_at, kept, None))
            }
            _ => None,
        }
    }

    /// The refusal of a claim by these counters.
    fn refusal(&self, claim: &Claim) -> Option<Occupied> {
        let operation = OperationId::from_bytes(Digest::with_key(&claim.id).0);
        let mut counters = self.counters.clone();
        admit(&claim.limits, operation, &mut counters, self.now).err().map(Occupied::Limited)
    }
}

// === ends without an owner ===

/// An execution that a reaper or an operator has ended in the present transaction.
pub(crate) struct EndedRecord {
    digest: Digest,
    settlement: Settlement,
}

impl EndedRecord {
    /// Reads a row with the digest, the reservations and the time of the claim, from column 2 on;
    /// `None` if the record has no reservation.
    pub(crate) fn read(row: &Row, kept: Option<&Answer>) -> Option<Self> {
        let keys = LimitKeys::from_bytes(row.try_get::<_, Option<&[u8]>>(2).ok()??)?;
        let TimestampMillis(claimed_at) = column(row, 3, "claimed_at").ok()?;
        let settlement = Settlement::ended(keys, claimed_at, kept, None);
        Some(Self { digest: row::digest(row).ok()?, settlement })
    }
}

/// Settles the reservations of records that this transaction has ended.
pub(crate) async fn settle(session: &Session, ended: &[EndedRecord]) -> Result<(), Error> {
    let keys = LimitKeys::new(ended.iter().flat_map(|ended| ended.settlement.keys()));
    if keys.is_empty() {
        return Ok(());
    }
    let keys: Vec<Digest> = keys.iter().map(|key| Digest(*key.as_bytes())).collect();
    let rows = session.query(StatementKind::LockKeys, vec![Box::new(keys)]).await?;
    // A counter that cannot be read settles nothing: the next claim reports it.
    let BatchDecision { mut counters, now, .. } = BatchDecision::new(&rows);
    for EndedRecord { digest, settlement } in ended {
        settlement.apply(OperationId::from_bytes(digest.0), &mut counters, now);
    }
    if let Some(parameters) = write_parameters(&counters, now) {
        session.query(StatementKind::WriteCounters, parameters).await?;
    }
    Ok(())
}
