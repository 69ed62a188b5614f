//! Points in time as operators write and read them.

use std::{fmt, time::Duration};

use jiff::{SignedDuration, Timestamp};

/// A point in time in the past.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeOrAge {
    /// By the wall clock.
    At(Timestamp),
    /// This long ago. It needs no clock, so that clocks which differ do not matter.
    Ago(Duration),
}

impl TimeOrAge {
    /// Reads an RFC 3339 timestamp, or an age such as `2h`.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Ok(at) = text.parse() {
            return Ok(Self::At(at));
        }
        semel_config::duration(text).map(Self::Ago).map_err(|why| {
            format!("write a time such as 2026-11-18T14:03:22Z, or an age such as 2h ({why})")
        })
    }

    /// How long before `now` it is; zero if it is later.
    pub fn age(self, now: Timestamp) -> Duration {
        match self {
            Self::At(at) => Duration::try_from(now.duration_since(at)).unwrap_or_default(),
            Self::Ago(age) => age,
        }
    }
}

/// What [`TimeOrAge::parse`] reads back.
impl fmt::Display for TimeOrAge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At(at) => at.fmt(f),
            Self::Ago(age) => write!(f, "{}ms", age.as_millis()),
        }
    }
}

/// The time this long before `now`: RFC 3339, UTC, to the millisecond.
pub fn before(now: Timestamp, age: Duration) -> String {
    let age = SignedDuration::try_from(age).unwrap_or(SignedDuration::MAX);
    format!("{:.3}", now.checked_sub(age).unwrap_or(Timestamp::MIN))
}

/// The time this long after another one that [`before`] wrote; `None` if it is no such text.
pub fn after(start: &str, span: Duration) -> Option<String> {
    let start: Timestamp = start.parse().ok()?;
    let end = start.checked_add(SignedDuration::try_from(span).ok()?).ok()?;
    Some(format!("{end:.3}"))
}

/// A time that [`before`] wrote, to the second: long enough for a person, and accepted by
/// `--since` and `--until`.
pub fn to_second(text: &str) -> Option<String> {
    text.parse::<Timestamp>().ok().map(|at| format!("{at:.0}"))
}

/// A time that [`before`] wrote, without its year: for a column beside the age.
pub fn compact(text: &str) -> Option<String> {
    text.parse::<Timestamp>().ok().map(|at| at.strftime("%m-%d %H:%M:%S").to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_a_timestamp_or_an_age() {
        let now: Timestamp = "2026-11-18T14:00:00Z".parse().unwrap();
        let age = |text: &str| TimeOrAge::parse(text).unwrap().age(now);
        assert_eq!(age("2h"), Duration::from_secs(7200));
        assert_eq!(age("0s"), Duration::ZERO);
        assert_eq!(age("2026-11-18T13:59:30Z"), Duration::from_secs(30));
        assert_eq!(age("2026-11-18T15:59:30.5+02:00"), Duration::from_millis(29_500));
        assert_eq!(age("2026-11-18T14:00:01Z"), Duration::ZERO, "what is to come has no age");
        for bad in ["", "5", "yesterday", "2026-11-18", "2026-11-18T14:00:00", "-2h"] {
            let why = TimeOrAge::parse(bad).unwrap_err();
            assert!(why.contains("2026-11-18T14:03:22Z") && why.contains("2h"), "{bad}: {why}");
        }
        for text in ["90s", "2026-11-18T13:59:30.25Z"] {
            let moment = TimeOrAge::parse(text).unwrap();
            assert_eq!(TimeOrAge::parse(&moment.to_string()), Ok(moment));
        }
    }

    #[test]
    fn times_are_written_in_utc() {
        let now: Timestamp = "2026-11-18T14:00:00.123456Z".parse().unwrap();
        let claimed = before(now, Duration::from_secs(90));
        assert_eq!(claimed, "2026-11-18T13:58:30.123Z");
        assert_eq!(to_second(&claimed).as_deref(), Some("2026-11-18T13:58:30Z"));
        assert_eq!(compact(&claimed).as_deref(), Some("11-18 13:58:30"));
        let week = Duration::from_secs(7 * 86400);
        assert_eq!(after(&claimed, week).as_deref(), Some("2026-11-25T13:58:30.123Z"));
        assert_eq!(before(now, Duration::MAX), format!("{:.3}", Timestamp::MIN));
        assert_eq!((to_second("\x1b[2J"), compact(""), after("x", week)), (None, None, None));
    }
}
