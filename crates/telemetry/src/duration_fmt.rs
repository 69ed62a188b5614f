//! Formats durations for people: `3m 12s`.

use std::time::Duration;

/// The two largest units, as in `3m 12s` and `12d 1h`; under a minute `4.2s` or `120ms`.
pub fn format_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let two = |large: u64, one: &str, small: u64, two: &str| match small {
        0 => format!("{large}{one}"),
        _ => format!("{large}{one} {small}{two}"),
    };
    match seconds {
        0 => format!("{}ms", duration.as_millis()),
        1..60 => format!("{:.1}s", duration.as_secs_f64()),
        60..3600 => two(seconds / 60, "m", seconds % 60, "s"),
        3600..86400 => two(seconds / 3600, "h", seconds % 3600 / 60, "m"),
        _ => two(seconds / 86400, "d", seconds % 86400 / 3600, "h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_is_shown_in_its_two_largest_units() {
        let shown = |millis| format_duration(Duration::from_millis(millis));
        assert_eq!(shown(120), "120ms");
        assert_eq!(shown(4_200), "4.2s");
        assert_eq!(shown(192_000), "3m 12s");
        assert_eq!(shown(180_000), "3m");
        assert_eq!(shown(18_120_000), "5h 2m");
        assert_eq!(shown(1_040_400_000), "12d 1h");
    }
}
