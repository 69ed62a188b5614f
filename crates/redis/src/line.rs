//! The line to Redis: one connection, one turn after the other, and what to do when it breaks.
//!
//! A turn is one pipeline: the notes that were left, then one `MGET` for all who look. It runs on a
//! thread of its own.

use std::{pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use redis::{
    AsyncConnectionConfig, Client, Pipeline, PushInfo, PushKind, RedisError, Value,
    aio::MultiplexedConnection,
};
use tokio::{
    sync::{Notify, oneshot},
    time::{Instant, sleep, timeout, timeout_at},
};

use crate::{
    Options,
    breaker::{ANSWER_MAX, Breaker, Health},
    core::Core,
    entry::Name,
    known::TRUST,
    post::{Batch, Look, Note},
    wakes::{Message, NAMES_MAX},
};

/// How long it may take to get a connection.
const CONNECT_MAX: Duration = Duration::from_secs(2);

/// After how long without an answer a connection is given up.
const GONE: Duration = Duration::from_secs(1);

/// How often it is looked whether the store was heard of, and how long ago that may be before it is
/// asked. An engine asks more often than that, and is overheard.
const FOLLOW_EVERY: Duration = Duration::from_millis(200);
const FOLLOW_AFTER: Duration = Duration::from_millis(400);

#[derive(Debug)]
pub(crate) struct Line {
    core: Arc<Core>,
    client: Client,
    address: String,
    prefix: Arc<str>,
    channel: String,
}

/// Why Redis is out.
#[derive(Debug, thiserror::Error)]
enum Out {
    #[error("{0}")]
    Failed(#[from] RedisError),
    #[error("no answer within {0:?}")]
    Late(Duration),
    #[error("most answers take too long")]
    Slow,
    #[error("it does not answer what it was asked")]
    Confused,
    #[error("the connection was closed")]
    Closed,
}

impl Line {
    pub(crate) fn new(core: Arc<Core>, client: Client, options: &Options) -> Self {
        let prefix = Arc::clone(&options.prefix);
        let channel = format!("{prefix}:told");
        Self { core, client, address: options.to_string(), prefix, channel }
    }

    pub(crate) const fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// For as long as the front lives.
    pub(crate) async fn run(&self) {
        tokio::join!(self.talk(), self.follow());
    }

    /// Follows the store's epoch where nobody else asks for it.
    async fn follow(&self) {
        loop {
            sleep(FOLLOW_EVERY).await;
            let core = &self.core;
            let recent = core.known.asked().is_some_and(|asked| asked.elapsed() < FOLLOW_AFTER);
            if recent || !core.post.is_open() || !core.appetite.is_there() {
                continue;
            }
            let asked = Instant::now();
            if let Ok(Ok(epoch)) = timeout(TRUST, core.store.epoch()).await {
                core.known.hear(epoch, asked);
            }
        }
    }

    async fn talk(&self) {
        let mut breaker = Breaker::new();
        let mut said = false;
        loop {
            let out = match self.connect().await {
                Ok((connection, lost)) => {
                    tracing::info!(cache = self.address, "the cache is in use");
                    said = false;
                    self.core.post.open();
                    let out = self.serve(connection, &lost, &mut breaker).await;
                    self.core.post.close();
                    self.core.wakes.let_go();
                    out
                }
                Err(out) => out,
            };
            if !said {
                tracing::warn!(cache = self.address, "the cache is left alone for now: {out}");
                said = true;
            }
            sleep(breaker.on_out()).await;
        }
    }

    /// A connection that has shown that it answers, and who is rung when it is lost.
    async fn connect(&self) -> Result<(MultiplexedConnection, Arc<Notify>), Out> {
        let lost = Arc::new(Notify::new());
        let (core, bell) = (Arc::clone(&self.core), Arc::clone(&lost));
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_MAX))
            .set_response_timeout(Some(CONNECT_MAX))
            .set_push_sender(move |push: PushInfo| {
                hear(&core, &bell, &push);
                Ok::<(), std::convert::Infallible>(())
            });
        let connect = self.client.get_multiplexed_async_connection_with_config(&config);
        let late = |limit| move |_| Out::Late(limit);
        let mut connection = timeout(CONNECT_MAX, connect).await.map_err(late(CONNECT_MAX))??;
        timeout(CONNECT_MAX, connection.subscribe(&self.channel))
            .await
            .map_err(late(CONNECT_MAX))??;
        let ping = redis::cmd("PING");
        let pong = connection.send_packed_command(&ping);
        timeout(ANSWER_MAX, pong).await.map_err(late(ANSWER_MAX))??;
        Ok((connection, lost))
    }

    /// Turn after turn, until it does not go on.
    async fn serve(
        &self,
        mut connection: MultiplexedConnection,
        lost: &Notify,
        breaker: &mut Breaker,
    ) -> Out {
        let mut last = Instant::now();
        loop {
            let batch = tokio::select! {
                batch = self.core.post.next() => batch,
                () = lost.notified() => return Out::Closed,
            };
            let begun = Instant::now();
            if let Err(out) = self.turn(&mut connection, batch, begun).await {
                return out;
            }
            let now = Instant::now();
            if breaker.on_answer(now - begun, now - last) == Health::Bad {
                return Out::Slow;
            }
            last = now;
        }
    }

    /// Sends a batch and hands out the answers. Whoever looked is answered when the batch is
    /// dropped, if not before.
    async fn turn(
        &self,
        connection: &mut MultiplexedConnection,
        batch: Batch,
        begun: Instant,
    ) -> Result<(), Out> {
        let Batch { looks, notes, since } = batch;
        let (mut pipeline, told) = self.write(notes);
        if !looks.is_empty() {
            let names = looks.iter().map(|look| self.key(&look.name));
            pipeline.cmd("MGET").arg(names.collect::<Vec<_>>());
        }
        let limit = since.unwrap_or(begun) + ANSWER_MAX;
        let count = pipeline.len();
        let mut answers = pin!(connection.send_packed_commands(&pipeline, 0, count));
        let mut answers = match timeout_at(limit, &mut answers).await {
            Ok(answers) => answers?,
            Err(_) => {
                // Nobody waits any longer, and nobody else begins to. It may still come: not
                // everything that takes a moment is gone.
                drop((looks, told));
                self.core.post.close();
                let late = timeout_at(begun + GONE, answers).await;
                late.map_err(|_| Out::Late(GONE))??;
                self.core.post.open();
                return Ok(());
            }
        };
        if answers.len() != count {
            return Err(Out::Confused);
        }
        if !looks.is_empty() {
            hand_out(looks, answers.pop().unwrap_or_default())?;
        }
        answers.into_iter().try_for_each(taken)?;
        for teller in told {
            // Who has gone away need not be told.
            let _ = teller.send(());
        }
        Ok(())
    }

    /// Notes as commands, and who wants to know that they were sent.
    fn write(&self, notes: Vec<Note>) -> (Pipeline, Vec<oneshot::Sender<()>>) {
        let mut pipeline = Pipeline::with_capacity(notes.len() + 3);
        let (mut told, mut awaited, mut changed) = (Vec::new(), Vec::new(), Vec::new());
        for note in notes {
            match note {
                Note::Put { name, entry, millis, hint } => {
                    let command = pipeline.cmd("SET").arg(self.key(&name)).arg(entry);
                    command.arg("PX").arg(millis);
                    if hint {
                        command.arg("NX");
                    }
                }
                Note::Remove(name) => {
                    pipeline.cmd("DEL").arg(self.key(&name));
                }
                Note::Changed(name) => {
                    // A hint that it runs would make others wait for nothing.
                    pipeline.cmd("DEL").arg(self.key(&name));
                    changed.push(name);
                }
                Note::Await(name, teller) => {
                    told.extend(teller);
                    awaited.push(name);
                }
            }
        }
        let awaited = awaited.chunks(NAMES_MAX).map(|names| Message::Awaited(names.to_vec()));
        let changed = changed.chunks(NAMES_MAX).map(|names| Message::Changed(names.to_vec()));
        for message in awaited.chain(changed) {
            pipeline.cmd("PUBLISH").arg(&self.channel).arg(message.write());
        }
        (pipeline, told)
    }

    fn key(&self, name: &Name) -> String {
        let mut key = String::with_capacity(self.prefix.len() + 1 + 2 * name.len());
        key.push_str(&self.prefix);
        key.push(':');
        for digit in name.iter().flat_map(|byte| [byte >> 4, byte & 15]) {
            key.extend(char::from_digit(digit.into(), 16));
        }
        key
    }
}

/// Gives everybody who looked what was found.
fn hand_out(looks: Vec<Look>, found: Value) -> Result<(), Out> {
    let Value::Array(found) = found.extract_error()? else { return Err(Out::Confused) };
    if found.len() != looks.len() {
        return Err(Out::Confused);
    }
    for (look, found) in looks.into_iter().zip(found) {
        let entry =
            if let Value::BulkString(entry) = found { Some(Bytes::from(entry)) } else { None };
        // Who has gone away need not be told.
        let _ = look.reply.send(entry);
    }
    Ok(())
}

/// Whether a note was taken. Where it could not be because there is no room, what was written
/// before can still be read.
fn taken(answer: Value) -> Result<(), RedisError> {
    match answer.extract_error() {
        Err(error) if !matches!(error.code(), Some("OOM" | "MISCONF")) => Err(error),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// What Redis says without having been asked.
fn hear(core: &Core, lost: &Notify, push: &PushInfo) {
    match (&push.kind, push.data.last()) {
        (PushKind::Message, Some(Value::BulkString(bytes))) => {
            if let Some(message) = Message::read(bytes) {
                core.wakes.hear(&message, Instant::now());
            }
        }
        (PushKind::Disconnection, _) => lost.notify_one(),
        _ => {}
    }
}
