//! The counter of one limit: at most `max` units, each with its operation, and their encoding.

use std::time::Duration;

use super::{AnswerTag, Counted, LIMIT_MAX, Limit, LimitEnd, OperationId, TAG_BYTES_MAX};
use crate::{StatusSet, StoreTime, time::millis};

const VERSION: u8 = 1;

/// Bytes of one unit: the operation, and the time with the reservation in its lowest bit.
const UNIT_BYTES: usize = 24;

const EXECUTIONS: u8 = 0;
const COMPLETED: u8 = 1;
const DECLINED: u8 = 2;
const STATUSES: u8 = 3;
const TAG: u8 = 4;

/// Which operations have a unit of a limit. It knows its own settings, so that a reservation can be
/// settled without the configuration that made it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitCounter {
    max: u16,
    window: Duration,
    counted: Counted,
    units: Vec<Unit>,
}

/// A unit of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Unit {
    operation: OperationId,
    /// When the operation last counted; `None` if it only has a reservation.
    counted_at: Option<StoreTime>,
    reserved: bool,
}

/// Stored bytes that are not a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the stored counter of a limit is damaged, or a newer version wrote it")]
pub struct CounterError;

impl LimitCounter {
    /// The counter of a limit that no operation has used.
    #[must_use]
    pub fn new(limit: &Limit) -> Self {
        Self {
            max: limit.max.clamp(1, LIMIT_MAX),
            window: limit.window,
            counted: limit.counted.clone(),
            units: Vec::new(),
        }
    }

    /// Whether the operation has a unit or can reserve one; otherwise when a unit frees, if that is
    /// known.
    pub(super) fn has_room(
        &self,
        operation: OperationId,
        now: StoreTime,
    ) -> Result<(), Option<Duration>> {
        let mut taken: usize = 0;
        for unit in self.units.iter().filter(|unit| self.counts(unit, now)) {
            if unit.operation == operation {
                return Ok(());
            }
            taken = taken.saturating_add(1);
        }
        if taken < usize::from(self.max) { Ok(()) } else { Err(self.frees_in(now)) }
    }

    fn frees_in(&self, now: StoreTime) -> Option<Duration> {
        let settled = self.units.iter().filter(|unit| !unit.reserved && self.counts(unit, now));
        let ends = settled.filter_map(|unit| unit.counted_at.map(|at| at.after(self.window)));
        ends.min().map(|end| end.since(now))
    }

    fn counts(&self, unit: &Unit, now: StoreTime) -> bool {
        unit.reserved || unit.counted_at.is_some_and(|at| now < at.after(self.window))
    }

    /// Reserves a unit. The caller has made sure that there is room.
    pub(super) fn reserve(&mut self, operation: OperationId, now: StoreTime) {
        self.drop_old(now);
        match self.units.iter_mut().find(|unit| unit.operation == operation) {
            Some(unit) => unit.reserved = true,
            None => self.units.push(Unit { operation, counted_at: None, reserved: true }),
        }
    }

    /// Settles the reservation of an operation; returns whether there was one.
    pub(super) fn settle(
        &mut self,
        operation: OperationId,
        end: &LimitEnd,
        now: StoreTime,
    ) -> bool {
        let counts = self.counted.counts(end);
        let at = if self.counted == Counted::Executions { end.claimed_at } else { now };
        let reservation =
            self.units.iter_mut().find(|unit| unit.reserved && unit.operation == operation);
        let Some(unit) = reservation else { return false };
        unit.reserved = false;
        if counts {
            unit.counted_at = unit.counted_at.max(Some(at));
        }
        self.drop_old(now);
        true
    }

    fn drop_old(&mut self, now: StoreTime) {
        let mut units = std::mem::take(&mut self.units);
        units.retain(|unit| self.counts(unit, now));
        self.units = units;
    }

    /// Until when no other operation gets a unit, as long as nothing changes the counter; `None` if
    /// there is room, and the end of time if only an end of an operation frees one. A store may
    /// refuse by it without a lock.
    #[must_use]
    pub fn full_until(&self, now: StoreTime) -> Option<StoreTime> {
        let taken = self.units.iter().filter(|unit| self.counts(unit, now)).count();
        let until = || self.frees_in(now).map_or(END_OF_TIME, |frees_in| now.after(frees_in));
        (taken >= usize::from(self.max)).then(until)
    }

    /// When a sweep may delete the counter; the end of time while an operation has a reservation.
    #[must_use]
    pub fn expires_at(&self) -> StoreTime {
        let end = |unit: &Unit| match unit.counted_at {
            Some(at) if !unit.reserved => at.after(self.window),
            _ => END_OF_TIME,
        };
        self.units.iter().map(end).max().unwrap_or_default()
    }

    /// How many units are remembered; never more than `max`.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.units.len()
    }

    /// Whether no unit is remembered: then the counter need not be stored.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.units.is_empty()
    }

    // === encoding ===

    /// The bytes to store.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out =
            Vec::with_capacity(self.units.len().saturating_mul(UNIT_BYTES).saturating_add(32));
        out.push(VERSION);
        out.extend(self.max.to_be_bytes());
        out.extend(millis(self.window).to_be_bytes());
        match &self.counted {
            Counted::Executions => out.push(EXECUTIONS),
            Counted::Completed => out.push(COMPLETED),
            Counted::Declined => out.push(DECLINED),
            Counted::Statuses(set) => {
                out.push(STATUSES);
                out.extend(u16::try_from(set.iter().count()).unwrap_or(u16::MAX).to_be_bytes());
                set.iter().for_each(|status| out.extend(status.to_be_bytes()));
            }
            Counted::Tag(tag) => {
                out.extend([TAG, u8::try_from(tag.as_str().len()).unwrap_or(u8::MAX)]);
                out.extend(tag.as_str().as_bytes());
            }
        }
        for unit in &self.units {
            out.extend(unit.operation.as_bytes());
            // One more than the time, so that zero is none.
            let at = unit.counted_at.map_or(0, |at| at.as_millis().saturating_add(1));
            let at = at.min(u64::MAX >> 1);
            out.extend((at << 1 | u64::from(unit.reserved)).to_be_bytes());
        }
        out
    }

    /// Reads [`LimitCounter::encode`].
    pub fn decode(bytes: &[u8]) -> Result<Self, CounterError> {
        let mut reader = Reader(bytes);
        if reader.byte()? != VERSION {
            return Err(CounterError);
        }
        let max = u16::from_be_bytes(reader.array()?);
        let window = Duration::from_millis(u64::from_be_bytes(reader.array()?));
        let counted = match reader.byte()? {
            EXECUTIONS => Counted::Executions,
            COMPLETED => Counted::Completed,
            DECLINED => Counted::Declined,
            STATUSES => {
                let count = u16::from_be_bytes(reader.array()?);
                let status = |_| reader.array().map(u16::from_be_bytes);
                let statuses: Result<Vec<u16>, _> = (0..count).map(status).collect();
                Counted::Statuses(StatusSet::new(statuses?))
            }
            TAG => {
                let length = usize::from(reader.byte()?).min(TAG_BYTES_MAX);
                let tag = std::str::from_utf8(reader.take(length)?).map_err(|_| CounterError)?;
                Counted::Tag(AnswerTag::new(tag).ok_or(CounterError)?)
            }
            _ => return Err(CounterError),
        };
        let (units, rest) = reader.0.as_chunks::<UNIT_BYTES>();
        if !rest.is_empty() || units.len() > usize::from(max) || max > LIMIT_MAX {
            return Err(CounterError);
        }
        let units = units.iter().map(|unit| Unit::decode(unit)).collect::<Result<_, _>>()?;
        Ok(Self { max, window, counted, units })
    }
}

const END_OF_TIME: StoreTime = StoreTime::from_millis(u64::MAX);

impl Unit {
    fn decode(bytes: &[u8]) -> Result<Self, CounterError> {
        let mut reader = Reader(bytes);
        let operation = OperationId::from_bytes(reader.array()?);
        let packed = u64::from_be_bytes(reader.array()?);
        let counted_at = (packed >> 1).checked_sub(1).map(StoreTime::from_millis);
        Ok(Self { operation, counted_at, reserved: packed & 1 == 1 })
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], CounterError> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(CounterError)?;
        self.0 = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, CounterError> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], CounterError> {
        self.take(N)?.try_into().map_err(|_| CounterError)
    }
}
