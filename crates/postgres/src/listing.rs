//! Listings: the statement, the order and the end of a page.
//!
//! A key, a state other than *completed*, and a time are found by an index. All other listings scan
//! the records in the order of their digests, a bounded number for each page.

use semel_core::{Cursor, ListQuery, Page, StateName, StoreError, Summary, rules};
use tokio_postgres::Row;

use crate::{
    digest::Digest,
    row::{self, milliseconds},
    session::BoxedParameter,
    statements::StatementKind,
};

/// How many records one page examines.
const EXAMINED_MAX: u32 = 2000;

/// The bits of a cursor that order records claimed in the same microsecond: the first bits of
/// their digests. The other bits are the time, until the year 2112.
const TIE_BITS: u32 = 12;

/// How the records of a query are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListPlan {
    /// By their digests: all of them, or those of a key.
    Digests,
    /// Unfinished records, by their digests.
    Open,
    /// By the times of their claims.
    Claims,
    /// Released records, by the times of their claims.
    Released,
}

impl ListPlan {
    pub(crate) const fn of(query: &ListQuery) -> Self {
        let by_time = !query.age_min.is_zero() || query.age_max.is_some();
        match query.state {
            _ if query.key.is_some() => Self::Digests,
            Some(StateName::InFlight | StateName::Held) => Self::Open,
            _ if query.lapsed => Self::Open,
            Some(StateName::Released) => Self::Released,
            Some(StateName::Completed) | None if by_time => Self::Claims,
            Some(StateName::Completed) | None => Self::Digests,
        }
    }

    pub(crate) const fn statement(self) -> StatementKind {
        match self {
            Self::Digests => StatementKind::List,
            Self::Open => StatementKind::ListOpen,
            Self::Claims => StatementKind::ListClaims,
            Self::Released => StatementKind::ListReleased,
        }
    }

    /// Whether the statement uses more than the primary key.
    pub(crate) const fn needs_planning(self) -> bool {
        !matches!(self, Self::Digests)
    }

    const fn is_by_time(self) -> bool {
        matches!(self, Self::Claims | Self::Released)
    }

    pub(crate) fn parameters(self, query: &ListQuery) -> Vec<BoxedParameter<'static>> {
        let looks = Box::new(i64::from(EXAMINED_MAX));
        if self.is_by_time() {
            let (after, digest) = query.after.map_or((0, Digest::default()), decode_cursor);
            let age_max = query.age_max.map(milliseconds);
            let age_min = milliseconds(query.age_min);
            let (after, digest) = (Box::new(after), Box::new(digest));
            return vec![after, digest, Box::new(age_max), Box::new(age_min), looks];
        }
        let after = query.after.map_or(Digest::default(), |cursor| Digest::last_of(cursor.0));
        if self == Self::Open {
            return vec![Box::new(after), looks];
        }
        let key = query.key.as_ref().map(|key| Digest::range_of(key.as_str()));
        let (first, last) = key.unwrap_or((Digest::default(), Digest([0xff; 16])));
        vec![Box::new(after.max(first)), Box::new(last), looks]
    }

    /// The position of a record in the order of the listing.
    fn position(self, row: &Row) -> Result<u64, StoreError> {
        let digest = row::digest(row)?;
        if !self.is_by_time() {
            return Ok(digest.head());
        }
        let micros = row::claimed_micros(row)?;
        Ok(micros << TIE_BITS | digest.head() >> (u64::BITS - TIE_BITS))
    }

    /// Makes a page of the rows of a statement. A page does not end between two records of one
    /// position, because the next page starts after all of them.
    pub(crate) fn page(self, query: &ListQuery, rows: &[Row]) -> Result<Page, StoreError> {
        let positions: Result<Vec<u64>, _> = rows.iter().map(|row| self.position(row)).collect();
        let (positions, mut rest) = (positions?, rows.iter());
        let limit = usize::try_from(EXAMINED_MAX).unwrap_or(usize::MAX);
        let is_last = rows.len() < limit;
        // The records of the last microsecond may be incomplete.
        let shift = if self.is_by_time() { TIE_BITS } else { 0 };
        let whole = if is_last { rows.len() } else { before_last(&positions, shift) };
        let size = usize::try_from(query.page_size()).unwrap_or(usize::MAX);
        let line = |row| summary(row).map(|line| line.filter(|record| query.takes(record)));
        let (mut lines, mut full) = (Vec::new(), 0);
        while full < size && lines.len() < whole {
            let Some(line) = rest.next().map(line).transpose()? else { break };
            full += usize::from(line.is_some());
            lines.push(line);
        }
        let end = end_of_page(&positions, lines.len(), whole);
        lines.truncate(end);
        for row in rest.take(end.saturating_sub(lines.len())) {
            lines.push(line(row)?);
        }
        let next = if is_last && end == rows.len() { None } else { end.checked_sub(1) };
        let next = next.and_then(|last| positions.get(last)).copied().map(Cursor);
        let examined = u64::try_from(end).unwrap_or(u64::MAX);
        Ok(Page::new(lines.into_iter().flatten().collect(), next, examined))
    }
}

/// The time of a cursor in microseconds, and the last digest that it stands for.
fn decode_cursor(Cursor(cursor): Cursor) -> (i64, Digest) {
    let micros = i64::try_from(cursor >> TIE_BITS).unwrap_or(i64::MAX);
    let rest = u64::MAX >> TIE_BITS;
    (micros, Digest::last_of(cursor << (u64::BITS - TIE_BITS) | rest))
}

/// How many positions come before the last group of equal ones, without their last bits; all, if
/// they are one group.
fn before_last(positions: &[u64], bits: u32) -> usize {
    let Some(last) = positions.last().map(|last| last >> bits) else { return 0 };
    let before = positions.iter().take_while(|position| **position >> bits < last).count();
    if before == 0 { positions.len() } else { before }
}

/// Where a page ends that would end after `taken` of `whole` positions: before the group that would
/// be cut, or after it, if it is the first.
fn end_of_page(positions: &[u64], taken: usize, whole: usize) -> usize {
    let (head, tail) = positions.get(..whole).unwrap_or(positions).split_at(taken.min(whole));
    let (Some(last), Some(next)) = (head.last(), tail.first()) else { return taken };
    if last != next {
        return taken;
    }
    match head.iter().take_while(|position| *position < last).count() {
        0 => taken + tail.iter().take_while(|position| *position == last).count(),
        before => before,
    }
}

/// A line of a listing; `None` for a record that counts as absent.
fn summary(row: &Row) -> Result<Option<Summary>, StoreError> {
    let Some((record, now)) = row::record(row)? else { return Ok(None) };
    let id = row::id(row)?;
    Ok(rules::view(Some(&record), now).map(|seen| Summary::new(id, seen)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_page_ends_before_or_after_a_group_and_never_within() {
        let positions = [1, 2, 2, 2, 3];
        let end = |taken| end_of_page(&positions, taken, positions.len());
        assert_eq!([1, 2, 3, 4, 5].map(end), [1, 1, 1, 4, 5]);
        assert_eq!(end_of_page(&[7, 7, 7, 8], 1, 4), 3, "a first group is not split");
        assert_eq!(end_of_page(&[7, 7, 7, 8], 1, 2), 2, "an incomplete group is left out");
        assert_eq!(end_of_page(&[], 0, 0), 0);
    }

    #[test]
    fn the_last_group_may_be_incomplete() {
        assert_eq!(before_last(&[1, 2, 3, 3], 0), 2);
        assert_eq!(before_last(&[3, 3], 0), 2, "nothing else could be listed");
        assert_eq!(before_last(&[0x10, 0x21, 0x22], 4), 1);
        assert_eq!(before_last(&[], 0), 0);
    }

    #[test]
    fn a_cursor_by_time_holds_a_time_and_the_first_bits_of_digests() {
        let (micros, digest) = decode_cursor(Cursor(1_794_996_199_270_692 << TIE_BITS | 0xabc));
        assert_eq!(micros, 1_794_996_199_270_692);
        assert_eq!(digest.0[..3], [0xab, 0xcf, 0xff]);
        assert_eq!(digest.0[15], 0xff);
    }

    #[test]
    fn a_query_with_an_index_uses_it() {
        let of = |change: fn(&mut ListQuery)| {
            let mut query = ListQuery::new();
            change(&mut query);
            ListPlan::of(&query)
        };
        assert_eq!(of(|_| {}), ListPlan::Digests);
        assert_eq!(of(|it| it.lapsed = true), ListPlan::Open);
        assert_eq!(of(|it| it.state = Some(StateName::Held)), ListPlan::Open);
        assert_eq!(of(|it| it.state = Some(StateName::Released)), ListPlan::Released);
        assert_eq!(of(|it| it.state = Some(StateName::Completed)), ListPlan::Digests);
        assert_eq!(of(|it| it.age_min = Duration::from_secs(1)), ListPlan::Claims);
        assert_eq!(of(|it| it.age_max = Some(Duration::ZERO)), ListPlan::Claims);
    }
}
