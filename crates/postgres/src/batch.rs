//! A batch of questions as statements: what is sent for each, and what the rows say.
//!
//! What a record that was read means is decided by [`semel_core::rules`]. What changes one is
//! decided by the statement, under the lock of the row; where a statement finds the record changed
//! since it was read, it does nothing, and the question begins again.

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
    digest::Digest,
    error::Verdict,
    question::{Ask, Outcome, Question, Step, Told},
    row::{self, milliseconds, number, retained, word},
    session::{BEGIN_POOLED, Parameter, Session},
    single,
    statements::Verb,
};

/// Why nobody in a batch can be answered.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: Error,
    pub(crate) verdict: Verdict,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { verdict: Verdict::of(&error), error }
    }
}

/// Sends a batch and says what becomes of each question. One that is alone is tried the short way
/// first.
///
/// One statement commits by itself, in one round trip. Several go as one transaction, all of it
/// sent before the first answer is there; so does whatever writes through a pooler, where nothing
/// else can say how long a lock is waited for.
pub(crate) async fn send(
    session: &Session,
    questions: &[Question],
) -> Result<Vec<Outcome>, Failure> {
    if let [question] = questions
        && let Some(lone) = question.lone()
        && let Some(told) = single::send(session, question.digest, lone).await?
    {
        return Ok(vec![Outcome::Told(told)]);
    }
    // Apart, so that the future of a question that is alone stays small: it is moved a few times.
    Box::pin(send_all(session, questions)).await
}

async fn send_all(session: &Session, questions: &[Question]) -> Result<Vec<Outcome>, Failure> {
    let groups = grouped(questions);
    for verb in groups.iter().map(|group| group.verb).chain([Verb::Begin, Verb::Commit]) {
        session.prepare(verb).await?;
    }
    let statements = groups
        .iter()
        .map(|group| -> Sending<'_> { Box::pin(session.query(group.verb, group.parameters())) });
    let alone = groups.len() == 1 && (session.named || !questions.iter().any(Question::writes));
    let answers = if alone {
        pipeline(statements.collect()).await?
    } else {
        transaction(session, statements).await?
    };
    let mut outcomes: Vec<Outcome> = questions.iter().map(Question::without_row).collect();
    for (group, rows) in groups.iter().zip(&answers) {
        group.read(rows, &mut outcomes);
    }
    Ok(outcomes)
}

async fn transaction<'a>(
    session: &'a Session,
    statements: impl Iterator<Item = Sending<'a>>,
) -> Result<Vec<Vec<Row>>, Failure> {
    let mut all: Vec<Sending<'a>> = Vec::new();
    if session.named {
        all.push(Box::pin(session.query(Verb::Begin, Vec::new())));
        all.extend(statements);
        all.push(Box::pin(session.query(Verb::Commit, Vec::new())));
    } else {
        all.push(Box::pin(session.run(BEGIN_POOLED)));
        all.extend(statements);
        all.push(Box::pin(session.run("COMMIT")));
    }
    let mut answers = pipeline(all).await?;
    answers.remove(0);
    Ok(answers)
}

// === pipelining ===

type Sending<'a> = Pin<Box<dyn Future<Output = Result<Vec<Row>, Error>> + Send + 'a>>;

/// Sends everything at once and waits for all of it. The first failure is the reason for all that
/// come after it.
async fn pipeline(mut sending: Vec<Sending<'_>>) -> Result<Vec<Vec<Row>>, Failure> {
    let mut answers: Vec<Option<Result<Vec<Row>, Error>>> = Vec::new();
    answers.resize_with(sending.len(), || None);
    poll_fn(|context| poll_all(&mut sending, &mut answers, context)).await;
    let mut rows = Vec::with_capacity(answers.len());
    for (at, answer) in answers.into_iter().flatten().enumerate() {
        match answer {
            Ok(answer) => rows.push(answer),
            // If only the beginning failed, the rest was done without a transaction around it.
            Err(error) if at == 0 && sending.len() > 1 => {
                return Err(Failure { error, verdict: Verdict::Lost });
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(rows)
}

fn poll_all(
    sending: &mut [Sending<'_>],
    answers: &mut [Option<Result<Vec<Row>, Error>>],
    context: &mut Context<'_>,
) -> Poll<()> {
    let mut waiting = false;
    for (sending, answer) in sending.iter_mut().zip(answers) {
        if answer.is_none() {
            match sending.as_mut().poll(context) {
                Poll::Ready(told) => *answer = Some(told),
                Poll::Pending => waiting = true,
            }
        }
    }
    if waiting { Poll::Pending } else { Poll::Ready(()) }
}

// === questions by statement ===

/// The questions of one statement, in the order of their digests, each with its place in the batch.
struct Group<'a> {
    verb: Verb,
    questions: Vec<(usize, &'a Question)>,
}

fn grouped(questions: &[Question]) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for (at, question) in questions.iter().enumerate() {
        let verb = question.verb();
        match groups.iter_mut().find(|group| group.verb == verb) {
            Some(group) => group.questions.push((at, question)),
            None => groups.push(Group { verb, questions: vec![(at, question)] }),
        }
    }
    groups.sort_by_key(|group| group.verb);
    groups
}

impl<'a> Group<'a> {
    /// A column of parameters.
    fn all<T: ToSql + Sync + Send + 'a>(&self, of: impl Fn(&'a Question) -> T) -> Parameter<'a> {
        self.column(self.questions.iter().map(|(_, question)| of(question)))
    }

    /// The same of claims.
    fn claims<T: ToSql + Sync + Send + 'a>(&self, of: impl Fn(&'a Claim) -> T) -> Parameter<'a> {
        let claims = self.questions.iter().filter_map(|(_, question)| question.claim());
        self.column(claims.map(of))
    }

    fn column<T: ToSql + Sync + Send + 'a>(
        &self,
        values: impl Iterator<Item = T>,
    ) -> Parameter<'a> {
        Box::new(values.collect::<Vec<T>>())
    }

    fn parameters(&self) -> Vec<Parameter<'a>> {
        let digests = self.all(|question| question.digest);
        let prints = || self.claims(|claim| claim.fingerprint.as_bytes().as_slice());
        let owners = || self.claims(|claim| Digest::from(&claim.owner));
        let leases = || self.claims(|claim| milliseconds(claim.lease));
        let fences = || self.all(Question::fence);
        let claimants = || self.all(Question::owner);
        let reasons = || self.all(Question::reason);
        match self.verb {
            Verb::Claim => {
                let mut given = vec![
                    digests,
                    self.claims(|claim| claim.id.scope.as_str()),
                    self.claims(|claim| claim.id.caller.as_str()),
                    self.claims(|claim| claim.id.key.as_str()),
                    prints(),
                    owners(),
                    leases(),
                ];
                given.extend(self.details());
                given
            }
            Verb::Again => vec![digests, prints(), owners(), leases()],
            Verb::Take => {
                let mut given = vec![digests, prints(), owners(), leases()];
                given.extend(self.details());
                given
            }
            Verb::Settle => {
                vec![Box::new(Answer::failed().as_bytes().to_vec()), digests, prints(), owners()]
            }
            Verb::Complete => {
                let answers = self.all(Question::answer_bytes);
                vec![digests, fences(), claimants(), answers, reasons()]
            }
            Verb::Renew => vec![digests, fences(), claimants(), self.all(Question::lease)],
            Verb::Release => {
                vec![digests, fences(), claimants(), self.all(Question::release_word), reasons()]
            }
            Verb::Hold => vec![digests, fences(), claimants(), reasons()],
            // Those of single questions and of the office are not sent in batches.
            Verb::Check
            | Verb::Watch
            | Verb::Get
            | Verb::ClaimOne
            | Verb::CompleteOne
            | Verb::Begin
            | Verb::Commit
            | Verb::Resolve
            | Verb::Delete
            | Verb::Raise
            | Verb::RaiseFences
            | Verb::Epoch
            | Verb::Reap
            | Verb::SetAside
            | Verb::Sweep
            | Verb::List
            | Verb::ListOpen
            | Verb::ListClaims
            | Verb::ListReleased
            | Verb::Metadata
            | Verb::SetMetadata
            | Verb::RemoveMetadata => vec![digests],
        }
    }

    /// What a claim brings with it: its policy, and what it is about.
    fn details(&self) -> [Parameter<'a>; 6] {
        [
            self.claims(|claim| retained(claim.retention)),
            self.claims(|claim| word(claim.on_unknown)),
            self.claims(|claim| claim.hold_for.map(milliseconds)),
            self.claims(|claim| claim.about.as_str()),
            self.claims(|claim| claim.node.as_str()),
            self.claims(|claim| claim.captured.as_str()),
        ]
    }

    /// Finds for each row the question that it belongs to.
    fn read(&self, rows: &[Row], outcomes: &mut [Outcome]) {
        for row in rows {
            let Ok(digest) = row::digest(row) else { continue };
            let found = self.questions.binary_search_by_key(&digest, |(_, asked)| asked.digest);
            let Some((at, question)) = found.ok().and_then(|at| self.questions.get(at)) else {
                continue;
            };
            if let Some(outcome) = outcomes.get_mut(*at) {
                *outcome = question.read(self.verb, row);
            }
        }
    }
}

impl Question {
    /// The statement that it needs now.
    const fn verb(&self) -> Verb {
        match (self.step, &self.ask) {
            (Step::Again, _) => Verb::Again,
            (Step::Take, _) => Verb::Take,
            (Step::Settle, _) => Verb::Settle,
            (Step::Check, _) => Verb::Check,
            (Step::Alone | Step::First, Ask::Claim(_)) => Verb::Claim,
            (Step::Alone | Step::First, Ask::Renew(..)) => Verb::Renew,
            (Step::Alone | Step::First, Ask::Finish(_, finish)) => match finish.action {
                RecordAction::Complete(_) => Verb::Complete,
                RecordAction::Release(_) | RecordAction::Forget => Verb::Release,
                RecordAction::Hold => Verb::Hold,
            },
            (Step::Alone | Step::First, Ask::Get) => Verb::Get,
            (Step::Alone | Step::First, Ask::Watch) => Verb::Watch,
        }
    }

    fn claim(&self) -> Option<&Claim> {
        if let Ask::Claim(claim) = &self.ask { Some(claim) } else { None }
    }

    fn fence(&self) -> i64 {
        self.claimant().map_or(0, |by| number(by.fence))
    }

    fn owner(&self) -> Digest {
        self.claimant().map_or_else(Digest::default, |by| Digest::from(&by.owner))
    }

    const fn claimant(&self) -> Option<Claimant> {
        match &self.ask {
            Ask::Renew(by, _) | Ask::Finish(by, _) => Some(*by),
            Ask::Claim(_) | Ask::Get | Ask::Watch => None,
        }
    }

    fn finish(&self) -> Option<&Finish> {
        if let Ask::Finish(_, finish) = &self.ask { Some(finish) } else { None }
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
        if let Ask::Renew(_, lease) = &self.ask { milliseconds(*lease) } else { 0 }
    }

    fn release_word(&self) -> &'static str {
        match self.finish().map(|finish| &finish.action) {
            Some(RecordAction::Release(release)) => row::release_word(*release),
            _ => "forget",
        }
    }

    // === what the rows say ===

    /// What it means that its statement returned no row for it.
    fn without_row(&self) -> Outcome {
        match (self.step, &self.ask) {
            // A claim that lost a race, or found the record changed since it was read.
            (_, Ask::Claim(_)) => Outcome::Next(Step::First),
            (Step::Check, _) => Outcome::Told(Ok(Told::Fenced(Fenced::Lost))),
            (_, Ask::Get) => Outcome::Told(Ok(Told::Got(None))),
            (_, Ask::Watch) => Outcome::Told(Ok(Told::Watched)),
            (_, Ask::Renew(..) | Ask::Finish(..)) => Outcome::Next(Step::Check),
        }
    }

    /// What its row says. One that cannot be read may still have been written.
    fn read(&self, verb: Verb, row: &Row) -> Outcome {
        self.with_row(verb, row).unwrap_or_else(|error| {
            Outcome::Told(Err(if self.writes() { error.effect_unknown() } else { error }))
        })
    }

    fn with_row(&self, verb: Verb, row: &Row) -> Result<Outcome, StoreError> {
        let granted = |fence, attempt| {
            Outcome::Told(Ok(Told::Claimed(Claimed::Granted(Grant::new(fence, attempt)))))
        };
        match verb {
            Verb::Claim => match (self.claim(), row::record(row)?) {
                (Some(claim), Some((record, now))) => Ok(met(claim, &record, now)),
                _ => Ok(granted(row::fence(row, 1)?, 1)),
            },
            Verb::Again | Verb::Take => Ok(granted(row::fence(row, 1)?, row::attempt(row, 2)?)),
            Verb::Settle => {
                let occupied = row::settled(row)?;
                Ok(Outcome::Told(Ok(Told::Claimed(Claimed::Occupied(occupied)))))
            }
            Verb::Complete | Verb::Renew | Verb::Release | Verb::Hold => {
                Ok(Outcome::Told(Ok(Told::Fenced(Fenced::Applied))))
            }
            Verb::Check => Ok(row::record(row)?
                .map_or_else(|| self.without_row(), |(record, now)| self.checked(&record, now))),
            Verb::Get => {
                let record = row::record(row)?;
                let seen = record.and_then(|(record, now)| rules::view(Some(&record), now));
                Ok(Outcome::Told(Ok(Told::Got(seen.map(Box::new)))))
            }
            Verb::Watch
            | Verb::ClaimOne
            | Verb::CompleteOne
            | Verb::Begin
            | Verb::Commit
            | Verb::Resolve
            | Verb::Delete
            | Verb::Raise
            | Verb::RaiseFences
            | Verb::Epoch
            | Verb::Reap
            | Verb::SetAside
            | Verb::Sweep
            | Verb::List
            | Verb::ListOpen
            | Verb::ListClaims
            | Verb::ListReleased
            | Verb::Metadata
            | Verb::SetMetadata
            | Verb::RemoveMetadata => Ok(self.without_row()),
        }
    }

    /// Why a write with a fence changed nothing. Where the rules would change something, the record
    /// is no longer what it was then.
    fn checked(&self, record: &Record, now: StoreTime) -> Outcome {
        let found = Some(record);
        let (fenced, change) = match &self.ask {
            Ask::Renew(by, lease) => rules::renew(found, *by, *lease, now),
            Ask::Finish(by, finish) => rules::finish(found, *by, finish, now),
            Ask::Claim(_) | Ask::Get | Ask::Watch => return self.without_row(),
        };
        match change {
            Change::Keep => Outcome::Told(Ok(Told::Fenced(fenced))),
            Change::Put(_) | Change::Delete => Outcome::Next(Step::First),
        }
    }
}

/// What a claim met: an answer, or the statement that changes the record as the rules want it.
fn met(claim: &Claim, record: &Record, now: StoreTime) -> Outcome {
    let own = matches!(record.state, State::InFlight { .. }) && record.owner == claim.owner;
    // The statement issues the fence; the rules only have to know that there is one.
    match rules::claim(Some(record), claim, record.fence, now) {
        (claimed, Change::Keep) => Outcome::Told(Ok(Told::Claimed(claimed))),
        (Claimed::Granted(_), _) if own => Outcome::Next(Step::Again),
        (Claimed::Granted(_), _) => Outcome::Next(Step::Take),
        (Claimed::Occupied(_), _) => Outcome::Next(Step::Settle),
    }
}
