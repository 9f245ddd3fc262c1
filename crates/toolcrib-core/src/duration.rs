//! Formats and parses durations for people and for files.

use std::{sync::LazyLock, time::Duration};

use regex::Regex;

/// One number with its unit, as a pattern.
pub const SPELLED_PART: &str =
    r"(?<number>\d+(?:\.\d+)?)\s*(?<unit>milliseconds?|seconds?|secs?|minutes?|mins?|hours?|ms|s|m|h)";

/// A duration as servers spell it: `2s`, `1.5s`, `6m0s`, `20ms`, `20 seconds`.
pub fn spelled(text: &str) -> Option<Duration> {
    static WHOLE: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(&format!(r"(?i)^(?:{SPELLED_PART}\s*)+$")).expect("a constant pattern"));
    static PARTS: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(&format!("(?i){SPELLED_PART}")).expect("a constant pattern"));
    let text = text.trim();
    if !WHOLE.is_match(text) {
        return None;
    }
    PARTS.captures_iter(text).try_fold(Duration::ZERO, |total, part| {
        let unit = match part["unit"].to_ascii_lowercase().as_str() {
            unit if unit.starts_with("ms") || unit.starts_with("mil") => 0.001,
            unit if unit.starts_with('s') => 1.0,
            unit if unit.starts_with('m') => 60.0,
            _ => 3600.0,
        };
        let part = Duration::try_from_secs_f64(part["number"].parse::<f64>().ok()? * unit).ok()?;
        Some(total.saturating_add(part))
    })
}

/// `duration` to about three digits: measured times have more digits than a person reads.
pub fn rounded(duration: Duration) -> Duration {
    let step = match duration.as_secs() {
        0 if duration < Duration::from_millis(1) => Duration::from_micros(1),
        0 => Duration::from_millis(1),
        1..10 => Duration::from_millis(10),
        10..100 => Duration::from_millis(100),
        100..3600 => Duration::from_secs(1),
        3600..86400 => Duration::from_secs(60),
        _ => Duration::from_secs(3600),
    };
    let steps = (duration.as_nanos() + step.as_nanos() / 2) / step.as_nanos();
    let nanos = steps * step.as_nanos();
    let seconds = u64::try_from(nanos / 1_000_000_000).unwrap_or(u64::MAX);
    let rest = u32::try_from(nanos % 1_000_000_000).unwrap_or_default();
    Duration::new(seconds, rest)
}

/// Whether a time in nanoseconds is none, for `#[serde(skip_serializing_if)]`.
pub fn is_zero(nanos: &u64) -> bool {
    *nanos == 0
}

/// Whole nanoseconds, as far as they can be counted.
pub fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use humantime::format_duration;

    use super::*;

    #[test]
    fn durations_of_servers_are_read() {
        for (text, millis) in [
            ("34.5s", Some(34_500)),
            ("6m0s", Some(360_000)),
            ("20ms", Some(20)),
            (" 20 seconds ", Some(20_000)),
            ("2 min 1 sec", Some(121_000)),
            ("1h", Some(3_600_000)),
            ("", None),
            ("soon", None),
            ("30 March", None),
            ("2", None),
        ] {
            assert_eq!(spelled(text), millis.map(Duration::from_millis), "{text}");
        }
    }

    #[test]
    fn durations_have_few_digits() {
        for (nanos, text) in [
            (0, "0s"),
            (12_345, "12us"),
            (300_000_000, "300ms"),
            (999_999_999, "1s"),
            (1_234_567_891, "1s 230ms"),
            (1_500_000_000, "1s 500ms"),
            (59_998_123_456, "1m"),
            (61_550_000_000, "1m 1s 600ms"),
            (754_321_000_000, "12m 34s"),
            (3_725_900_000_000, "1h 2m"),
            (100_000_000_000_000, "1day 4h"),
        ] {
            assert_eq!(format_duration(rounded(Duration::from_nanos(nanos))).to_string(), text);
        }
        rounded(Duration::MAX);
    }
}
