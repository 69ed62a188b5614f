//! The usual pattern, well written: the baseline of the PostgreSQL store.
//!
//! One row per key, taken by `INSERT … ON CONFLICT DO NOTHING` and finished by `UPDATE`, each a
//! transaction of its own in one round trip, prepared once on each of the connections of a pool.
//! The table has the columns of the store, with the cheapest primary key there is: the keys of the
//! load are UUIDs already.

use std::{
    error::Error,
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
};

use anyhow::{Context as _, ensure};
use async_trait::async_trait;
use bytes::BytesMut;
use semel_core::{Answer, Claim, Fence, Key, RecordId, time::millis};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_postgres::{
    Client, Statement,
    types::{IsNull, ToSql, Type, accepts, to_sql_checked},
};

use crate::{load::Subject, postgres::server};

/// As many connections as such a pool usually has.
const CONNECTIONS: usize = 16;

const TABLE: &str = "
    CREATE SCHEMA usual;
    CREATE TABLE usual.records (
        id uuid PRIMARY KEY,
        scope text NOT NULL,
        caller text NOT NULL,
        key text NOT NULL,
        fingerprint bytea NOT NULL,
        owner uuid NOT NULL,
        fence bigint NOT NULL,
        attempt integer NOT NULL,
        on_unknown text NOT NULL,
        retention bigint NOT NULL,
        claimed_at timestamptz NOT NULL,
        expires_at timestamptz NOT NULL,
        lease_until timestamptz,
        state text NOT NULL,
        hold_for bigint,
        ended_at timestamptz,
        about text NOT NULL,
        node text NOT NULL,
        captured text NOT NULL,
        reason text,
        answer bytea
    );
    CREATE INDEX ON usual.records (expires_at)";

const CLAIM: &str = "
    INSERT INTO usual.records (id, scope, caller, key, fingerprint, owner, fence, attempt,
        on_unknown, retention, claimed_at, expires_at, lease_until, state, about, node, captured)
    VALUES ($1, $2, $3, $4, $5, $6, 1, 1, 'hold', $7, now(),
        now() + $7::bigint * interval '1 ms', now() + $8::bigint * interval '1 ms', 'in_flight',
        $9, $10, '')
    ON CONFLICT DO NOTHING RETURNING fence";

const COMPLETE: &str = "
    UPDATE usual.records
    SET state = 'completed', answer = $3, lease_until = NULL, ended_at = now()
    WHERE id = $1 AND fence = $2 AND owner = $4 AND state = 'in_flight'";

/// A pool of connections with their prepared statements.
#[derive(Debug)]
pub(crate) struct Usual {
    free: Semaphore,
    pool: Mutex<Vec<Prepared>>,
}

struct Prepared {
    client: Client,
    claim: Statement,
    complete: Statement,
}

impl fmt::Debug for Prepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prepared").finish_non_exhaustive()
    }
}

/// A connection of the pool, returned when this is dropped.
struct Taken<'a> {
    pool: &'a Mutex<Vec<Prepared>>,
    prepared: Option<Prepared>,
    _permit: SemaphorePermit<'a>,
}

impl Usual {
    /// Creates the table and connects.
    pub(crate) async fn connect(url: &str) -> anyhow::Result<Self> {
        server::connect(url).await?.batch_execute(TABLE).await?;
        let mut pool = Vec::new();
        for _ in 0..CONNECTIONS {
            let client = server::connect(url).await?;
            let claim = client.prepare(CLAIM).await?;
            let complete = client.prepare(COMPLETE).await?;
            pool.push(Prepared { client, claim, complete });
        }
        Ok(Self { free: Semaphore::new(CONNECTIONS), pool: Mutex::new(pool) })
    }

    async fn take(&self) -> anyhow::Result<Taken<'_>> {
        let permit = self.free.acquire().await?;
        let prepared = lock(&self.pool).pop();
        Ok(Taken { pool: &self.pool, prepared, _permit: permit })
    }
}

impl Taken<'_> {
    fn prepared(&self) -> anyhow::Result<&Prepared> {
        self.prepared.as_ref().context("there are as many connections as permits")
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        lock(self.pool).extend(self.prepared.take());
    }
}

fn lock(pool: &Mutex<Vec<Prepared>>) -> MutexGuard<'_, Vec<Prepared>> {
    pool.lock().unwrap_or_else(PoisonError::into_inner)
}

#[async_trait]
impl Subject for Usual {
    async fn claim(&self, claim: &Claim) -> anyhow::Result<Fence> {
        let id = Uuid::of(&claim.id.key)?;
        let owner = Uuid(*claim.owner.as_bytes());
        let (retention, lease) = (signed(millis(claim.retention)), signed(millis(claim.lease)));
        let taken = self.take().await?;
        let prepared = taken.prepared()?;
        let RecordId { scope, caller, key } = &claim.id;
        let client = &prepared.client;
        let row = client
            .query_one(
                &prepared.claim,
                &[
                    &id,
                    &scope.as_str(),
                    &caller.as_str(),
                    &key.as_str(),
                    &&claim.fingerprint.as_bytes()[..],
                    &owner,
                    &retention,
                    &lease,
                    &claim.about.as_str(),
                    &claim.node.as_str(),
                ],
            )
            .await?;
        let fence: i64 = row.try_get(0)?;
        Fence::new(u64::try_from(fence)?).context("a fence of zero")
    }

    async fn complete(&self, claim: &Claim, fence: Fence, answer: &Answer) -> anyhow::Result<()> {
        let (id, fence) = (Uuid::of(&claim.id.key)?, signed(fence.get()));
        let owner = Uuid(*claim.owner.as_bytes());
        let taken = self.take().await?;
        let Prepared { client, complete, .. } = taken.prepared()?;
        let answer = &answer.as_bytes()[..];
        let written = client.execute(complete, &[&id, &fence, &answer, &owner]).await?;
        ensure!(written == 1, "an answer was not taken");
        Ok(())
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Sixteen bytes, as PostgreSQL takes them.
#[derive(Debug)]
struct Uuid([u8; 16]);

impl Uuid {
    /// The key of the load, which looks like a UUID, as one.
    fn of(key: &Key) -> anyhow::Result<Self> {
        let digits = key.as_str().replace('-', "");
        Ok(Self(u128::from_str_radix(&digits, 16)?.to_be_bytes()))
    }
}

impl ToSql for Uuid {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.extend_from_slice(&self.0);
        Ok(IsNull::No)
    }

    accepts!(UUID);
    to_sql_checked!();
}
