//! The connection to Redis: sends one batch after the other, and reconnects after a failure.
//!
//! A batch is one pipeline: the queued commands, then one `MGET` for all lookups. The connection
//! has its own thread.

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
    breaker::{CacheBreaker, CacheHealth, LOOKUP_TIMEOUT},
    entry::RecordName,
    epoch::EPOCH_TTL,
    lookup::CacheState,
    notifications::{GatewayMessage, NAMES_MAX},
    request_queue::{CacheCommand, PendingLookup, RequestBatch},
};

/// How long a connection may take to open.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// After how long without a reply a connection is closed.
const REPLY_TIMEOUT: Duration = Duration::from_secs(1);

/// How often the age of the epoch is checked, and at which age it is refreshed. An engine reads the
/// epoch more often than that, which refreshes it too.
const EPOCH_CHECK_INTERVAL: Duration = Duration::from_millis(200);
const EPOCH_MAX_AGE: Duration = Duration::from_millis(400);

#[derive(Debug)]
pub(crate) struct RedisConnection {
    cache: Arc<CacheState>,
    client: Client,
    address: String,
    prefix: Arc<str>,
    channel: String,
}

/// Why Redis is out of use.
#[derive(Debug, thiserror::Error)]
enum CacheOutage {
    #[error("{0}")]
    Failed(#[from] RedisError),
    #[error("no reply within {0:?}")]
    Late(Duration),
    #[error("most replies are too slow")]
    Slow,
    #[error("unexpected reply")]
    UnexpectedReply,
    #[error("the connection was closed")]
    Closed,
}

impl RedisConnection {
    pub(crate) fn new(cache: Arc<CacheState>, client: Client, options: &Options) -> Self {
        let prefix = Arc::clone(&options.prefix);
        let channel = format!("{prefix}:changes");
        Self { cache, client, address: options.to_string(), prefix, channel }
    }

    pub(crate) const fn cache(&self) -> &Arc<CacheState> {
        &self.cache
    }

    /// Runs for as long as the cache exists.
    pub(crate) async fn run(&self) {
        tokio::join!(self.reconnect_forever(), self.follow_epoch());
    }

    /// Refreshes the store's epoch if no engine reads it.
    async fn follow_epoch(&self) {
        loop {
            sleep(EPOCH_CHECK_INTERVAL).await;
            let cache = &self.cache;
            let recent =
                cache.epoch_cache.asked().is_some_and(|asked| asked.elapsed() < EPOCH_MAX_AGE);
            if recent || !cache.requests.is_open() || !cache.lookup_budget.allows_lookup() {
                continue;
            }
            let asked = Instant::now();
            if let Ok(Ok(epoch)) = timeout(EPOCH_TTL, cache.store.epoch()).await {
                cache.epoch_cache.update(epoch, asked);
            }
        }
    }

    async fn reconnect_forever(&self) {
        let mut breaker = CacheBreaker::new();
        let mut logged = false;
        loop {
            let outage = match self.connect().await {
                Ok((connection, lost)) => {
                    tracing::info!(cache = self.address, "the cache is in use");
                    logged = false;
                    self.cache.requests.open();
                    let outage = self.serve(connection, &lost, &mut breaker).await;
                    self.cache.requests.close();
                    self.cache.notifications.wake_all();
                    outage
                }
                Err(outage) => outage,
            };
            if !logged {
                tracing::warn!(cache = self.address, "the cache is out of use: {outage}");
                logged = true;
            }
            sleep(breaker.on_outage()).await;
        }
    }

    /// Opens a connection that has replied, and returns the notifier of its loss.
    async fn connect(&self) -> Result<(MultiplexedConnection, Arc<Notify>), CacheOutage> {
        let lost = Arc::new(Notify::new());
        let (cache, lost_notify) = (Arc::clone(&self.cache), Arc::clone(&lost));
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(CONNECT_TIMEOUT))
            .set_push_sender(move |push: PushInfo| {
                on_push(&cache, &lost_notify, &push);
                Ok::<(), std::convert::Infallible>(())
            });
        let connect = self.client.get_multiplexed_async_connection_with_config(&config);
        let late = |limit| move |_| CacheOutage::Late(limit);
        let mut connection =
            timeout(CONNECT_TIMEOUT, connect).await.map_err(late(CONNECT_TIMEOUT))??;
        timeout(CONNECT_TIMEOUT, connection.subscribe(&self.channel))
            .await
            .map_err(late(CONNECT_TIMEOUT))??;
        let ping = redis::cmd("PING");
        let pong = connection.send_packed_command(&ping);
        timeout(LOOKUP_TIMEOUT, pong).await.map_err(late(LOOKUP_TIMEOUT))??;
        Ok((connection, lost))
    }

    /// Sends batches until the connection fails.
    async fn serve(
        &self,
        mut connection: MultiplexedConnection,
        lost: &Notify,
        breaker: &mut CacheBreaker,
    ) -> CacheOutage {
        let mut last = Instant::now();
        loop {
            let batch = tokio::select! {
                batch = self.cache.requests.next() => batch,
                () = lost.notified() => return CacheOutage::Closed,
            };
            let begun = Instant::now();
            if let Err(outage) = self.exchange(&mut connection, batch, begun).await {
                return outage;
            }
            let now = Instant::now();
            if breaker.on_reply(now - begun, now - last) == CacheHealth::Bad {
                return CacheOutage::Slow;
            }
            last = now;
        }
    }

    /// Sends a batch and returns the results to the waiters. Dropping the batch ends their wait
    /// too.
    async fn exchange(
        &self,
        connection: &mut MultiplexedConnection,
        batch: RequestBatch,
        begun: Instant,
    ) -> Result<(), CacheOutage> {
        let RequestBatch { lookups, commands, first_lookup_at } = batch;
        let (mut pipeline, announced) = self.write(commands);
        if !lookups.is_empty() {
            let names = lookups.iter().map(|lookup| self.key(&lookup.name));
            pipeline.cmd("MGET").arg(names.collect::<Vec<_>>());
        }
        let limit = first_lookup_at.unwrap_or(begun) + LOOKUP_TIMEOUT;
        let count = pipeline.len();
        let mut answers = pin!(connection.send_packed_commands(&pipeline, 0, count));
        let mut answers = match timeout_at(limit, &mut answers).await {
            Ok(answers) => answers?,
            Err(_) => {
                // Ends the wait of all lookups and accepts no new ones. The reply may still come: a
                // slow connection is not lost yet.
                drop((lookups, announced));
                self.cache.requests.close();
                let late = timeout_at(begun + REPLY_TIMEOUT, answers).await;
                late.map_err(|_| CacheOutage::Late(REPLY_TIMEOUT))??;
                self.cache.requests.open();
                return Ok(());
            }
        };
        if answers.len() != count {
            return Err(CacheOutage::UnexpectedReply);
        }
        if !lookups.is_empty() {
            send_results(lookups, answers.pop().unwrap_or_default())?;
        }
        answers.into_iter().try_for_each(check_write)?;
        for sender in announced {
            // The waiter may be gone.
            let _ = sender.send(());
        }
        Ok(())
    }

    /// Builds the pipeline, and returns who waits for its completion.
    fn write(&self, commands: Vec<CacheCommand>) -> (Pipeline, Vec<oneshot::Sender<()>>) {
        let mut pipeline = Pipeline::with_capacity(commands.len() + 3);
        let (mut announced, mut awaited, mut changed) = (Vec::new(), Vec::new(), Vec::new());
        for command in commands {
            match command {
                CacheCommand::Put { name, entry, millis, hint } => {
                    let command = pipeline.cmd("SET").arg(self.key(&name)).arg(entry);
                    command.arg("PX").arg(millis);
                    if hint {
                        command.arg("NX");
                    }
                }
                CacheCommand::Remove(name) => {
                    pipeline.cmd("DEL").arg(self.key(&name));
                }
                CacheCommand::Changed(name) => {
                    // A remaining hint would make others wait for nothing.
                    pipeline.cmd("DEL").arg(self.key(&name));
                    changed.push(name);
                }
                CacheCommand::Await(name, sender) => {
                    announced.extend(sender);
                    awaited.push(name);
                }
            }
        }
        let awaited =
            awaited.chunks(NAMES_MAX).map(|names| GatewayMessage::Awaited(names.to_vec()));
        let changed =
            changed.chunks(NAMES_MAX).map(|names| GatewayMessage::Changed(names.to_vec()));
        for message in awaited.chain(changed) {
            pipeline.cmd("PUBLISH").arg(&self.channel).arg(message.write());
        }
        (pipeline, announced)
    }

    fn key(&self, name: &RecordName) -> String {
        let mut key = String::with_capacity(self.prefix.len() + 1 + 2 * name.len());
        key.push_str(&self.prefix);
        key.push(':');
        for digit in name.iter().flat_map(|byte| [byte >> 4, byte & 15]) {
            key.extend(char::from_digit(digit.into(), 16));
        }
        key
    }
}

/// Sends the found entries to the waiters.
fn send_results(lookups: Vec<PendingLookup>, found: Value) -> Result<(), CacheOutage> {
    let Value::Array(found) = found.extract_error()? else {
        return Err(CacheOutage::UnexpectedReply);
    };
    if found.len() != lookups.len() {
        return Err(CacheOutage::UnexpectedReply);
    }
    for (lookup, found) in lookups.into_iter().zip(found) {
        let entry =
            if let Value::BulkString(entry) = found { Some(Bytes::from(entry)) } else { None };
        // The waiter may be gone.
        let _ = lookup.reply.send(entry);
    }
    Ok(())
}

/// Checks the reply to a write. A full Redis refuses writes, but can still be read.
fn check_write(answer: Value) -> Result<(), RedisError> {
    match answer.extract_error() {
        Err(error) if !matches!(error.code(), Some("OOM" | "MISCONF")) => Err(error),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Handles a push message from Redis.
fn on_push(cache: &CacheState, lost: &Notify, push: &PushInfo) {
    match (&push.kind, push.data.last()) {
        (PushKind::Message, Some(Value::BulkString(bytes))) => {
            if let Some(message) = GatewayMessage::read(bytes) {
                cache.notifications.on_message(&message, Instant::now());
            }
        }
        (PushKind::Disconnection, _) => lost.notify_one(),
        _ => {}
    }
}
