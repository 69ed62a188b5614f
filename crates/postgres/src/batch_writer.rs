//! A writer: one connection, and the loop that sends batches of commands on it.
//!
//! A writer takes all commands that queued up while its last batch was in flight, sends them as one
//! transaction, and replies after the commit. It adds no delay to collect more: commands collect
//! during the commit before.

use std::{sync::Arc, time::Duration};

use semel_core::{StoreError, StoreErrorKind};
use tokio::time::{Instant, sleep_until, timeout};
use tracing::debug;

use crate::{
    batch,
    command::{BadConnections, CommandReply, QueuedCommand, StatementOutcome, StatementStage},
    digest::Digest,
    error::{ErrorClass, StatementFailure, describe, store_error},
    session::Session,
    shared::SharedState,
    single::{self, SingleCommand},
    statements::REPLY_TIMEOUT,
};

/// How often one command is sent again after a deadlock or a serialization failure.
const RETRIES_MAX: u32 = 5;

const BACKOFF_MIN: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_secs(2);

/// How often a backoff checks whether the store closes.
const CLOSE_CHECK_INTERVAL: Duration = Duration::from_millis(100);

pub(crate) struct BatchWriter {
    number: usize,
    shared: Arc<SharedState>,
    session: Option<Session>,
    /// The pause after a short-lived connection. It doubles each time, until a connection lasts.
    backoff: Duration,
}

impl BatchWriter {
    /// Creates a writer, which may already have its connection.
    pub(crate) fn new(number: usize, shared: Arc<SharedState>, session: Option<Session>) -> Self {
        if session.is_some() {
            shared.connected();
        }
        Self { number, shared, session, backoff: BACKOFF_MIN }
    }

    /// Serves the queue until it is closed and empty.
    pub(crate) async fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        while shared.queue.wait(self.number).await {
            if !self.session.as_ref().is_some_and(|session| shared.is_usable(session)) {
                // Other writers may have a connection.
                shared.queue.wake_idle();
            }
            let Some(session) = self.connect().await else { return };
            let commands = shared.queue.take(self.number);
            if commands.is_empty() || send_or_requeue(&shared, &session, commands).await {
                self.session = Some(session);
                continue;
            }
            shared.disconnected();
            let lifetime = session.opened.elapsed();
            drop(session);
            if lifetime > BACKOFF_MAX {
                self.backoff = BACKOFF_MIN;
            } else {
                // Other writers may have a usable connection.
                shared.queue.wake_idle();
                back_off(&shared, &mut self.backoff).await;
            }
        }
    }

    /// Returns the connection, and retries without limit if there is none; `None` if the store is
    /// closed meanwhile.
    async fn connect(&mut self) -> Option<Session> {
        if let Some(session) = self.session.take() {
            if self.shared.is_usable(&session) {
                return Some(session);
            }
            self.shared.disconnected();
        }
        let mut backoff = BACKOFF_MIN;
        loop {
            match self.shared.open(|_| {}).await {
                Ok(session) => {
                    self.shared.connected();
                    return Some(session);
                }
                Err(error) => {
                    debug!(writer = self.number, %error, "cannot connect to the database");
                    self.shared.set_last_error(&error);
                    if self.shared.queue.is_closed() {
                        return None;
                    }
                    back_off(&self.shared, &mut backoff).await;
                }
            }
        }
    }
}

/// Sleeps for the backoff and doubles it. Returns early when the store closes.
async fn back_off(shared: &SharedState, backoff: &mut Duration) {
    let end = Instant::now() + *backoff + jitter(*backoff);
    *backoff = (*backoff * 2).min(BACKOFF_MAX);
    while Instant::now() < end && !shared.queue.is_closed() {
        sleep_until(end.min(Instant::now() + CLOSE_CHECK_INTERVAL)).await;
    }
}

/// Up to the backoff again, so that the gateways of a fleet do not reconnect all at once.
fn jitter(backoff: Duration) -> Duration {
    let mut byte = [0];
    let _ = getrandom::fill(&mut byte);
    let [byte] = byte;
    backoff * u32::from(byte) / 256
}

/// Why a batch has no outcomes.
enum BatchError {
    /// The server rejected the batch, which had no effect. A retry may succeed if `retryable`.
    Rejected { error: StoreError, retryable: bool },
    /// The batch had no effect, and nothing will have any on this connection.
    ConnectionUnusable(StoreError),
    /// The effect is unknown; the connection is gone.
    ConnectionLost(String),
    /// It was committed, but a standby may lack it.
    NotReplicated,
}

impl From<StatementFailure> for BatchError {
    fn from(failure: StatementFailure) -> Self {
        let error = failure.error;
        debug!(error = describe(&error), "a batch failed");
        match failure.class {
            ErrorClass::Rejected => Self::Rejected { error: store_error(error), retryable: false },
            ErrorClass::Retryable => Self::Rejected { error: store_error(error), retryable: true },
            ErrorClass::ConnectionUnusable => Self::ConnectionUnusable(store_error(error)),
            ErrorClass::ConnectionLost => Self::ConnectionLost(describe(&error)),
        }
    }
}

impl BatchError {
    /// The error that the caller of a command gets.
    fn to_store_error(&self, writes: bool) -> StoreError {
        let message = match self {
            Self::Rejected { error, .. } | Self::ConnectionUnusable(error) => {
                return StoreError::new(error.kind(), error.to_string());
            }
            Self::ConnectionLost(why) => format!("the connection to the database was lost: {why}"),
            Self::NotReplicated => {
                "the database committed, but did not wait for its standby".to_owned()
            }
        };
        let error = StoreError::new(StoreErrorKind::Unavailable, message);
        if writes { error.effect_unknown() } else { error }
    }

    /// Whether the connection is still usable.
    const fn keeps_connection(&self) -> bool {
        matches!(self, Self::Rejected { .. } | Self::NotReplicated)
    }
}

/// Awaits a reply within the timeout. A commit that the server did not replicate is an error.
async fn with_reply_timeout<T>(
    session: &Session,
    sending: impl Future<Output = Result<T, StatementFailure>>,
) -> Result<T, BatchError> {
    let unsynced_before = session.unsynced_commits();
    let timed_out =
        |_| BatchError::ConnectionLost(format!("no answer within {} s", REPLY_TIMEOUT.as_secs()));
    let reply = timeout(REPLY_TIMEOUT, sending).await.map_err(timed_out)??;
    if session.unsynced_commits() == unsynced_before {
        Ok(reply)
    } else {
        Err(BatchError::NotReplicated)
    }
}

async fn send_batch(
    session: &Session,
    commands: &[QueuedCommand],
) -> Result<Vec<StatementOutcome>, BatchError> {
    with_reply_timeout(session, batch::send(session, commands)).await
}

/// Sends a single command: returns its reply, unless it needs another statement, and whether the
/// connection is still usable.
pub(crate) async fn send_single(
    session: &Session,
    digest: Digest,
    command: SingleCommand<'_>,
) -> (Option<Result<CommandReply, StoreError>>, bool) {
    match with_reply_timeout(session, single::send(session, digest, command)).await {
        Ok(reply) => (reply, true),
        Err(BatchError::Rejected { retryable: true, .. }) => (None, true),
        Err(BatchError::ConnectionUnusable(_)) => (None, false),
        Err(error) => (Some(Err(error.to_store_error(true))), error.keeps_connection()),
    }
}

/// Sends a batch and replies; commands that need another statement go back to the queue. Returns
/// whether the connection is still usable.
pub(crate) async fn send_or_requeue(
    shared: &SharedState,
    session: &Session,
    commands: Vec<QueuedCommand>,
) -> bool {
    match send_batch(session, &commands).await {
        Ok(outcomes) => {
            reply_or_requeue(shared, commands, outcomes);
            true
        }
        // One command that the server rejects must not fail the others.
        Err(BatchError::Rejected { .. }) if commands.len() > 1 => {
            Box::pin(send_one_by_one(shared, session, commands)).await
        }
        Err(BatchError::Rejected { retryable: true, .. }) => {
            Box::pin(send_one_by_one(shared, session, commands)).await
        }
        Err(error) => fail_batch(shared, session, commands, &error),
    }
}

/// Sends commands one by one, each in a transaction of its own.
async fn send_one_by_one(
    shared: &SharedState,
    session: &Session,
    commands: Vec<QueuedCommand>,
) -> bool {
    let mut unsent = commands.into_iter();
    while let Some(command) = unsent.next() {
        let command = vec![command];
        let mut retries = 0;
        let sent = loop {
            match send_batch(session, &command).await {
                Err(BatchError::Rejected { retryable: true, .. }) if retries < RETRIES_MAX => {
                    retries += 1;
                }
                sent => break sent,
            }
        };
        match sent {
            Ok(outcomes) => reply_or_requeue(shared, command, outcomes),
            Err(error) => {
                if !fail_batch(shared, session, command, &error) {
                    requeue(shared, unsent.collect());
                    return false;
                }
            }
        }
    }
    true
}

/// Replies with the error, or requeues commands that may use another connection. Returns whether
/// this connection is still usable.
fn fail_batch(
    shared: &SharedState,
    session: &Session,
    commands: Vec<QueuedCommand>,
    error: &BatchError,
) -> bool {
    if !error.keeps_connection() {
        shared.set_last_error(&error.to_store_error(false));
    }
    let is_final = !matches!(error, BatchError::ConnectionUnusable(_)) || shared.queue.is_closed();
    let mut retried = Vec::new();
    for mut command in commands {
        let met = BadConnections::after(command.bad_connections, session.opened);
        if is_final || met.is_limit_reached() {
            let error = error.to_store_error(command.writes());
            command.reply(Err(error));
        } else {
            command.bad_connections = Some(met);
            retried.push(command);
        }
    }
    requeue(shared, retried);
    error.keeps_connection()
}

/// Puts commands back into the queue, for another connection.
fn requeue(shared: &SharedState, commands: Vec<QueuedCommand>) {
    let with_stage = |command: QueuedCommand| {
        let stage = command.stage;
        (command, stage)
    };
    shared.queue.requeue(commands.into_iter().map(with_stage).collect());
}

/// Replies to commands that are done, and requeues the others.
fn reply_or_requeue(
    shared: &SharedState,
    commands: Vec<QueuedCommand>,
    outcomes: Vec<StatementOutcome>,
) {
    let mut unfinished = Vec::new();
    for (mut command, outcome) in commands.into_iter().zip(outcomes) {
        match outcome {
            StatementOutcome::Reply(reply) => command.reply(reply),
            StatementOutcome::Next(stage) => unfinished.push((command, stage)),
            StatementOutcome::NextWith(stage, hint) => {
                command.hint = Some(hint);
                unfinished.push((command, stage));
            }
            StatementOutcome::Blocked => unfinished.push((command, StatementStage::First)),
        }
    }
    shared.queue.requeue(unfinished);
}
