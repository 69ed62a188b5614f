//! The `Date` header value, formatted once a second.

use std::{
    sync::{Mutex, PoisonError},
    time::SystemTime,
};

use jiff::{Timestamp, fmt::rfc2822::DateTimePrinter};

/// Length of a date such as `Wed, 18 Nov 2026 09:30:00 GMT`, in bytes.
const LENGTH: usize = 29;

/// The date as of the last refresh.
#[derive(Debug)]
pub(crate) struct CachedDate(Mutex<(i64, [u8; LENGTH])>);

impl CachedDate {
    pub(crate) fn new() -> Self {
        let date = Self(Mutex::new((i64::MIN, *b"Thu, 01 Jan 1970 00:00:00 GMT")));
        date.refresh();
        date
    }

    /// Reads the clock.
    #[expect(clippy::disallowed_methods, reason = "the Date header is the time of the response")]
    pub(crate) fn refresh(&self) {
        let Ok(now) = Timestamp::try_from(SystemTime::now()) else { return };
        let mut date = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if date.0 == now.as_second() {
            return;
        }
        let text = DateTimePrinter::new().timestamp_to_rfc9110_string(&now);
        if let Ok(text) = text.map_or(Err(()), |text| text.as_bytes().try_into().map_err(drop)) {
            *date = (now.as_second(), text);
        }
    }

    pub(crate) fn now(&self) -> [u8; LENGTH] {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_has_the_http_format() {
        let date = CachedDate::new();
        let text = String::from_utf8(date.now().to_vec()).unwrap();
        let read: Timestamp = jiff::fmt::rfc2822::parse(&text).unwrap().timestamp();
        assert!(text.ends_with(" GMT") && !text.contains("1970"), "{text}");
        assert_eq!(read.as_second(), date.0.lock().unwrap().0);
    }
}
