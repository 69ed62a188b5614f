//! Times in the spellings that exports have, as microseconds since 1970.

use jiff::{Timestamp, civil::DateTime, tz::TimeZone};

/// Reads a time: RFC 3339, `2026-03-01 10:00:00.123` with or without an offset, or the seconds or
/// milliseconds since 1970. Without an offset it is UTC: only the time between two counts here.
pub(super) fn read(text: &str) -> Result<i64, String> {
    let text = text.trim();
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if !whole.is_empty() && all_digits(whole) && all_digits(fraction) {
        return unix(whole, fraction).map_err(|why| wrong(text, why));
    }
    // A date alone would make equal orders of one day look as if they came at once.
    if !text.contains(':') {
        return Err(wrong(text, "cannot be read"));
    }
    let text = &joined(text);
    if let Ok(time) = text.parse::<Timestamp>() {
        return Ok(time.as_microsecond());
    }
    let time = text.parse::<DateTime>().ok();
    let zoned = time.and_then(|time| time.to_zoned(TimeZone::UTC).ok());
    zoned.map(|time| time.timestamp().as_microsecond()).ok_or_else(|| wrong(text, "cannot be read"))
}

/// A time with its offset right behind it: `10:00:00 -0500` is `10:00:00-0500`, and what is UTC
/// says no more than what has no offset.
fn joined(text: &str) -> String {
    let text = text.strip_suffix("UTC").map_or(text, str::trim_end);
    match text.rsplit_once(' ') {
        Some((time, offset)) if offset.starts_with(['+', '-', 'Z']) => {
            format!("{}{offset}", time.trim_end())
        }
        _ => text.to_owned(),
    }
}

/// Seconds from 1973 until the year 5138, milliseconds from 1973 until 2286, or why it is neither.
/// What has fewer digits is days or a date, not an order of 1970.
fn unix(whole: &str, fraction: &str) -> Result<i64, &'static str> {
    if is_date(whole) {
        return Err("reads as a date without separators");
    }
    let per_unit = match whole.len() {
        ..9 => return Err("is too small for seconds since 1970, and may be days of a spreadsheet"),
        9..=11 => 1_000_000,
        12..=13 => 1_000,
        _ => return Err("is too large for milliseconds since 1970"),
    };
    let six: String = fraction.chars().chain("000000".chars()).take(6).collect();
    let number: i64 = whole.parse().map_err(|_| "cannot be read")?;
    let millionths: i64 = six.parse().map_err(|_| "cannot be read")?;
    Ok(number * per_unit + millionths * per_unit / 1_000_000)
}

/// Whether these digits are YYYYMMDD, YYYYMMDDHHMM or YYYYMMDDHHMMSS of a year in which orders are
/// dated. With twelve digits that could be milliseconds too, but only of the seventies.
fn is_date(digits: &str) -> bool {
    let part = |from: usize, to: usize, least: u32, most: u32| {
        let part = digits.get(from..to).map(str::parse::<u32>);
        matches!(part, Some(Ok(number)) if (least..=most).contains(&number))
    };
    let time = match digits.len() {
        8 => true,
        12 => part(8, 10, 0, 23) && part(10, 12, 0, 59),
        14 => part(8, 10, 0, 23) && part(10, 12, 0, 59) && part(12, 14, 0, 60),
        _ => false,
    };
    time && part(0, 4, 1900, 2199) && part(4, 6, 1, 12) && part(6, 8, 1, 31)
}

fn all_digits(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

fn wrong(text: &str, why: &str) -> String {
    format!(
        "the time `{text}` {why}: write 2026-03-01T10:00:00Z, 2026-03-01 10:00:00, or the seconds \
         or milliseconds since 1970"
    )
}

/// A time for people, to the second.
pub(super) fn show(microseconds: i64) -> String {
    let second = microseconds.div_euclid(1_000_000);
    Timestamp::from_second(second).map_or_else(|_| second.to_string(), |time| time.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_moment_has_many_spellings() {
        for text in [
            "2026-03-01T10:00:00.5Z",
            "2026-03-01t12:00:00.500+02:00",
            "2026-03-01 10:00:00.5",
            "2026-03-01 10:00:00.500000Z",
            "2026-03-01 05:00:00.5-05:00",
            "2026-03-01 10:00:00.5+00",
            "2026-03-01 10:00:00.5 UTC",
            "2026-03-01 10:00:00.5 Z",
            "2026-03-01 10:00:00.5 +0000 UTC",
            "2026-03-01 05:00:00.5 -0500",
            "2026-03-01 05:00:00.5-0500",
            "2026-03-01T15:30:00.5+0530",
            "2026-03-01 05:00:00.5 -05:00",
            "2026-03-01 05:00:00.5 -05",
            "1772359200.5",
            "1772359200500",
            " 1772359200.500 ",
        ] {
            assert_eq!(read(text), Ok(1_772_359_200_500_000), "{text}");
        }
        assert_eq!(read("2026-03-01 10:00"), Ok(1_772_359_200_000_000));
        assert_eq!(read("2026-03-01 05:00 -0500"), Ok(1_772_359_200_000_000));
        assert_eq!(read("100000000"), Ok(100_000_000_000_000), "of 1973");
        assert_eq!(read("999999999000"), Ok(999_999_999_000_000), "of 2001");
        assert_eq!(show(1_772_359_200_500_000), "2026-03-01T10:00:00Z");
    }

    #[test]
    fn invalid_times_and_bare_dates_are_refused() {
        for text in [
            "",
            ".",
            "2026-03-01",
            "20260301T1000000",
            "03/01/2026 10:00",
            "yesterday 10:00",
            "-5",
            "1.5.2",
            "2026-13-01 10:00:00",
            "2026-03-01 10:00:00 EST",
            "2026-03-01 10:00:00 -99",
            "10:00 -0500",
            "UTC",
        ] {
            assert!(read(text).unwrap_err().contains("cannot be read"), "{text}");
        }
    }

    #[test]
    fn a_number_that_is_no_unix_time_is_refused_with_what_it_may_be() {
        let date = "reads as a date without separators: write 2026-03-01T10:00:00Z";
        let small = "is too small for seconds since 1970, and may be days of a spreadsheet: write";
        for (text, why) in [
            ("20260301", date),
            ("202603011005", date),
            ("20260301100500", date),
            ("20260301100500.25", date),
            ("46082", small),
            ("46082.4167", small),
            ("20261301", small),
            ("0", small),
            ("99999999", small),
            ("177235920050000000", "is too large for milliseconds since 1970"),
            ("17723592005000", "is too large for milliseconds since 1970"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(&format!("`{text}` {why}")), "{error}");
        }
    }
}
