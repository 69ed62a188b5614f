//! What the head of a response says about a retry.

use std::time::Duration;

/// Digits of a number in a header; more are not a delay.
const DIGITS_MAX: usize = 9;

/// Status and headers of a response, as far as the rules of retries look at them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResponseSignals {
    /// The HTTP status.
    pub status: u16,
    /// `x-should-retry`.
    pub x_should_retry: Option<bool>,
    /// `stripe-should-retry`.
    pub stripe_should_retry: Option<bool>,
    /// `retry-after-ms`, or else `Retry-After`, from now on.
    pub retry_after: Option<Duration>,
    /// `x-amz-retry-after`.
    pub aws_retry_after: Option<Duration>,
    /// `grpc-status`.
    pub grpc_status: Option<u32>,
    /// `grpc-retry-pushback-ms`: `Some(None)` if it is negative or no number: no retry.
    pub grpc_pushback: Option<Option<Duration>>,
}

impl ResponseSignals {
    /// A response without any of the headers.
    #[must_use]
    pub fn of_status(status: u16) -> Self {
        Self { status, ..Self::default() }
    }

    /// Reads a response head. `header` finds the value of a header by its name in lower case;
    /// `unix_seconds` is the current time, for a `Retry-After` that is a date. Of a repeated
    /// header the first value counts, also where the values are joined by commas.
    ///
    /// ```
    /// use semel_core::retry::ResponseSignals;
    ///
    /// let header = |name: &str| (name == "retry-after").then_some("3");
    /// let signals = ResponseSignals::read(503, header, 0);
    /// assert_eq!(signals.retry_after.unwrap().as_secs(), 3);
    /// ```
    pub fn read<'a>(
        status: u16,
        header: impl Fn(&str) -> Option<&'a str>,
        unix_seconds: u64,
    ) -> Self {
        let value = |name| header(name).map(str::trim);
        let milliseconds = |name| value(name).and_then(number).map(Duration::from_millis);
        Self {
            status,
            x_should_retry: value("x-should-retry").and_then(boolean),
            stripe_should_retry: value("stripe-should-retry").and_then(boolean),
            retry_after: milliseconds("retry-after-ms")
                .or_else(|| value("retry-after").and_then(|text| delay(text, unix_seconds))),
            aws_retry_after: milliseconds("x-amz-retry-after"),
            grpc_status: value("grpc-status").and_then(number).and_then(|n| n.try_into().ok()),
            grpc_pushback: value("grpc-retry-pushback-ms")
                .map(|text| number(text).map(Duration::from_millis)),
        }
    }
}

fn boolean(text: &str) -> Option<bool> {
    match first(text) {
        "true" => Some(true),
        "false" => Some(false),
        _ => None,
    }
}

/// The first member of a list.
fn first(text: &str) -> &str {
    text.split_once(',').map_or(text, |(first, _)| first).trim()
}

fn number(text: &str) -> Option<u64> {
    digits(first(text))
}

fn digits(text: &str) -> Option<u64> {
    let is_number = !text.is_empty()
        && text.len() <= DIGITS_MAX
        && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { text.parse().ok() } else { None }
}

/// A `Retry-After`: seconds or an HTTP date.
fn delay(text: &str, unix_seconds: u64) -> Option<Duration> {
    let seconds =
        number(text).or_else(|| http_date(text)?.checked_sub(unix_seconds).or(Some(0)))?;
    Some(Duration::from_secs(seconds))
}

/// The seconds since 1970 of an IMF-fixdate such as `Sun, 06 Nov 1994 08:49:37 GMT`, alone or the
/// first of a list.
fn http_date(text: &str) -> Option<u64> {
    /// `A` and `a` stand for a letter, `0` for a digit.
    const FORM: &str = "Aaa, 00 Aaa 0000 00:00:00 GMT";
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

    let (date, rest) = text.split_at_checked(FORM.len())?;
    let has_form = date.bytes().zip(FORM.bytes()).all(|(byte, form)| match form {
        b'A' => byte.is_ascii_uppercase(),
        b'a' => byte.is_ascii_lowercase(),
        b'0' => byte.is_ascii_digit(),
        _ => byte == form,
    });
    if !has_form || !(rest.is_empty() || rest.starts_with(',')) {
        return None;
    }
    let field = |at: std::ops::Range<usize>| date.get(at).and_then(digits);
    let (day, year) = (field(5..7)?, field(12..16)?);
    let (hour, minute, second) = (field(17..19)?, field(20..22)?, field(23..25)?);
    let name = date.get(8..11)?;
    let month = u64::try_from(MONTHS.iter().position(|month| *month == name)?).ok()?;
    let is_date =
        (1..=31).contains(&day) && year >= 1970 && (hour < 24 && minute < 60 && second <= 60);
    if !is_date {
        return None;
    }
    let days = days_before_year(year)?
        .checked_add(days_before_month(year, month)?)?
        .checked_add(day.checked_sub(1)?)?;
    let minutes = days.checked_mul(24)?.checked_add(hour)?.checked_mul(60)?.checked_add(minute)?;
    minutes.checked_mul(60)?.checked_add(second)
}

fn days_before_year(year: u64) -> Option<u64> {
    let leap_days = |before: u64| {
        let four = before.checked_div(4)?;
        four.checked_sub(before.checked_div(100)?)?.checked_add(before.checked_div(400)?)
    };
    let leaps = leap_days(year.checked_sub(1)?)?.checked_sub(leap_days(1969)?)?;
    year.checked_sub(1970)?.checked_mul(365)?.checked_add(leaps)
}

/// The month counts from 0.
fn days_before_month(year: u64, month: u64) -> Option<u64> {
    const DAYS: [u64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];

    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let days = *DAYS.get(usize::try_from(month).ok()?)?;
    days.checked_add(u64::from(is_leap && month >= 2))
}
