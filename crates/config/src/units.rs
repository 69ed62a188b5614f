//! Durations and sizes, always with their unit: `"30s"`, `"64KiB"`.

use std::time::Duration;

use semel::core::LEASE_MIN;
use serde_json::{Value, json};

use super::{read::FromText, suggest};

/// The longest duration; a longer one is a typo.
const TIME_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// No size is larger than a tebibyte.
const SIZE_MAX: u64 = 1 << 40;

/// An hour, in milliseconds.
const HOUR: u64 = 60 * 60 * 1000;

/// The largest body that is kept in memory.
const BODY_BYTES_MAX: usize = 64 << 20;

/// The smallest buffer for a head that hyper takes.
const HEAD_BYTES_MIN: usize = 8 << 10;

/// The largest head: one of each connection may be in memory.
const HEAD_BYTES_MAX: usize = 1 << 20;

/// The units of time, in milliseconds.
const TIMES: [(&str, u64); 5] =
    [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// The units of size, in bytes.
const SIZES: [(&str, u64); 4] = [("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];

/// A duration longer than zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PositiveDuration(pub(super) Duration);

/// A duration that may be zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AnyDuration(pub(super) Duration);

/// A duration with bounds, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BoundedDuration<const MIN: u64, const MAX: u64>(pub(super) Duration);

/// A lease: long enough to survive a pause of the machine, short enough to detect a crash.
pub(super) type LeaseDuration = BoundedDuration<100, HOUR>;

const _: () = assert!(LEASE_MIN.as_millis() == 100, "the shortest lease is said in two places");

/// How long a retry may wait: no client or proxy waits longer.
pub(super) type WaitDuration = BoundedDuration<0, HOUR>;

/// The timeout of a claim: long enough for a commit, and no client waits longer.
pub(super) type StoreTimeout = BoundedDuration<100, 60_000>;

/// The sweep interval: not continuous, and not so rare that the store fills up.
pub(super) type SweepInterval = BoundedDuration<1000, { 7 * 24 * HOUR }>;

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ByteSize(pub(super) u64);

/// The limit of a body that is kept in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BodyLimit(pub(super) usize);

/// The limit of a request's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeadLimit(pub(super) usize);

impl FromText for PositiveDuration {
    const EXPECTED: &'static str =
        "a duration with its unit: \"500ms\", \"30s\", \"24h\" or \"7d\"";

    fn parse(text: &str) -> Result<Self, String> {
        match AnyDuration::parse(text)?.0 {
            Duration::ZERO => Err("this must be longer than 0s".to_owned()),
            time => Ok(Self(time)),
        }
    }

    fn schema() -> Value {
        <AnyDuration as FromText>::schema()
    }
}

impl FromText for AnyDuration {
    const EXPECTED: &'static str = PositiveDuration::EXPECTED;

    fn parse(text: &str) -> Result<Self, String> {
        let time = measure(text, &TIMES, Self::EXPECTED)?;
        let time = Duration::from_millis(time);
        if time > TIME_MAX {
            Err("this is longer than ten years".to_owned())
        } else {
            Ok(Self(time))
        }
    }

    fn schema() -> Value {
        json!({ "pattern": "^[0-9]+(ms|s|m|h|d)$" })
    }
}

impl FromText for ByteSize {
    const EXPECTED: &'static str =
        "a size with its unit: \"512B\", \"64KiB\", \"1MiB\" or \"2GiB\"";

    fn parse(text: &str) -> Result<Self, String> {
        match measure(text, &SIZES, Self::EXPECTED)? {
            size if size > SIZE_MAX => Err("this is larger than 1024 GiB".to_owned()),
            size => Ok(Self(size)),
        }
    }

    fn schema() -> Value {
        json!({ "pattern": "^[0-9]+(B|KiB|MiB|GiB)$" })
    }
}

impl<const MIN: u64, const MAX: u64> FromText for BoundedDuration<MIN, MAX> {
    const EXPECTED: &'static str = PositiveDuration::EXPECTED;

    fn parse(text: &str) -> Result<Self, String> {
        let AnyDuration(time) = AnyDuration::parse(text)?;
        let (least, most) = (Duration::from_millis(MIN), Duration::from_millis(MAX));
        if (least..=most).contains(&time) {
            Ok(Self(time))
        } else {
            Err(format!("this must be from {} to {}", time_text(least), time_text(most)))
        }
    }

    fn schema() -> Value {
        <AnyDuration as FromText>::schema()
    }
}

impl FromText for BodyLimit {
    const EXPECTED: &'static str = ByteSize::EXPECTED;

    fn parse(text: &str) -> Result<Self, String> {
        match usize::try_from(ByteSize::parse(text)?.0) {
            Ok(bytes @ 1..=BODY_BYTES_MAX) => Ok(Self(bytes)),
            _ => Err("a body's limit is from 1B to 64MiB".to_owned()),
        }
    }

    fn schema() -> Value {
        <ByteSize as FromText>::schema()
    }
}

impl FromText for HeadLimit {
    const EXPECTED: &'static str = ByteSize::EXPECTED;

    fn parse(text: &str) -> Result<Self, String> {
        match usize::try_from(ByteSize::parse(text)?.0) {
            Ok(bytes @ HEAD_BYTES_MIN..=HEAD_BYTES_MAX) => Ok(Self(bytes)),
            _ => Err("the limit of a request's head is from 8KiB to 1MiB".to_owned()),
        }
    }

    fn schema() -> Value {
        <ByteSize as FromText>::schema()
    }
}

/// A duration as it is written anywhere.
pub fn duration(text: &str) -> Result<Duration, String> {
    AnyDuration::parse(text).map(|time| time.0)
}

/// A number and its unit, in the smallest unit.
fn measure(text: &str, units: &[(&str, u64)], expected: &str) -> Result<u64, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    if number.is_empty() {
        return Err(format!("this is not a number; write {expected}"));
    }
    if unit.is_empty() {
        return Err(format!("the unit is missing; write {expected}"));
    }
    let Some((_, factor)) = units.iter().find(|(name, _)| *name == unit) else {
        let names: Vec<&str> = units.iter().map(|(name, _)| *name).collect();
        let likely = match unit.trim().to_ascii_lowercase().as_str() {
            "kb" | "k" | "kib" => Some("KiB"),
            "mb" | "m" | "mib" => Some("MiB"),
            "gb" | "g" | "gib" => Some("GiB"),
            "s" | "sec" | "secs" | "second" | "seconds" => Some("s"),
            "min" | "mins" | "minute" | "minutes" => Some("m"),
            "h" | "hour" | "hours" => Some("h"),
            "d" | "day" | "days" => Some("d"),
            _ => None,
        };
        let likely = likely.filter(|likely| names.contains(likely));
        let hint = likely.map(|unit| format!("; did you mean `{number}{unit}`?"));
        let units = suggest::listed(&names);
        return Err(format!("the unit must be {units}{}", hint.unwrap_or_default()));
    };
    let number = number.parse::<u64>().ok().and_then(|number| number.checked_mul(*factor));
    number.ok_or_else(|| "this is too large".to_owned())
}

/// A duration as it is written in a configuration.
pub fn time_text(time: Duration) -> String {
    let milliseconds = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    // A day is written as hours, as people say "24 hours" of it.
    let unit = |(name, factor): &&(&str, u64)| {
        milliseconds.is_multiple_of(*factor) && (*name != "d" || milliseconds > *factor)
    };
    if milliseconds == 0 {
        return "0s".to_owned();
    }
    match TIMES.iter().rev().find(unit) {
        Some((name, factor)) => format!("{}{name}", milliseconds / factor),
        None => format!("{milliseconds}ms"),
    }
}

/// A size as it is written in a configuration.
pub(super) fn size_text(bytes: u64) -> String {
    let unit = SIZES.iter().rev().find(|(_, factor)| bytes != 0 && bytes.is_multiple_of(*factor));
    match unit {
        Some((name, factor)) => format!("{}{name}", bytes / factor),
        None => format!("{bytes}B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_reads_back_as_it_was_written() {
        for text in ["500ms", "30s", "90s", "5m", "24h", "36h", "7d", "0s", "1001ms"] {
            assert_eq!(time_text(AnyDuration::parse(text).unwrap().0), text);
        }
        assert_eq!(time_text(AnyDuration::parse("60s").unwrap().0), "1m");
    }

    #[test]
    fn a_size_reads_back_as_it_was_written() {
        for text in ["0B", "1B", "1000B", "64KiB", "1MiB", "3GiB", "1025KiB"] {
            assert_eq!(size_text(ByteSize::parse(text).unwrap().0), text);
        }
    }

    #[test]
    fn missing_and_unknown_units_are_refused() {
        let units = "the unit must be `ms`, `s`, `m`, `h` or `d`";
        for (text, message) in [
            ("0s", "this must be longer than 0s"),
            ("30", &format!("the unit is missing; write {}", PositiveDuration::EXPECTED)),
            ("", &format!("this is not a number; write {}", PositiveDuration::EXPECTED)),
            ("30 s", &format!("{units}; did you mean `30s`?")),
            ("30 x", units),
            ("2min", &format!("{units}; did you mean `2m`?")),
            ("3651d", "this is longer than ten years"),
            ("99999999999999999999s", "this is too large"),
        ] {
            assert_eq!(PositiveDuration::parse(text).unwrap_err(), message, "{text}");
        }
        assert_eq!(
            ByteSize::parse("1MB").unwrap_err(),
            "the unit must be `B`, `KiB`, `MiB` or `GiB`; did you mean `1MiB`?"
        );
        assert!(ByteSize::parse("1025GiB").is_err());
    }
}
