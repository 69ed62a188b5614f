//! A batch of commands: the statements that it sends, and the outcomes that their rows mean.
//!
//! [`semel_core::rules`] decides what a record that was read means. The statement decides whether
//! to change a record, under the lock of the row. If the record has changed since it was read, the
//! statement does nothing, and the command starts again.

pub(crate) mod limits;

use std::{
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll},
};

use semel_core::{
    Answer, Claim, Claimant, Claimed, Fenced, Finish, Grant, Record, RecordAction, State,
    StoreError, StoreTime,
    rules::{self, Change},
};
use tokio_postgres::{Error, Row, types::ToSql};

use crate::{
    command::{
        CommandReply, LimitHint, QueuedCommand, RecordCommand, StatementOutcome, StatementStage,
    },
    digest::Digest,
    error::{ErrorClass, StatementFailure},
    row::{self, fence_number, milliseconds, on_unknown_text, rounded_retention},
    session::{BEGIN_POOLED, BoxedParameter, Session},
    single,
    statements::StatementKind,
};

/// Sends a batch and returns the outcome of each command. A batch of one tries the single statement
/// first.
///
/// One statement commits by itself, in one round trip. Several are pipelined as one transaction.
/// Writes through a pooler need a transaction as well, because only there can they set a lock
/// timeout.
pub(crate) async fn send(
    session: &Session,
    commands: &[QueuedCommand],
) -> Result<Vec<StatementOutcome>, StatementFailure> {
    if commands.iter().any(|command| !command.limit_keys().is_empty()) {
        return Box::pin(limits::send(session, commands)).await;
    }
    if let [command] = commands
        && let Some(single) = command.as_single()
        && let Some(reply) = single::send(session, command.digest, single).await?
    {
        return Ok(vec![StatementOutcome::Reply(reply)]);
    }
    // Boxed, so that the future of a single command stays small: it is moved a few times.
    Box::pin(send_all(session, commands)).await
}

async fn send_all(
    session: &Session,
    commands: &[QueuedCommand],
) -> Result<Vec<StatementOutcome>, StatementFailure> {
    let groups = group_by_statement(commands.iter().enumerate(), false);
    let kinds = groups.iter().map(|group| group.kind);
    for kind in kinds.chain([StatementKind::Begin, StatementKind::Commit]) {
        session.prepare(kind).await?;
    }
    let statements = groups.iter().map(|group| -> PendingQuery<'_> {
        Box::pin(session.query(group.kind, group.parameters()))
    });
    let is_single =
        groups.len() == 1 && (session.dedicated || !commands.iter().any(QueuedCommand::writes));
    let results = if is_single {
        pipeline(statements.collect(), true).await?
    } else {
        transaction(session, statements).await?
    };
    let mut outcomes: Vec<StatementOutcome> =
        commands.iter().map(QueuedCommand::outcome_without_row).collect();
    for (group, rows) in groups.iter().zip(&results) {
        group.read(rows, &mut outcomes);
    }
    Ok(outcomes)
}

async fn transaction<'a>(
    session: &'a Session,
    statements: impl Iterator<Item = PendingQuery<'a>>,
) -> Result<Vec<Vec<Row>>, StatementFailure> {
    let mut all: Vec<PendingQuery<'a>> = Vec::new();
    if session.dedicated {
        all.push(Box::pin(session.query(StatementKind::Begin, Vec::new())));
        all.extend(statements);
        all.push(Box::pin(session.query(StatementKind::Commit, Vec::new())));
    } else {
        all.push(Box::pin(session.execute(BEGIN_POOLED)));
        all.extend(statements);
        all.push(Box::pin(session.execute("COMMIT")));
    }
    let mut results = pipeline(all, true).await?;
    results.remove(0);
    Ok(results)
}

// === pipelining ===

pub(crate) type PendingQuery<'a> =
    Pin<Box<dyn Future<Output = Result<Vec<Row>, Error>> + Send + 'a>>;

/// Sends all statements at once and awaits all of them. The first error is the cause of the later
/// ones. Of several, the first begins a transaction if `begins`.
pub(crate) async fn pipeline(
    mut sending: Vec<PendingQuery<'_>>,
    begins: bool,
) -> Result<Vec<Vec<Row>>, StatementFailure> {
    let mut results: Vec<Option<Result<Vec<Row>, Error>>> = Vec::new();
    results.resize_with(sending.len(), || None);
    poll_fn(|context| poll_all(&mut sending, &mut results, context)).await;
    let mut rows = Vec::with_capacity(results.len());
    for (at, result) in results.into_iter().flatten().enumerate() {
        match result {
            Ok(result) => rows.push(result),
            // If only BEGIN failed, the rest ran outside of a transaction.
            Err(error) if at == 0 && begins && sending.len() > 1 => {
                return Err(StatementFailure { error, class: ErrorClass::ConnectionLost });
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(rows)
}

fn poll_all(
    sending: &mut [PendingQuery<'_>],
    results: &mut [Option<Result<Vec<Row>, Error>>],
    context: &mut Context<'_>,
) -> Poll<()> {
    let mut waiting = false;
    for (sending, result) in sending.iter_mut().zip(results) {
        if result.is_none() {
            match sending.as_mut().poll(context) {
                Poll::Ready(reply) => *result = Some(reply),
                Poll::Pending => waiting = true,
            }
        }
    }
    if waiting { Poll::Pending } else { Poll::Ready(()) }
}

// === commands by statement ===

/// The statements that are sent in batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BatchStatement {
    Claim,
    Reclaim,
    TakeOver,
    Settle,
    Complete,
    Renew,
    Release,
    Hold,
    Check,
    Watch,
    Get,
}

impl BatchStatement {
    const fn kind(self) -> StatementKind {
        match self {
            Self::Claim => StatementKind::Claim,
            Self::Reclaim => StatementKind::Reclaim,
            Self::TakeOver => StatementKind::TakeOver,
            Self::Settle => StatementKind::Settle,
            Self::Complete => StatementKind::Complete,
            Self::Renew => StatementKind::Renew,
            Self::Release => StatementKind::Release,
            Self::Hold => StatementKind::Hold,
            Self::Check => StatementKind::Check,
            Self::Watch => StatementKind::Watch,
            Self::Get => StatementKind::Get,
        }
    }

    const fn limited_kind(self) -> StatementKind {
        match self {
            Self::Claim => StatementKind::ClaimLimited,
            Self::TakeOver => StatementKind::TakeOverLimited,
            Self::Settle => StatementKind::SettleLimited,
            Self::Complete => StatementKind::CompleteLimited,
            Self::Release => StatementKind::ReleaseLimited,
            Self::Reclaim | Self::Renew | Self::Hold | Self::Check | Self::Watch | Self::Get => {
                self.kind()
            }
        }
    }
}

/// The commands of one statement, in the order of their digests, each with its index in the batch.
pub(crate) struct StatementGroup<'a> {
    statement: BatchStatement,
    /// The statement as it is sent: a batch with velocity limits has its own editions.
    pub(crate) kind: StatementKind,
    commands: Vec<(usize, &'a QueuedCommand)>,
}

/// Groups commands by statement, in the order in which a transaction sends them.
pub(crate) fn group_by_statement<'a>(
    commands: impl Iterator<Item = (usize, &'a QueuedCommand)>,
    is_limited: bool,
) -> Vec<StatementGroup<'a>> {
    let mut groups: Vec<StatementGroup<'_>> = Vec::new();
    for (at, command) in commands {
        let statement = command.statement();
        match groups.iter_mut().find(|group| group.statement == statement) {
            Some(group) => group.commands.push((at, command)),
            None => {
                let kind = if is_limited { statement.limited_kind() } else { statement.kind() };
                groups.push(StatementGroup { statement, kind, commands: vec![(at, command)] });
            }
        }
    }
    groups.sort_by_key(|group| group.kind);
    groups
}

impl<'a> StatementGroup<'a> {
    /// A column of parameters.
    fn all<T: ToSql + Sync + Send + 'a>(
        &self,
        of: impl Fn(&'a QueuedCommand) -> T,
    ) -> BoxedParameter<'a> {
        self.column(self.commands.iter().map(|(_, command)| of(command)))
    }

    /// A column of parameters of the claims.
    fn claims<T: ToSql + Sync + Send + 'a>(
        &self,
        of: impl Fn(&'a Claim) -> T,
    ) -> BoxedParameter<'a> {
        let claims = self.commands.iter().filter_map(|(_, command)| command.claim());
        self.column(claims.map(of))
    }

    fn column<T: ToSql + Sync + Send + 'a>(
        &self,
        values: impl Iterator<Item = T>,
    ) -> BoxedParameter<'a> {
        Box::new(values.collect::<Vec<T>>())
    }

    pub(crate) fn parameters(&self) -> Vec<BoxedParameter<'a>> {
        let mut parameters = self.common_parameters();
        if self.kind != self.statement.kind() {
            parameters.extend(self.limit_parameters());
        }
        parameters
    }

    /// The last parameters of the editions for limits.
    fn limit_parameters(&self) -> Vec<BoxedParameter<'a>> {
        let reserved = || self.claims(|claim| claim.limits.keys().to_bytes());
        match self.statement {
            BatchStatement::Claim => {
                let [digests, keys] = self.refusing_limits();
                vec![reserved(), Box::new(digests), Box::new(keys)]
            }
            BatchStatement::TakeOver => vec![reserved(), self.all(QueuedCommand::found_limits)],
            BatchStatement::Settle | BatchStatement::Complete | BatchStatement::Release => {
                vec![self.all(QueuedCommand::found_limits)]
            }
            BatchStatement::Reclaim
            | BatchStatement::Renew
            | BatchStatement::Hold
            | BatchStatement::Check
            | BatchStatement::Watch
            | BatchStatement::Get => Vec::new(),
        }
    }

    /// The counters that keep a claim from being granted if they are full, each with its record.
    fn refusing_limits(&self) -> [Vec<Digest>; 2] {
        let mut pairs: [Vec<Digest>; 2] = Default::default();
        for (_, command) in &self.commands {
            let is_locking = command.hint.as_ref().is_some_and(|hint| hint.is_locking);
            let Some(claim) = command.claim().filter(|_| !is_locking) else { continue };
            for limit in claim.limits.iter().filter(|limit| limit.refuses) {
                let pair = [command.digest, Digest(*limit.key.as_bytes())];
                pairs.iter_mut().zip(pair).for_each(|(column, value)| column.push(value));
            }
        }
        pairs
    }

    fn common_parameters(&self) -> Vec<BoxedParameter<'a>> {
        let digests = self.all(|command| command.digest);
        let fingerprints = || self.claims(|claim| claim.fingerprint.as_bytes().as_slice());
        let owners = || self.claims(|claim| Digest::from(&claim.owner));
        let leases = || self.claims(|claim| milliseconds(claim.lease));
        let fences = || self.all(QueuedCommand::fence);
        let claimants = || self.all(QueuedCommand::owner);
        let reasons = || self.all(QueuedCommand::reason);
        match self.statement {
            BatchStatement::Claim => {
                let mut parameters = vec![
                    digests,
                    self.claims(|claim| claim.id.scope.as_str()),
                    self.claims(|claim| claim.id.caller.as_str()),
                    self.claims(|claim| claim.id.key.as_str()),
                    fingerprints(),
                    owners(),
                    leases(),
                ];
                parameters.extend(self.details());
                parameters
            }
            BatchStatement::Reclaim => vec![digests, fingerprints(), owners(), leases()],
            BatchStatement::TakeOver => {
                let mut parameters = vec![digests, fingerprints(), owners(), leases()];
                parameters.extend(self.details());
                parameters
            }
            BatchStatement::Settle => {
                let failed = Box::new(Answer::failed().as_bytes().to_vec());
                vec![failed, digests, fingerprints(), owners()]
            }
            BatchStatement::Complete => {
                let answers = self.all(QueuedCommand::answer_bytes);
                vec![digests, fences(), claimants(), answers, reasons()]
            }
            BatchStatement::Renew => {
                vec![digests, fences(), claimants(), self.all(QueuedCommand::lease)]
            }
            BatchStatement::Release => {
                let kinds = self.all(QueuedCommand::release_text);
                vec![digests, fences(), claimants(), kinds, reasons()]
            }
            BatchStatement::Hold => vec![digests, fences(), claimants(), reasons()],
            BatchStatement::Check | BatchStatement::Watch | BatchStatement::Get => vec![digests],
        }
    }

    /// The policy and the metadata of a claim.
    fn details(&self) -> [BoxedParameter<'a>; 6] {
        [
            self.claims(|claim| rounded_retention(claim.retention)),
            self.claims(|claim| on_unknown_text(claim.on_unknown)),
            self.claims(|claim| claim.hold_for.map(milliseconds)),
            self.claims(|claim| claim.about.as_str()),
            self.claims(|claim| claim.node.as_str()),
            self.claims(|claim| claim.captured.as_str()),
        ]
    }

    /// Assigns the rows to the commands by their digests.
    pub(crate) fn read(&self, rows: &[Row], outcomes: &mut [StatementOutcome]) {
        for row in rows {
            let Ok(digest) = row::digest(row) else { continue };
            let found = self.commands.binary_search_by_key(&digest, |(_, command)| command.digest);
            let Some((at, command)) = found.ok().and_then(|at| self.commands.get(at)) else {
                continue;
            };
            if let Some(outcome) = outcomes.get_mut(*at) {
                *outcome = command.read(self.statement, row);
            }
        }
    }
}

impl QueuedCommand {
    /// The statement that the command needs now.
    const fn statement(&self) -> BatchStatement {
        match (self.stage, &self.command) {
            (StatementStage::Reclaim, _) => BatchStatement::Reclaim,
            (StatementStage::TakeOver, _) => BatchStatement::TakeOver,
            (StatementStage::Settle, _) => BatchStatement::Settle,
            (StatementStage::Check, _) => BatchStatement::Check,
            (StatementStage::Single | StatementStage::First, RecordCommand::Claim(_)) => {
                BatchStatement::Claim
            }
            (StatementStage::Single | StatementStage::First, RecordCommand::Renew(..)) => {
                BatchStatement::Renew
            }
            (StatementStage::Single | StatementStage::First, RecordCommand::Finish(_, finish)) => {
                match finish.action {
                    RecordAction::Complete(_) => BatchStatement::Complete,
                    RecordAction::Release(_) | RecordAction::Forget => BatchStatement::Release,
                    RecordAction::Hold => BatchStatement::Hold,
                }
            }
            (StatementStage::Single | StatementStage::First, RecordCommand::Get) => {
                BatchStatement::Get
            }
            (StatementStage::Single | StatementStage::First, RecordCommand::Watch) => {
                BatchStatement::Watch
            }
        }
    }

    pub(crate) fn claim(&self) -> Option<&Claim> {
        if let RecordCommand::Claim(claim) = &self.command { Some(claim) } else { None }
    }

    /// The reservations of the record as the statement expects them.
    fn found_limits(&self) -> Option<Vec<u8>> {
        if self.finish().is_some() {
            return self.limit_keys().to_bytes();
        }
        self.hint.as_ref().and_then(|hint| hint.reserved.to_bytes())
    }

    /// The owner of the record once the command is applied; `None` where that is another one.
    pub(crate) fn owner_after(&self) -> Option<Digest> {
        match self.claim() {
            Some(_) if self.stage == StatementStage::Settle => None,
            Some(claim) => Some(Digest::from(&claim.owner)),
            None => Some(self.owner()),
        }
    }

    fn fence(&self) -> i64 {
        self.claimant().map_or(0, |by| fence_number(by.fence))
    }

    fn owner(&self) -> Digest {
        self.claimant().map_or_else(Digest::default, |by| Digest::from(&by.owner))
    }

    const fn claimant(&self) -> Option<Claimant> {
        match &self.command {
            RecordCommand::Renew(by, _) | RecordCommand::Finish(by, _) => Some(*by),
            RecordCommand::Claim(_) | RecordCommand::Get | RecordCommand::Watch => None,
        }
    }

    fn finish(&self) -> Option<&Finish> {
        if let RecordCommand::Finish(_, finish) = &self.command { Some(finish) } else { None }
    }

    fn reason(&self) -> Option<String> {
        self.finish().and_then(|finish| finish.reason.as_ref()).map(ToString::to_string)
    }

    fn answer_bytes(&self) -> &[u8] {
        match self.finish().map(|finish| &finish.action) {
            Some(RecordAction::Complete(answer)) => answer.as_bytes(),
            _ => &[],
        }
    }

    fn lease(&self) -> i64 {
        if let RecordCommand::Renew(_, lease) = &self.command { milliseconds(*lease) } else { 0 }
    }

    fn release_text(&self) -> &'static str {
        match self.finish().map(|finish| &finish.action) {
            Some(RecordAction::Release(release)) => row::release_text(*release),
            _ => "forget",
        }
    }

    // === outcomes of rows ===

    /// The outcome if the statement returned no row for the command.
    pub(crate) fn outcome_without_row(&self) -> StatementOutcome {
        match (self.stage, &self.command) {
            // The claim lost a race, or the record has changed since it was read.
            (_, RecordCommand::Claim(_)) => StatementOutcome::Next(StatementStage::First),
            (StatementStage::Check, _) => {
                StatementOutcome::Reply(Ok(CommandReply::Fenced(Fenced::Lost)))
            }
            (_, RecordCommand::Get) => StatementOutcome::Reply(Ok(CommandReply::Got(None))),
            (_, RecordCommand::Watch) => StatementOutcome::Reply(Ok(CommandReply::Watched)),
            (_, RecordCommand::Renew(..) | RecordCommand::Finish(..)) => {
                StatementOutcome::Next(StatementStage::Check)
            }
        }
    }

    /// The outcome of a row. If the row cannot be decoded, a write has an unknown effect.
    fn read(&self, statement: BatchStatement, row: &Row) -> StatementOutcome {
        self.outcome_of_row(statement, row).unwrap_or_else(|error| {
            StatementOutcome::Reply(Err(if self.writes() { error.effect_unknown() } else { error }))
        })
    }

    fn outcome_of_row(
        &self,
        statement: BatchStatement,
        row: &Row,
    ) -> Result<StatementOutcome, StoreError> {
        let granted = |fence, attempt| {
            StatementOutcome::Reply(Ok(CommandReply::Claimed(Claimed::Granted(Grant::new(
                fence, attempt,
            )))))
        };
        match statement {
            BatchStatement::Claim => match (self.claim(), row::record(row)?) {
                (Some(claim), Some((record, now))) => Ok(decide_claim(claim, &record, now)),
                _ if row::is_blocked(row)? => Ok(StatementOutcome::Blocked),
                _ => Ok(granted(row::fence(row, 1)?, 1)),
            },
            BatchStatement::Reclaim | BatchStatement::TakeOver => {
                Ok(granted(row::fence(row, 1)?, row::attempt(row, 2)?))
            }
            BatchStatement::Settle => {
                let occupied = row::settled(row)?;
                Ok(StatementOutcome::Reply(Ok(CommandReply::Claimed(Claimed::Occupied(occupied)))))
            }
            BatchStatement::Complete
            | BatchStatement::Renew
            | BatchStatement::Release
            | BatchStatement::Hold => {
                Ok(StatementOutcome::Reply(Ok(CommandReply::Fenced(Fenced::Applied))))
            }
            BatchStatement::Check => Ok(row::record(row)?.map_or_else(
                || self.outcome_without_row(),
                |(record, now)| self.explain_unchanged(&record, now),
            )),
            BatchStatement::Get => {
                let record = row::record(row)?;
                let seen = record.and_then(|(record, now)| rules::view(Some(&record), now));
                Ok(StatementOutcome::Reply(Ok(CommandReply::Got(seen.map(Box::new)))))
            }
            BatchStatement::Watch => Ok(self.outcome_without_row()),
        }
    }

    /// Why a fenced write changed nothing. If the rules would change something now, the record has
    /// changed since, and the command starts again.
    fn explain_unchanged(&self, record: &Record, now: StoreTime) -> StatementOutcome {
        let found = Some(record);
        let (fenced, change) = match &self.command {
            RecordCommand::Renew(by, lease) => rules::renew(found, *by, *lease, now),
            RecordCommand::Finish(by, finish) => rules::finish(found, *by, finish, now),
            RecordCommand::Claim(_) | RecordCommand::Get | RecordCommand::Watch => {
                return self.outcome_without_row();
            }
        };
        match change {
            Change::Keep => StatementOutcome::Reply(Ok(CommandReply::Fenced(fenced))),
            Change::Put(_) | Change::Delete => next(StatementStage::First, record),
        }
    }
}

/// What a claim of an existing record results in: a reply, or the statement that changes the record
/// as the rules decide.
fn decide_claim(claim: &Claim, record: &Record, now: StoreTime) -> StatementOutcome {
    let own = matches!(record.state, State::InFlight { .. }) && record.owner == claim.owner;
    // The statement issues the fence; the rules need any.
    match rules::claim(Some(record), claim, record.fence, now) {
        (claimed, Change::Keep) => StatementOutcome::Reply(Ok(CommandReply::Claimed(claimed))),
        (Claimed::Granted(_), _) if own => StatementOutcome::Next(StatementStage::Reclaim),
        (Claimed::Granted(_), _) => next(StatementStage::TakeOver, record),
        (Claimed::Occupied(_), _) => next(StatementStage::Settle, record),
    }
}

/// Another statement for a record that was read: it has to know of reservations.
fn next(stage: StatementStage, record: &Record) -> StatementOutcome {
    if record.limits.is_empty() {
        return StatementOutcome::Next(stage);
    }
    let (reserved, claimed_at) = (record.limits.clone(), record.claimed_at);
    let hint = LimitHint { reserved, claimed_at, ..LimitHint::default() };
    StatementOutcome::NextWith(stage, Box::new(hint))
}
