//! Conversion between rows and records.

use std::{error::Error, time::Duration};

use bytes::Bytes;
use semel_core::{
    About, Answer, Caller, Captured, Claimant, Fence, Fingerprint, Key, NodeName, Occupied,
    OnUnknown, OwnerToken, Reason, Record, RecordId, Release, Scope, State, StoreError, StoreTime,
    limit::LimitKeys, time::millis,
};
use tokio_postgres::{
    Row,
    types::{FromSql, Type},
};

use crate::{digest::Digest, error::corrupt};

/// The longest duration: its microseconds are still exact in the floating point with which
/// PostgreSQL multiplies intervals.
const DURATION_MAX: Duration = Duration::from_secs(250 * 365 * 24 * 60 * 60);

/// Milliseconds from 1970 to PostgreSQL's own origin, the year 2000.
const ORIGIN_MILLIS: i64 = 946_684_800_000;

/// A duration as a parameter of a statement.
pub(crate) fn milliseconds(duration: Duration) -> i64 {
    i64::try_from(millis(duration.min(DURATION_MAX))).unwrap_or(i64::MAX)
}

/// A retention as the table stores it, rounded up by at most a sixtieth. Maintenance scans the
/// records of each retention separately, so there must not be many distinct ones.
pub(crate) fn rounded_retention(retention: Duration) -> i64 {
    let whole = milliseconds(retention);
    let [second, minute, hour] = [1000, 60 * 1000, 60 * 60 * 1000];
    let unit = match whole {
        whole if whole > 60 * hour => hour,
        whole if whole > hour => minute,
        whole if whole > minute => second,
        _ => 1,
    };
    whole.saturating_add(unit - 1) / unit * unit
}

/// A fence as the table stores it.
pub(crate) fn fence_number(fence: Fence) -> i64 {
    i64::try_from(fence.get()).unwrap_or(i64::MAX)
}

pub(crate) const fn on_unknown_text(on_unknown: OnUnknown) -> &'static str {
    match on_unknown {
        OnUnknown::Hold => "hold",
        OnUnknown::Rerun => "rerun",
        OnUnknown::Fail => "fail",
    }
}

/// A release as a parameter of its statement.
pub(crate) const fn release_text(release: Release) -> &'static str {
    match release {
        Release::NotSent => "not_sent",
        Release::Refused => "refused",
        Release::Rerun => "rerun",
    }
}

/// A time of the database's clock, in milliseconds since 1970.
pub(crate) struct TimestampMillis(pub(crate) StoreTime);

impl FromSql<'_> for TimestampMillis {
    fn from_sql(_: &Type, raw: &[u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        let millis = i64::from_be_bytes(raw.try_into()?).div_euclid(1000);
        let millis = u64::try_from(millis.saturating_add(ORIGIN_MILLIS)).unwrap_or(0);
        Ok(Self(StoreTime::from_millis(millis)))
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::TIMESTAMPTZ
    }
}

/// A time of the database's clock, in microseconds since 1970.
struct TimestampMicros(u64);

impl FromSql<'_> for TimestampMicros {
    fn from_sql(_: &Type, raw: &[u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        let micros = i64::from_be_bytes(raw.try_into()?).saturating_add(ORIGIN_MILLIS * 1000);
        Ok(Self(u64::try_from(micros).unwrap_or(0)))
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::TIMESTAMPTZ
    }
}

/// When the record was claimed, with the precision of the table.
pub(crate) fn claimed_micros(row: &Row) -> Result<u64, StoreError> {
    column::<TimestampMicros>(row, 6, "claimed_at").map(|micros| micros.0)
}

/// Reads a column.
pub(crate) fn column<'a, T: FromSql<'a>>(
    row: &'a Row,
    at: usize,
    what: &str,
) -> Result<T, StoreError> {
    row.try_get(at).map_err(|_| corrupt(what))
}

/// The digest of a row.
pub(crate) fn digest(row: &Row) -> Result<Digest, StoreError> {
    column(row, 0, "a digest")
}

/// Reads a fence.
pub(crate) fn fence(row: &Row, at: usize) -> Result<Fence, StoreError> {
    let number: i64 = column(row, at, "a fence")?;
    u64::try_from(number).ok().and_then(Fence::new).ok_or_else(|| corrupt("a fence"))
}

/// Whether a claim was left out because a counter of a limit is full.
pub(crate) fn is_blocked(row: &Row) -> Result<bool, StoreError> {
    column::<Option<i64>>(row, 1, "a fence").map(|fence| fence.is_none())
}

/// Reads an attempt.
pub(crate) fn attempt(row: &Row, at: usize) -> Result<u32, StoreError> {
    let attempt: i32 = column(row, at, "an attempt")?;
    u32::try_from(attempt).map_err(|_| corrupt("an attempt"))
}

/// The record, and the time at which it was read; `None` for the row of a claim that was inserted.
pub(crate) fn record(row: &Row) -> Result<Option<(Record, StoreTime)>, StoreError> {
    let Some(state) = column::<Option<&str>>(row, 10, "a state")? else { return Ok(None) };
    let millis = |number: i64| Duration::from_millis(u64::try_from(number).unwrap_or(0));
    let owner = OwnerToken::from_bytes(column::<Digest>(row, 9, "an owner")?.0);
    let by = Claimant::new(fence(row, 1)?, owner);
    let claimed_at = column::<TimestampMillis>(row, 6, "claimed_at")?.0;
    let mut record = Record::new(by, claimed_at, self::state(row, state)?);
    record.fingerprint = match column::<Option<&[u8]>>(row, 2, "a fingerprint")? {
        None => None,
        Some(bytes) => Some(Fingerprint::from_bytes(bytes).map_err(|_| corrupt("a fingerprint"))?),
    };
    record.attempt = attempt(row, 3)?;
    record.on_unknown = match column(row, 4, "on_unknown")? {
        "hold" => OnUnknown::Hold,
        "rerun" => OnUnknown::Rerun,
        "fail" => OnUnknown::Fail,
        _ => return Err(corrupt("on_unknown")),
    };
    record.retention = millis(column(row, 5, "a retention")?);
    record.expires_at = column::<TimestampMillis>(row, 7, "expires_at")?.0;
    record.hold_for = column::<Option<i64>>(row, 12, "hold_for")?.map(millis);
    record.ended_at = column::<Option<TimestampMillis>>(row, 13, "ended_at")?.map(|at| at.0);
    record.about = About::new(column(row, 14, "about")?);
    record.node = NodeName::new(column(row, 15, "a node")?);
    record.captured = Captured::from_stored(column(row, 16, "captured values")?);
    record.reason = column::<Option<&str>>(row, 17, "a reason")?.map(Reason::from_stored);
    // A record that has ended keeps the column, and has settled its reservations.
    if matches!(record.state, State::InFlight { .. } | State::Held)
        && let Some(keys) = column::<Option<&[u8]>>(row, 18, "limits")?
    {
        record.limits = LimitKeys::from_bytes(keys).ok_or_else(|| corrupt("limits"))?;
    }
    Ok(Some((record, column::<TimestampMillis>(row, 19, "the time")?.0)))
}

fn state(row: &Row, name: &str) -> Result<State, StoreError> {
    Ok(match name {
        "in_flight" => {
            State::InFlight { lease_until: column::<TimestampMillis>(row, 8, "lease_until")?.0 }
        }
        "completed" => State::Completed(match column::<Option<&[u8]>>(row, 11, "an answer")? {
            Some(bytes) => Answer::from_stored(Bytes::copy_from_slice(bytes))
                .map_err(|error| corrupt("an answer").because(error))?,
            // A listing does not read the answer.
            None => Answer::failed(),
        }),
        "released" => State::Released,
        "held" => State::Held,
        _ => return Err(corrupt("a state")),
    })
}

/// What a claim found after it settled a record whose lease had expired.
pub(crate) fn settled(row: &Row) -> Result<Occupied, StoreError> {
    let expires_at = column::<TimestampMillis>(row, 2, "expires_at")?.0;
    let now = column::<TimestampMillis>(row, 3, "the time")?.0;
    match column(row, 1, "a state")? {
        "held" => Ok(Occupied::Held),
        _ => {
            Ok(Occupied::Completed { answer: Answer::failed(), expires_in: expires_at.since(now) })
        }
    }
}

/// The id of the record in a row of a listing.
pub(crate) fn id(row: &Row) -> Result<RecordId, StoreError> {
    let scope = Scope::new(column(row, 20, "a scope")?).map_err(|_| corrupt("a scope"))?;
    let caller = Caller::from_stored(column(row, 21, "a caller")?);
    let key = Key::new(column(row, 22, "a key")?).map_err(|_| corrupt("a key"))?;
    Ok(RecordId::new(scope, caller.map_err(|_| corrupt("a caller"))?, key))
}
