//! Durations and sizes as they are written: a number with its unit.

use std::time::Duration;

/// Longest duration that is accepted: clocks overflow far beyond it.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// Reads "30s"; the error is a message.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(duration) if duration > LONGEST => Err("a duration may be one year at most".to_owned()),
        Ok(duration) => Ok(duration),
        Err(error) => Err(format!("not a duration: {error}")),
    }
}

/// Reads "1MiB"; the error is a message.
pub fn parse_size(text: &str) -> Result<usize, String> {
    const UNITS: [(&str, usize); 7] = [
        ("B", 1),
        ("KB", 1000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
    ];
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let number = text[..text.len() - unit.len()].parse::<usize>();
    let (Ok(number), Some((_, factor))) = (number, UNITS.iter().find(|(name, _)| *name == unit.trim()))
    else {
        return Err("not a size".to_owned());
    };
    match number.checked_mul(*factor) {
        Some(0) => Err("must be more than zero".to_owned()),
        Some(bytes) => Ok(bytes),
        None => Err("the number is too large".to_owned()),
    }
}
