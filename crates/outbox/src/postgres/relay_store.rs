//! What a relay does in PostgreSQL.

use std::{collections::BTreeMap, fmt, pin::pin, time::Duration};

use async_trait::async_trait;
use deadpool_postgres::{ClientWrapper, Object, Pool};
use futures_util::TryStreamExt as _;
use tokio::join;
use tokio_postgres::{Error, Row, Statement, types::ToSql};
use tracing::warn;
use uuid::Uuid;

use super::{database_error, ring};
use crate::{
    AsideAttempt, AsideLane, AsideMessage, BucketCursor, LEASE, OutboxError, OutboxMessage,
    Progress, RelayStore, Window, progress,
};

/// Messages of one batch.
const BATCH_MAX: i64 = 1000;

/// Bytes of payload after which a batch ends.
const BATCH_BYTES_MAX: usize = 16 * 1024 * 1024;

/// How many relays share the buckets.
const BUCKETS: i64 = 64;

/// The relay's side of the outbox in a PostgreSQL database. It takes one connection of the pool for
/// itself, which must not go through a pooler in transaction mode.
pub struct PgOutbox {
    pool: Pool,
    owner: Uuid,
    retention: Duration,
    lease: Duration,
    connection: Option<Connection>,
    buckets: BTreeMap<i16, OwnedBucket>,
    /// The buckets of the last fetch in their order, how far it went in each, and its window.
    fetched: Option<(Vec<i16>, Vec<Progress>, Window)>,
    /// The bucket that the next fetch begins with, so that a busy one does not starve the others.
    turn: usize,
}

struct Connection {
    client: ClientWrapper,
    fetch: Statement,
    last_number: Statement,
    save: Statement,
}

#[derive(Clone, Debug)]
struct OwnedBucket {
    fence: i64,
    cursor: BucketCursor,
}

impl PgOutbox {
    /// The outbox in the database of this pool. Its tables must exist:
    /// [`create_tables`](super::create_tables).
    #[must_use]
    pub fn new(pool: Pool) -> Self {
        Self {
            pool,
            owner: Uuid::new_v4(),
            retention: Duration::from_hours(1),
            lease: LEASE,
            connection: None,
            buckets: BTreeMap::new(),
            fetched: None,
            turn: 0,
        }
    }

    /// How long delivered messages are kept at least, instead of an hour.
    #[must_use]
    pub const fn retention(mut self, retention: Duration) -> Self {
        self.retention = retention;
        self
    }

    /// How long the relay may stay silent before others take its buckets, instead of [`LEASE`].
    #[must_use]
    pub const fn with_lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    async fn connection(&mut self) -> Result<&mut Connection, OutboxError> {
        if self.connection.is_none() {
            let object = self.pool.get().await;
            let object = object
                .map_err(|error| OutboxError::because("the pool provides no connection", error))?;
            self.connection = Some(Connection::open(Object::take(object)).await?);
        }
        self.connection.as_mut().ok_or_else(|| OutboxError::new("no connection"))
    }
}

impl Connection {
    async fn open(client: ClientWrapper) -> Result<Self, OutboxError> {
        adopt_restored(&client).await?;
        // The tables grow by orders of magnitude while a plan is cached: only indexes are right.
        let settings = "SET enable_seqscan = off; SET enable_bitmapscan = off; SET jit = off;
            SET plan_cache_mode = force_generic_plan; SET statement_timeout = '30s'";
        client.batch_execute(settings).await.map_err(database_error)?;
        let last = "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM semel_outbox_number";
        let prepared = async {
            Ok(Self {
                fetch: client.prepare(include_str!("../sql/postgres/fetch.sql")).await?,
                last_number: client.prepare(last).await?,
                save: client.prepare(include_str!("../sql/postgres/save.sql")).await?,
                client,
            })
        };
        prepared.await.map_err(database_error)
    }

    /// One batch: the rows, the window that they began, and whether there may be more.
    async fn fetch(&self, buckets: &[(i16, &BucketCursor)]) -> Result<Fetched, Error> {
        let column = |of: fn(&BucketCursor) -> i64| -> Vec<i64> {
            buckets.iter().map(|(_, cursor)| of(cursor)).collect()
        };
        let numbers: Vec<i16> = buckets.iter().map(|(bucket, _)| *bucket).collect();
        let seen: Vec<&str> = buckets.iter().map(|(_, cursor)| &*cursor.seen).collect();
        let seen_floors = column(|cursor| cursor.seen_floor);
        let snapshot =
            |cursor: &'_ BucketCursor| cursor.window.as_ref().map(|window| window.snapshot.clone());
        let snapshots: Vec<_> = buckets.iter().map(|(_, cursor)| snapshot(cursor)).collect();
        let ceilings =
            column(|cursor| cursor.window.as_ref().map_or(i64::MAX, |window| window.ceiling));
        let positions = column(|cursor| cursor.position);
        let parameters: [&(dyn ToSql + Sync); 7] =
            [&numbers, &seen, &seen_floors, &snapshots, &ceilings, &positions, &BATCH_MAX];
        let rows = async {
            let stream = self.client.query_raw(&self.fetch, parameters).await?;
            let (mut stream, mut rows, mut bytes) = (pin!(stream), Vec::new(), 0_usize);
            while let Some(row) = stream.try_next().await? {
                let payload: Option<&[u8]> = row.get("payload");
                bytes = bytes.saturating_add(payload.map_or(0, <[u8]>::len));
                rows.push(row);
                if bytes >= BATCH_BYTES_MAX {
                    break;
                }
            }
            Ok::<_, Error>((rows, bytes >= BATCH_BYTES_MAX))
        };
        // Sent together; the server runs them in this order.
        let (floor, rows, ceiling) = join!(biased;
            self.client.query_one(&self.last_number, &[]),
            rows,
            self.client.query_one(&self.last_number, &[]),
        );
        let (rows, is_cut) = rows?;
        let window = Window {
            snapshot: rows.first().and_then(|row| row.get("snapshot")).unwrap_or_default(),
            floor: floor?.get(0),
            ceiling: ceiling?.get(0),
        };
        Ok(Fetched { rows, is_cut, window })
    }
}

/// The reply to a fetch.
struct Fetched {
    /// The first one is the snapshot.
    rows: Vec<Row>,
    is_cut: bool,
    window: Window,
}

/// Finds out whether the database was restored into another cluster, and begins one window with
/// what is left.
async fn adopt_restored(client: &ClientWrapper) -> Result<(), OutboxError> {
    let sql = "SELECT s.system_identifier = c.system_identifier
        FROM semel_outbox_state AS s, pg_control_system() AS c";
    let row = client.query_opt(sql, &[]).await.map_err(database_error)?;
    match row.map(|row| row.get::<_, bool>(0)) {
        Some(true) => return Ok(()),
        Some(false) => {}
        None => return Err(OutboxError::new("the table semel_outbox_state has no row")),
    }
    warn!("the outbox was restored into another database cluster; the relay adopts it");
    let adopt = include_str!("../sql/postgres/adopt.sql");
    // Under a lock that every relay takes here. The one that finds it done has nothing to do.
    let script = format!(
        "BEGIN; SET LOCAL statement_timeout = 0;
        LOCK TABLE semel_outbox_state, semel_outbox_bucket IN SHARE ROW EXCLUSIVE MODE;
        DO $semel$ BEGIN
            IF EXISTS (SELECT FROM semel_outbox_state AS s, pg_control_system() AS c
                WHERE s.system_identifier <> c.system_identifier) THEN
                {adopt}
            END IF;
        END $semel$; COMMIT"
    );
    client.batch_execute(&script).await.map_err(database_error)
}

fn message(row: &Row, bucket: i16) -> OutboxMessage {
    OutboxMessage {
        number: row.get("number"),
        bucket,
        id: row.get("id"),
        topic: row.get("topic"),
        key: row.get("key"),
        payload: row.get("payload"),
        age: Duration::try_from_secs_f64(row.get("age")).unwrap_or_default(),
    }
}

fn cursor(row: &Row) -> BucketCursor {
    let snapshot: Option<String> = row.get("window_snapshot");
    let window = snapshot.map(|snapshot| Window {
        snapshot,
        floor: row.get("window_floor"),
        ceiling: row.get("window_ceiling"),
    });
    BucketCursor {
        seen: row.get("seen"),
        seen_floor: row.get("seen_floor"),
        window,
        position: row.get("position"),
    }
}

/// A duration for PostgreSQL.
fn seconds(duration: Duration) -> f64 {
    duration.as_secs_f64()
}

#[async_trait]
impl RelayStore for PgOutbox {
    fn lease(&self) -> Duration {
        self.lease
    }

    async fn balance(&mut self) -> Result<usize, OutboxError> {
        let (owner, lease) = (self.owner, seconds(self.lease));
        let before = std::mem::take(&mut self.buckets);
        self.fetched = None;
        let connection = self.connection().await?;
        let found =
            balance(connection, owner, lease, before.len()).await.map_err(database_error)?;
        let owned = found.iter().map(|row| {
            let bucket: i16 = row.get("bucket");
            let fence = row.get("fence");
            // What is in memory is as far as what is saved, or further.
            let known = before.get(&bucket).filter(|known| known.fence == fence);
            let owned =
                known.cloned().unwrap_or_else(|| OwnedBucket { fence, cursor: cursor(row) });
            (bucket, owned)
        });
        self.buckets = owned.collect();
        Ok(self.buckets.len())
    }

    async fn renew(&mut self) -> Result<(), OutboxError> {
        let (owner, lease) = (self.owner, seconds(self.lease));
        let sql = "WITH relay AS (
                UPDATE semel_outbox_relay
                SET lease_until = clock_timestamp() + $2 * interval '1 second' WHERE owner = $1
            )
            UPDATE semel_outbox_bucket
            SET lease_until = clock_timestamp() + $2 * interval '1 second' WHERE owner = $1";
        let renewed = self.connection().await?.client.execute(sql, &[&owner, &lease]).await;
        renewed.map(drop).map_err(database_error)
    }

    async fn fetch(&mut self) -> Result<Vec<OutboxMessage>, OutboxError> {
        if self.buckets.is_empty() {
            return Ok(Vec::new());
        }
        self.connection().await?;
        let Some(connection) = &self.connection else { return Ok(Vec::new()) };
        self.turn = self.turn.wrapping_add(1);
        let start = self.turn.checked_rem(self.buckets.len()).unwrap_or(0);
        let all = self.buckets.iter().map(|(bucket, owned)| (*bucket, &owned.cursor));
        let in_turn: Vec<_> = all.clone().skip(start).chain(all.take(start)).collect();
        let fetched = connection.fetch(&in_turn).await.map_err(database_error)?;
        let numbers: Vec<i16> = in_turn.iter().map(|(bucket, _)| *bucket).collect();
        let (mut places, mut messages) = (Vec::new(), Vec::new());
        for row in fetched.rows.iter().skip(1) {
            let place: i32 = row.get("place");
            let place = usize::try_from(place).unwrap_or(0).saturating_sub(1);
            let Some(bucket) = numbers.get(place) else { continue };
            messages.push(message(row, *bucket));
            places.push((place, row.get("number")));
        }
        let is_full = fetched.is_cut || i64::try_from(messages.len()) == Ok(BATCH_MAX);
        let progress = progress(numbers.len(), &places, is_full);
        self.fetched = Some((numbers, progress, fetched.window));
        Ok(messages)
    }

    fn advance(&mut self) {
        let Some((numbers, progress, window)) = self.fetched.take() else { return };
        for (bucket, progress) in numbers.iter().zip(progress) {
            if let Some(owned) = self.buckets.get_mut(bucket) {
                owned.cursor.advance(progress, &window);
            }
        }
    }

    async fn save(&mut self, aside: Vec<AsideMessage>) -> Result<(), OutboxError> {
        if self.buckets.is_empty() {
            return Ok(());
        }
        let (owner, lease, buckets) = (self.owner, seconds(self.lease), self.buckets.clone());
        let connection = self.connection().await?;
        let saved =
            save(connection, owner, lease, &buckets, &aside).await.map_err(database_error)?;
        self.buckets.retain(|bucket, _| saved.contains(bucket));
        Ok(())
    }

    async fn lanes(&mut self) -> Result<Vec<AsideLane>, OutboxError> {
        let buckets: Vec<i16> = self.buckets.keys().copied().collect();
        let sql = "SELECT h.*, n.messages FROM (
                SELECT DISTINCT ON (bucket, lane) bucket, lane, attempts, parked,
                    extract(epoch FROM due_at - clock_timestamp())::double precision AS due
                FROM semel_outbox_aside WHERE bucket = ANY($1) ORDER BY bucket, lane, number
            ) AS h
            JOIN (
                SELECT bucket, lane, count(*) AS messages FROM semel_outbox_aside
                WHERE bucket = ANY($1) GROUP BY bucket, lane
            ) AS n ON n.bucket = h.bucket AND n.lane = h.lane";
        let rows = self.connection().await?.client.query(sql, &[&buckets]).await;
        Ok(rows.map_err(database_error)?.iter().map(aside_lane).collect())
    }

    async fn head(
        &mut self,
        bucket: i16,
        lane: &str,
    ) -> Result<Option<(OutboxMessage, AsideLane)>, OutboxError> {
        let sql = "SELECT *, 0::double precision AS due, 0::bigint AS messages,
                extract(epoch FROM clock_timestamp() - sent_at)::double precision AS age
            FROM semel_outbox_aside WHERE bucket = $1 AND lane = $2 ORDER BY number LIMIT 1";
        let row = self.connection().await?.client.query_opt(sql, &[&bucket, &lane]).await;
        Ok(row.map_err(database_error)?.map(|row| (message(&row, bucket), aside_lane(&row))))
    }

    async fn settle(&mut self, number: i64) -> Result<(), OutboxError> {
        let sql = "DELETE FROM semel_outbox_aside WHERE number = $1";
        let deleted = self.connection().await?.client.execute(sql, &[&number]).await;
        deleted.map(drop).map_err(database_error)
    }

    async fn defer(&mut self, failed: &AsideAttempt) -> Result<(), OutboxError> {
        let AsideAttempt { number, attempts, delay, parked, reason } = failed;
        let attempts = i32::try_from(*attempts).unwrap_or(i32::MAX);
        let sql = "UPDATE semel_outbox_aside SET attempts = $2, parked = $4, reason = $5,
                due_at = clock_timestamp() + $3 * interval '1 second' WHERE number = $1";
        let parameters: [&(dyn ToSql + Sync); 5] =
            [number, &attempts, &seconds(*delay), parked, reason];
        let updated = self.connection().await?.client.execute(sql, &parameters).await;
        updated.map(drop).map_err(database_error)
    }

    async fn sweep(&mut self) -> Result<(), OutboxError> {
        let retention = self.retention;
        ring::turn(&mut self.connection().await?.client, retention).await
    }

    async fn release(&mut self) -> Result<(), OutboxError> {
        self.buckets.clear();
        let owner = self.owner;
        let sql = "WITH relay AS (DELETE FROM semel_outbox_relay WHERE owner = $1)
            UPDATE semel_outbox_bucket SET owner = NULL, lease_until = NULL WHERE owner = $1";
        let released = self.connection().await?.client.execute(sql, &[&owner]).await;
        released.map(drop).map_err(database_error)
    }

    fn reset(&mut self) {
        self.connection = None;
        self.buckets.clear();
        self.fetched = None;
    }
}

fn aside_lane(row: &Row) -> AsideLane {
    AsideLane {
        bucket: row.get("bucket"),
        lane: row.get("lane"),
        attempts: u32::try_from(row.get::<_, i32>("attempts")).unwrap_or(0),
        due: Duration::try_from_secs_f64(row.get("due")).unwrap_or_default(),
        parked: row.get("parked"),
        messages: u64::try_from(row.get::<_, i64>("messages")).unwrap_or(0),
    }
}

/// Announces the relay, gives back what is more than its share, takes what is free, and returns its
/// buckets.
async fn balance(
    connection: &mut Connection,
    owner: Uuid,
    lease: f64,
    owned: usize,
) -> Result<Vec<Row>, Error> {
    let transaction = connection.client.transaction().await?;
    let announce = "INSERT INTO semel_outbox_relay AS r
        VALUES ($1, clock_timestamp() + $2 * interval '1 second')
        ON CONFLICT (owner) DO UPDATE SET lease_until = excluded.lease_until";
    transaction.execute(announce, &[&owner, &lease]).await?;
    let gone = "DELETE FROM semel_outbox_relay
        WHERE lease_until < clock_timestamp() - interval '1 minute'";
    transaction.execute(gone, &[]).await?;
    let renew = "UPDATE semel_outbox_bucket
        SET lease_until = clock_timestamp() + $2 * interval '1 second' WHERE owner = $1";
    let renewed = transaction.execute(renew, &[&owner, &lease]).await?;
    let relays = "SELECT count(*) FROM semel_outbox_relay WHERE lease_until > clock_timestamp()";
    let relays: i64 = transaction.query_one(relays, &[]).await?.get(0);
    let share = BUCKETS.checked_add(relays).and_then(|sum| sum.checked_sub(1));
    let share = share.and_then(|sum| sum.checked_div(relays)).unwrap_or(BUCKETS);
    let renewed = i64::try_from(renewed).unwrap_or(BUCKETS);
    let surplus = renewed.saturating_sub(share);
    if surplus > 0 && owned > 0 {
        let give_back = "UPDATE semel_outbox_bucket SET owner = NULL, lease_until = NULL
            WHERE owner = $1 AND bucket IN (
                SELECT bucket FROM semel_outbox_bucket WHERE owner = $1
                ORDER BY bucket DESC LIMIT $2)";
        transaction.execute(give_back, &[&owner, &surplus]).await?;
    } else if surplus < 0 {
        let take = include_str!("../sql/postgres/take.sql");
        transaction.execute(take, &[&owner, &lease, &surplus.saturating_neg()]).await?;
    }
    let read = "SELECT bucket, fence, seen::text, seen_floor, window_snapshot::text, window_floor,
        window_ceiling, position FROM semel_outbox_bucket WHERE owner = $1 ORDER BY bucket";
    let rows = transaction.query(read, &[&owner]).await?;
    transaction.commit().await?;
    Ok(rows)
}

/// Saves the cursors and moves messages aside, where the relay still owns the bucket. Returns the
/// buckets that it owns.
async fn save(
    connection: &mut Connection,
    owner: Uuid,
    lease: f64,
    buckets: &BTreeMap<i16, OwnedBucket>,
    aside: &[AsideMessage],
) -> Result<Vec<i16>, Error> {
    let of = |pick: fn(&OwnedBucket) -> i64| buckets.values().map(pick).collect::<Vec<i64>>();
    let window = |pick: fn(&Window) -> i64| -> Vec<i64> {
        buckets.values().map(|owned| owned.cursor.window.as_ref().map_or(0, pick)).collect()
    };
    let numbers: Vec<i16> = buckets.keys().copied().collect();
    let seen: Vec<_> = buckets.values().map(|owned| owned.cursor.seen.as_str()).collect();
    let snapshots: Vec<_> = buckets
        .values()
        .map(|owned| owned.cursor.window.as_ref().map(|window| window.snapshot.as_str()))
        .collect();
    let (fences, seen_floors) = (of(|owned| owned.fence), of(|owned| owned.cursor.seen_floor));
    let (floors, ceilings) = (window(|window| window.floor), window(|window| window.ceiling));
    let positions = of(|owned| owned.cursor.position);
    let parameters: [&(dyn ToSql + Sync); 10] = [
        &owner,
        &numbers,
        &fences,
        &seen,
        &seen_floors,
        &snapshots,
        &floors,
        &ceilings,
        &positions,
        &lease,
    ];
    if aside.is_empty() {
        let rows = connection.client.query(&connection.save, &parameters).await?;
        return Ok(rows.iter().map(|row| row.get(0)).collect());
    }
    let transaction = connection.client.transaction().await?;
    let rows = transaction.query(&connection.save, &parameters).await?;
    let saved: Vec<i16> = rows.iter().map(|row| row.get(0)).collect();
    let insert = "INSERT INTO semel_outbox_aside
        VALUES ($1, $2, $3, $4, $5, $6, $7, clock_timestamp() - $8 * interval '1 second', $9,
            clock_timestamp() + $10 * interval '1 second', $11, $12)
        ON CONFLICT (number) DO NOTHING";
    let insert = transaction.prepare(insert).await?;
    for AsideMessage { message, failed } in aside {
        if !saved.contains(&message.bucket) {
            continue;
        }
        let attempts =
            failed.as_ref().map_or(0, |failed| i32::try_from(failed.attempts).unwrap_or(i32::MAX));
        let delay = failed.as_ref().map_or(0.0, |failed| seconds(failed.delay));
        let parked = failed.as_ref().is_some_and(|failed| failed.parked);
        let reason = failed.as_ref().map(|failed| failed.reason.as_str());
        let parameters: [&(dyn ToSql + Sync); 12] = [
            &message.number,
            &message.bucket,
            &message.lane(),
            &message.id,
            &message.topic,
            &message.key,
            &message.payload,
            &seconds(message.age),
            &attempts,
            &delay,
            &parked,
            &reason,
        ];
        transaction.execute(&insert, &parameters).await?;
    }
    transaction.commit().await?;
    Ok(saved)
}

impl fmt::Debug for PgOutbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let buckets: Vec<_> = self.buckets.keys().collect();
        f.debug_struct("PgOutbox")
            .field("owner", &self.owner)
            .field("buckets", &buckets)
            .finish_non_exhaustive()
    }
}
