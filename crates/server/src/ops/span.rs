//! Durations as people write and read them: `90s`, `15m`, `3m 12s`.

use std::time::Duration;

/// Reads `500ms`, `30s`, `15m`, `24h` or `7d`.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is no duration: write it like 30s, 15m, 24h or 7d");
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let millis: u64 = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60 * 1000,
        "h" => 3600 * 1000,
        "d" => 24 * 3600 * 1000,
        _ => return Err(wrong()),
    };
    number.checked_mul(millis).map(Duration::from_millis).ok_or_else(wrong)
}

/// The two largest units: `3m 12s`, `5h 2m`, `12d 1h`; under a minute `4.2s`, under a second `120ms`.
pub(crate) fn show(span: Duration) -> String {
    let seconds = span.as_secs();
    let two = |large: u64, one: &str, small: u64, two: &str| match small {
        0 => format!("{large}{one}"),
        _ => format!("{large}{one} {small}{two}"),
    };
    match seconds {
        0 => format!("{}ms", span.as_millis()),
        1..60 => format!("{:.1}s", span.as_secs_f64()),
        60..3600 => two(seconds / 60, "m", seconds % 60, "s"),
        3600..86400 => two(seconds / 3600, "h", seconds % 3600 / 60, "m"),
        _ => two(seconds / 86400, "d", seconds % 86400 / 3600, "h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_has_a_number_and_a_unit() {
        let read = |text| parse(text).map(|span| span.as_millis());
        assert_eq!(read("500ms"), Ok(500));
        assert_eq!(read("90s"), Ok(90_000));
        assert_eq!(read("15m"), Ok(900_000));
        assert_eq!(read("2h"), Ok(7_200_000));
        assert_eq!(read("7d"), Ok(604_800_000));
        for bad in ["", "5", "s", "-5s", "5 s", "1.5h", "5w", "99999999999999999999d"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_age_is_shown_in_its_two_largest_units() {
        let shown = |millis| show(Duration::from_millis(millis));
        assert_eq!(shown(120), "120ms");
        assert_eq!(shown(4_200), "4.2s");
        assert_eq!(shown(192_000), "3m 12s");
        assert_eq!(shown(180_000), "3m");
        assert_eq!(shown(18_120_000), "5h 2m");
        assert_eq!(shown(1_040_400_000), "12d 1h");
    }
}
