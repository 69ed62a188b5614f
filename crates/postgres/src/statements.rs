//! All SQL statements, one file each, with the types of their parameters.

use std::time::Duration;

use semel_core::{RELEASED_RETENTION_MAX, Reason};
use tokio_postgres::types::Type;

use crate::table_names::TableNames;

/// The connection counts as lost if the server has not replied by now.
pub(crate) const REPLY_TIMEOUT: Duration = Duration::from_secs(15);

/// The columns of a record, in the order that [`row`](crate::row) expects.
const RECORD: &str = "r.fence, r.fingerprint, r.attempt, r.on_unknown, r.retention, \
                      r.claimed_at, r.expires_at, r.lease_until, r.owner, r.state, \
                      r.answer, r.hold_for, r.ended_at, r.about, r.node, r.captured, r.reason, \
                      r.limits";

/// The same without the answer, which may be large.
const SUMMARY: &str = "r.fence, r.fingerprint, r.attempt, r.on_unknown, r.retention, \
                       r.claimed_at, r.expires_at, r.lease_until, r.owner, r.state, \
                       NULL::bytea, r.hold_for, r.ended_at, r.about, r.node, r.captured, r.reason, \
                       NULL::bytea";

/// The new values of a record whose lease has expired under `hold` or `fail`, or that was held for
/// too long. `$1` is the recorded answer of a failure.
const SETTLED: &str = "\
state = CASE WHEN {fails} THEN 'completed' ELSE 'held' END,
    answer = CASE WHEN {fails} THEN $1 END,
    reason = CASE WHEN r.state = 'in_flight' AND (r.on_unknown = 'fail' OR NOT {fails})
        THEN {lease_expired} ELSE {hold_expired} END,
    ended_at = CASE WHEN {fails} THEN {now} ELSE r.lease_until END,
    hold_until = CASE WHEN {fails} THEN NULL ELSE r.lease_until + r.hold_for * {millisecond} END,
    irregular_at = CASE WHEN {fails} THEN r.claimed_at END,
    expires_at = CASE WHEN {fails} THEN {expiry} ELSE '-infinity' END,
    lease_until = NULL";

/// Whether such a record fails instead of being held.
const FAILS: &str = "(r.state = 'held' OR r.on_unknown = 'fail' \
                     OR coalesce(r.lease_until + r.hold_for * {millisecond} < {now}, false))";

/// Expiry of a record that is finished now: retention counts from the claim, unless less than half
/// of it is left. It is computed from the claim, because a held record has no `expires_at`.
const EXPIRY: &str = "CASE WHEN {late} THEN {now} ELSE r.claimed_at END \
                      + r.retention * {millisecond}";

/// Whether a record that is finished now has less than half of its retention left.
const LATE: &str = "greatest(r.claimed_at + r.retention * {millisecond}, {now}) \
                    < {now} + r.retention * interval '500 microseconds'";

/// The period in which the records of a listing were claimed, and the time after which it
/// continues: `$1` in microseconds, `$3` and `$4` are the maximum and minimum age in milliseconds.
/// The rules compare the ages once more, in whole milliseconds.
const SPAN: &str = "\
greatest(
            timestamptz 'epoch' + $1 * interval '1 microsecond',
            {now} - ($3 + 1) * {millisecond}
        ) AS since,
        {now} - ($4 - 1) * {millisecond} AS until,
        timestamptz 'epoch' + $1 * interval '1 microsecond' AS after";

/// The `expires_at` of a record in flight that was set aside, apart from the records that expire.
/// The reaper ignores records that may be rerun: like held ones, they wait for the next request.
const ASIDE: &str = "CASE r.on_unknown WHEN 'rerun' THEN timestamptz '-infinity' ELSE 'epoch' END";

/// All records in flight that were claimed before this have been set aside. If the recorded time is
/// too recent, the clock was set back, for example by a failover to another server.
const SINCE: &str = "CASE WHEN meta.aside_until <= {now} - {aside_after} / 2 \
                     THEN least(meta.aside_until, {now} - {aside_after}) \
                     ELSE {now} - {lock_wait_max} END";

/// Longer than any pause between two reaps, and than any lock on a row.
const LOCK_WAIT_MAX: &str = "interval '10 minutes'";

/// The distinct retentions: one step through the index for each, from its end, which has the newest
/// entries. The other end has dead entries of swept records.
const RETENTIONS: &str = "\
retentions (retention) AS (
    (SELECT retention FROM {records} ORDER BY retention DESC LIMIT 1)
    UNION ALL
    SELECT (
        SELECT retention
        FROM {records}
        WHERE retention < last.retention
        ORDER BY retention DESC
        LIMIT 1
    )
    FROM retentions AS last
    WHERE last.retention IS NOT NULL
)";

/// All unfinished records, by `RETENTIONS`.
const OPEN: &str = "\
SELECT r.*
    FROM {meta} AS meta
    CROSS JOIN retentions AS kept
    CROSS JOIN LATERAL (
        SELECT *
        FROM {records}
        WHERE retention = kept.retention AND expires_at <= 'epoch'
        UNION ALL
        SELECT *
        FROM {records}
        WHERE retention = kept.retention
            AND expires_at > {since} + kept.retention * {millisecond}
    ) AS r
    WHERE r.state IN ('in_flight', 'held')";

/// A number of the sequence, for the column `drawn` of a subquery that [`FENCE`] reads. PostgreSQL
/// does not flatten a subquery with a volatile function, so each row draws one number.
const DRAW: &str = "nextval({fences_text})";

/// The fence of a claim: at least the wall clock of the database in microseconds, or the sequence
/// where that is higher.
///
/// The clock makes a fence exceed every earlier one, including those that this database has lost:
/// after an asynchronous failover, a restored dump, or a point-in-time recovery, both the rows and
/// the sequence are older than fences that were issued. The sequence alone would issue some of them
/// a second time.
///
/// - *Two claims at the same time.* The clock is rounded up to a multiple of 32 µs, and the last
///   five bits come from the sequence. So fences are unique up to a million claims a second. Above
///   that rate two claims of different records may share a fence, which is harmless; two claims of
///   one record are made under the lock of its row, and the second is higher than the first.
/// - *A clock that steps back.* Maintenance raises the sequence to the clock
///   (`raise_fence_sequence.sql`). Until the clock has caught up, the sequence issues the fences.
/// - *Numbers.* Microseconds since 1970 are below 2^53 until the year 2255, so a fence is exact in
///   languages whose only number is a double. `date_part` returns a double, which is cheaper than
///   the numeric of `extract`, and exact to the microsecond.
const FENCE: &str = "greatest(drawn, (({micros}) | 31) + 1 + drawn % 32)";

/// The wall clock of the database in microseconds, also where tests set the clock of leases.
const MICROS: &str = "(date_part('epoch', clock_timestamp()) * 1000000)::bigint";

/// A notification takes a lock of the whole database, so only watched records are notified.
const NOTIFY: &str =
    "CASE WHEN r.watched THEN pg_notify({channel}, r.digest::text) END AS notified";

macro_rules! statements {
    ($($kind:ident $file:literal [$($type:ident)*];)*) => {
        /// A statement.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) enum StatementKind {
            $($kind,)*
        }

        impl StatementKind {
            pub(crate) const ALL: &[Self] = &[$(Self::$kind,)*];

            const fn text(self) -> &'static str {
                match self {
                    $(Self::$kind => include_str!(concat!("sql/", $file, ".sql")),)*
                }
            }

            /// The types of its parameters.
            pub(crate) const fn types(self) -> &'static [Type] {
                match self {
                    $(Self::$kind => &[$(Type::$type),*],)*
                }
            }
        }
    };
}

// In the order in which a transaction sends them: statements that lock rows come before those that
// insert.
statements! {
    Begin "begin" [];
    Complete "complete" [UUID_ARRAY INT8_ARRAY UUID_ARRAY BYTEA_ARRAY TEXT_ARRAY];
    CompleteLimited "complete" [
        UUID_ARRAY INT8_ARRAY UUID_ARRAY BYTEA_ARRAY TEXT_ARRAY BYTEA_ARRAY
    ];
    Renew "renew" [UUID_ARRAY INT8_ARRAY UUID_ARRAY INT8_ARRAY];
    Release "release" [UUID_ARRAY INT8_ARRAY UUID_ARRAY TEXT_ARRAY TEXT_ARRAY];
    ReleaseLimited "release" [
        UUID_ARRAY INT8_ARRAY UUID_ARRAY TEXT_ARRAY TEXT_ARRAY BYTEA_ARRAY
    ];
    Hold "hold" [UUID_ARRAY INT8_ARRAY UUID_ARRAY TEXT_ARRAY];
    Check "check" [UUID_ARRAY];
    Watch "watch" [UUID_ARRAY];
    Reclaim "reclaim" [UUID_ARRAY BYTEA_ARRAY UUID_ARRAY INT8_ARRAY];
    TakeOver "take_over" [
        UUID_ARRAY BYTEA_ARRAY UUID_ARRAY INT8_ARRAY INT8_ARRAY TEXT_ARRAY INT8_ARRAY TEXT_ARRAY
        TEXT_ARRAY TEXT_ARRAY
    ];
    TakeOverLimited "take_over" [
        UUID_ARRAY BYTEA_ARRAY UUID_ARRAY INT8_ARRAY INT8_ARRAY TEXT_ARRAY INT8_ARRAY TEXT_ARRAY
        TEXT_ARRAY TEXT_ARRAY BYTEA_ARRAY BYTEA_ARRAY
    ];
    Settle "settle" [BYTEA UUID_ARRAY BYTEA_ARRAY UUID_ARRAY];
    SettleLimited "settle" [BYTEA UUID_ARRAY BYTEA_ARRAY UUID_ARRAY BYTEA_ARRAY];
    Claim "claim" [
        UUID_ARRAY TEXT_ARRAY TEXT_ARRAY TEXT_ARRAY BYTEA_ARRAY UUID_ARRAY INT8_ARRAY INT8_ARRAY
        TEXT_ARRAY INT8_ARRAY TEXT_ARRAY TEXT_ARRAY TEXT_ARRAY
    ];
    ClaimLimited "claim" [
        UUID_ARRAY TEXT_ARRAY TEXT_ARRAY TEXT_ARRAY BYTEA_ARRAY UUID_ARRAY INT8_ARRAY INT8_ARRAY
        TEXT_ARRAY INT8_ARRAY TEXT_ARRAY TEXT_ARRAY TEXT_ARRAY BYTEA_ARRAY UUID_ARRAY UUID_ARRAY
    ];
    ClaimOne "claim_one" [
        UUID TEXT TEXT TEXT BYTEA UUID INT8 INT8 TEXT INT8 TEXT TEXT TEXT
    ];
    CompleteOne "complete_one" [UUID INT8 UUID BYTEA];
    Get "get" [UUID_ARRAY];
    AddCounters "add_counters" [UUID_ARRAY UUID_ARRAY UUID_ARRAY];
    LockCounters "lock_counters" [UUID_ARRAY UUID_ARRAY UUID_ARRAY];
    LockKeys "lock_keys" [UUID_ARRAY];
    ReadCounters "read_counters" [UUID_ARRAY];
    WriteCounters "write_counters" [UUID_ARRAY INT8_ARRAY INT8_ARRAY BYTEA_ARRAY];
    SweepCounters "sweep_counters" [UUID INT8];
    Commit "commit" [];
    Resolve "resolve" [UUID INT8 TEXT BYTEA TEXT];
    Delete "delete" [UUID INT8 TEXT];
    RaiseEpoch "raise_epoch" [];
    RaiseFenceSequence "raise_fence_sequence" [];
    Epoch "epoch" [];
    Size "size" [];
    Usage "usage" [FLOAT8];
    Reap "reap" [BYTEA INT8 INT8];
    SetAside "set_aside" [INT8];
    Sweep "sweep" [INT8];
    List "list" [UUID UUID INT8];
    ListOpen "list_open" [UUID INT8];
    ListClaims "list_claims" [INT8 UUID INT8 INT8 INT8];
    ListReleased "list_released" [INT8 UUID INT8 INT8 INT8];
    Metadata "metadata" [TEXT INT8];
    SetMetadata "set_metadata" [TEXT BYTEA];
    RemoveMetadata "remove_metadata" [TEXT];
}

/// The statements of one store.
#[derive(Debug)]
pub(crate) struct SqlStatements(Vec<String>);

impl SqlStatements {
    pub(crate) fn new(names: &TableNames) -> Self {
        let text = |kind: &StatementKind| fill(&limited(*kind, kind.text()), names);
        Self(StatementKind::ALL.iter().map(text).collect())
    }

    pub(crate) fn sql(&self, kind: StatementKind) -> &str {
        self.0.get(kind as usize).map_or("", String::as_str)
    }
}

/// Fills in what statements on records with velocity limits have besides. The others change no
/// record with a reservation, which costs them a comparison with NULL.
fn limited(kind: StatementKind, sql: &str) -> String {
    let parts: [&str; 4] = if kind == StatementKind::TakeOverLimited {
        [", $11, $12", ", reserved, limits", LIMITS_AS_SEEN, "asked.reserved"]
    } else if kind == StatementKind::TakeOver {
        ["", "", WITHOUT_LIMITS, "NULL"]
    } else if kind == StatementKind::SettleLimited {
        [", $5", ", limits", LIMITS_AS_SEEN, ""]
    } else if kind == StatementKind::ClaimLimited {
        [", $14", ", keys", "", ""]
    } else if [StatementKind::CompleteLimited, StatementKind::ReleaseLimited].contains(&kind) {
        [", $6", ", limits", LIMITS_AS_SEEN, ", r.claimed_at"]
    } else {
        ["", "", WITHOUT_LIMITS, ""]
    };
    let blocked = if kind == StatementKind::ClaimLimited { BLOCKED } else { NOT_BLOCKED };
    let names = ["{limits}", "{limit_columns}", "{limits_as_seen}", "{limits_result}"];
    let filled =
        names.iter().zip(parts).fold(sql.to_owned(), |sql, (name, part)| sql.replace(name, part));
    let names = ["{blocked}", "{is_blocked}", "{limits_column}", "{keys_column}"];
    names.iter().zip(blocked).fold(filled, |sql, (name, part)| sql.replace(name, part))
}

const WITHOUT_LIMITS: &str = "r.limits IS NULL";

const LIMITS_AS_SEEN: &str = "r.limits IS NOT DISTINCT FROM asked.limits";

/// In the statement of claims: the records that a limit without a unit keeps from being inserted,
/// by the counters as they are committed. The final decision is made under their locks.
const BLOCKED: [&str; 4] = [
    "blocked AS MATERIALIZED (
    SELECT DISTINCT pairs.digest
    FROM unnest($15, $16) AS pairs (digest, key)
    JOIN {limit_counters} AS c ON c.key = pairs.key
    WHERE c.full_until > {now_millis}
), ",
    "digest IN (SELECT digest FROM blocked)",
    ", limits",
    ", keys",
];

const NOT_BLOCKED: [&str; 4] = ["", "false", "", ""];

/// The clock of the store in whole milliseconds, as the rules have it.
const NOW_MILLIS: &str = "floor(date_part('epoch', {now}) * 1000)::bigint";

/// Fills the parts and the names of the tables into a statement.
pub(crate) fn fill(sql: &str, names: &TableNames) -> String {
    // How long a record is in flight before it is set aside. By then a claim that was granted is
    // visible, because its writer has waited no longer than the timeout.
    let set_aside_after = format!("interval '{} seconds'", 2 * REPLY_TIMEOUT.as_secs());
    let released_max = format!("interval '{} seconds'", RELEASED_RETENTION_MAX.as_secs());
    let (lease_expired, hold_expired) =
        (format!("'{}'", Reason::LeaseExpired), format!("'{}'", Reason::HoldExpired));
    let parts = [
        ("{settled}", SETTLED),
        ("{fails}", FAILS),
        ("{lease_expired}", &lease_expired),
        ("{hold_expired}", &hold_expired),
        ("{released_max}", &released_max),
        ("{draw}", DRAW),
        ("{fence}", FENCE),
        ("{micros}", MICROS),
        ("{record}", RECORD),
        ("{summary}", SUMMARY),
        ("{expiry}", EXPIRY),
        ("{late}", LATE),
        ("{span}", SPAN),
        ("{notify}", NOTIFY),
        ("{aside}", ASIDE),
        ("{retentions}", RETENTIONS),
        ("{open}", OPEN),
        ("{since}", SINCE),
        ("{aside_after}", &set_aside_after),
        ("{lock_wait_max}", LOCK_WAIT_MAX),
        ("{millisecond}", "interval '1 millisecond'"),
        ("{now_millis}", NOW_MILLIS),
    ];
    let filled = parts.iter().fold(sql.to_owned(), |sql, (name, part)| sql.replace(name, part));
    names.fill(&filled)
}
