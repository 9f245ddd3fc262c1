//! Counts, durations and lines in words, for people; hashes as short names; the thoughts in a model's text; halves of
//! characters in JSON.

use std::time::Duration;

use sha2::{Digest as _, Sha256};

pub mod halves;
pub mod thoughts;

/// The first 128 bits of a hash.
pub fn short_hash(hash: Sha256) -> u128 {
    hash.finalize().iter().take(16).fold(0, |bits, byte| bits << 8 | u128::from(*byte))
}

/// The same in hexadecimal.
pub fn short_hex(hash: Sha256) -> String {
    format!("{:032x}", short_hash(hash))
}

/// A word as a shell reads it.
pub fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+@%:,=".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// Bytes in hexadecimal, in lower case.
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 0xf]);
    digits.map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
}

/// `1 server`, `2 servers`.
pub fn counted(count: usize, name: &str) -> String {
    format!("{count} {name}{}", if count == 1 { "" } else { "s" })
}

/// `123`, `12.3k`, `1.2M`.
pub fn rounded_count(n: u64) -> String {
    match n {
        0..10_000 => n.to_string(),
        10_000..1_000_000 => format!("{:.1}k", n as f64 / 1e3),
        _ => format!("{:.1}M", n as f64 / 1e6),
    }
}

/// `0.77s`, `12m 34s`, `5h 07m` or `3d 4h`.
pub fn seconds(time: Duration) -> String {
    // What rounds up to a minute is one.
    let whole = time.saturating_add(Duration::from_millis(5)).as_secs();
    match whole {
        0..60 => format!("{:.2}s", time.as_secs_f64()),
        60..3600 => format!("{}m {:02}s", whole / 60, whole % 60),
        3600..86400 => format!("{}h {:02}m", whole / 3600, whole / 60 % 60),
        _ => format!("{}d {}h", whole / 86400, whole / 3600 % 24),
    }
}

/// The first `room` letters of the first line, with `...` as the last of them where more was there.
pub fn cut(text: &str, room: usize) -> String {
    let text = text.lines().next().unwrap_or_default();
    if text.chars().count() <= room {
        return text.to_owned();
    }
    text.chars().take(room.saturating_sub(3)).chain("...".chars()).collect()
}

/// The first `most` characters, and `...` where there are more.
pub fn beginning(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// The words of a text, with one space between them.
pub fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_of_a_text_has_whole_characters() {
        assert_eq!(beginning("größer", 6), "größer");
        assert_eq!(beginning("größer", 3), "grö...");
        assert_eq!(one_line(" a\n\tb  c "), "a b c");
    }

    #[test]
    fn durations_are_rounded_for_people() {
        for (millis, text) in [
            (0, "0.00s"),
            (1_234, "1.23s"),
            (59_994, "59.99s"),
            (59_996, "1m 00s"),
            (754_321, "12m 34s"),
            (18_420_000, "5h 07m"),
            (273_600_000, "3d 4h"),
        ] {
            assert_eq!(seconds(Duration::from_millis(millis)), text);
        }
    }

    #[test]
    fn lines_are_cut_visibly() {
        assert_eq!(cut("abcdef\nx", 6), "abcdef");
        assert_eq!(cut("abcdefg", 6), "abc...");
    }
}
