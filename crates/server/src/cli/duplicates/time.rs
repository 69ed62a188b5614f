//! Times in the spellings that exports have, as microseconds since 1970.

use jiff::{Timestamp, civil::DateTime, tz::TimeZone};

/// Reads a time: RFC 3339, `2026-03-01 10:00:00.123` with or without an offset, or the seconds or
/// milliseconds since 1970. Without an offset it is UTC: only the time between two counts here.
pub(super) fn read(text: &str) -> Result<i64, String> {
    let text = text.trim();
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !whole.is_empty() && digits(whole) && digits(fraction) {
        return unix(whole, fraction).ok_or_else(|| wrong(text));
    }
    // A date alone would make equal orders of one day look as if they came at once.
    if !text.contains(':') {
        return Err(wrong(text));
    }
    if let Ok(time) = text.parse::<Timestamp>() {
        return Ok(time.as_microsecond());
    }
    let time = text.parse::<DateTime>().ok();
    let zoned = time.and_then(|time| time.to_zoned(TimeZone::UTC).ok());
    zoned.map(|time| time.timestamp().as_microsecond()).ok_or_else(|| wrong(text))
}

/// Seconds until the year 5138, milliseconds from 1973 on.
fn unix(whole: &str, fraction: &str) -> Option<i64> {
    let number: i64 = whole.parse().ok()?;
    let per_unit = match whole.len() {
        ..=11 => 1_000_000,
        12..=14 => 1_000,
        _ => return None,
    };
    let six: String = fraction.chars().chain("000000".chars()).take(6).collect();
    let millionths: i64 = six.parse().ok()?;
    Some(number * per_unit + millionths * per_unit / 1_000_000)
}

fn wrong(text: &str) -> String {
    format!(
        "the time `{text}` cannot be read: write 2026-03-01T10:00:00Z, 2026-03-01 10:00:00, or \
         the seconds or milliseconds since 1970"
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
            "1772359200.5",
            "1772359200500",
            " 1772359200.500 ",
        ] {
            assert_eq!(read(text), Ok(1_772_359_200_500_000), "{text}");
        }
        assert_eq!(read("2026-03-01 10:00"), Ok(1_772_359_200_000_000));
        assert_eq!(read("0"), Ok(0));
        assert_eq!(show(1_772_359_200_500_000), "2026-03-01T10:00:00Z");
    }

    #[test]
    fn what_is_no_time_or_only_a_date_is_refused() {
        for text in [
            "",
            ".",
            "2026-03-01",
            "20260301T1000000",
            "03/01/2026 10:00",
            "yesterday 10:00",
            "-5",
            "1.5.2",
            "177235920050000000",
            "2026-13-01 10:00:00",
        ] {
            assert!(read(text).unwrap_err().contains("cannot be read"), "{text}");
        }
    }
}
