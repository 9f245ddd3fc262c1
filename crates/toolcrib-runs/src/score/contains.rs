//! Whether an answer contains a target as whole words and whole numbers.
//!
//! Both texts are compared in one form: composed Unicode, lower case, single blanks, one kind of hyphen. A target that
//! is a number also equals the same number written with thousands separators or with zeros after its decimals.

use std::{cell::OnceCell, collections::HashSet};

use icu_normalizer::ComposingNormalizerBorrowed;

use super::limited::TimeLimit;

/// Scripts that write words without blanks between them, or join particles to them: a word may begin and end anywhere.
const UNSPACED: [std::ops::RangeInclusive<char>; 8] = [
    '\u{0e00}'..='\u{0eff}',   // Thai, Lao
    '\u{1000}'..='\u{109f}',   // Myanmar
    '\u{1100}'..='\u{11ff}',   // Hangul Jamo
    '\u{1780}'..='\u{17ff}',   // Khmer
    '\u{3040}'..='\u{31ff}',   // Hiragana, Katakana, Bopomofo, Hangul compatibility
    '\u{3400}'..='\u{9fff}',   // Han
    '\u{ac00}'..='\u{d7ff}',   // Hangul
    '\u{20000}'..='\u{3ffff}', // Han, rarer characters
];

/// An answer in the form in which texts are compared.
pub(super) struct FormedAnswer {
    text: String,
    /// Numbers in the form of [`decimal`].
    numbers: OnceCell<HashSet<String>>,
}

impl FormedAnswer {
    pub(super) fn new(answer: &str) -> Self {
        Self { text: form(answer), numbers: OnceCell::new() }
    }

    /// Whether `target` occurs in it as whole words and whole numbers.
    ///
    /// # Errors
    /// The time is over.
    pub(super) fn contains(&self, target: &str, limit: TimeLimit) -> Result<bool, String> {
        let (answer, target) = (&self.text, form(target));
        if target.is_empty() {
            return Ok(false);
        }
        let (finder, mut from) = (memchr::memmem::Finder::new(&target), 0);
        while let Some(found) = finder.find(&answer.as_bytes()[from..]) {
            let (start, end) = (from + found, from + found + target.len());
            if begins(answer, start) && ends(answer, end) {
                return Ok(true);
            }
            from = start + answer[start..].chars().next().map_or(1, char::len_utf8);
            // One that overlaps itself may be found at every place.
            limit.check()?;
        }
        let Some(wanted) = decimal(&target) else { return Ok(false) };
        Ok(self.numbers.get_or_init(|| numbers(answer).collect()).contains(&wanted))
    }
}

/// The form in which texts are compared.
pub(super) fn form(text: &str) -> String {
    let text = ComposingNormalizerBorrowed::new_nfc().normalize(text);
    let mut formed = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    while let Some(c) = characters.next() {
        match c {
            // Between digits these blanks group thousands.
            '\u{a0}' | '\u{2009}' | '\u{202f}'
                if ends_in_digit(&formed) && characters.peek().is_some_and(char::is_ascii_digit) => {}
            c if c.is_whitespace() => {
                if !formed.is_empty() && !formed.ends_with(' ') {
                    formed.push(' ');
                }
            }
            '\u{2010}' | '\u{2011}' | '\u{2013}' | '\u{2212}' => formed.push('-'),
            // The wide forms of ASCII.
            '\u{ff01}'..='\u{ff5e}' => {
                let plain = u32::from(c).checked_sub(0xfee0).and_then(char::from_u32).unwrap_or(c);
                formed.push(plain.to_ascii_lowercase());
            }
            // `str::to_lowercase` looks at what stands around a sigma.
            c => formed.extend(c.to_lowercase().map(|c| if c == 'ς' { 'σ' } else { c })),
        }
    }
    formed.truncate(formed.trim_end().len());
    formed
}

fn ends_in_digit(text: &str) -> bool {
    text.ends_with(|c: char| c.is_ascii_digit())
}

/// Letters, digits and the marks upon them.
fn is_word(c: char) -> bool {
    c.is_alphanumeric() || ('\u{300}'..='\u{36f}').contains(&c)
}

/// Whether one word may end and another begin between two characters of words.
fn parts(before: char, after: char) -> bool {
    [before, after].iter().any(|c| UNSPACED.iter().any(|script| script.contains(c)))
}

fn is_currency(c: char) -> bool {
    matches!(c, '$' | '¢' | '£' | '¥' | '₩' | '€' | '₹' | '₽' | '₿')
}

/// Whether what stands at `at` may be the beginning of a word or a number.
fn begins(text: &str, at: usize) -> bool {
    let mut rest = text[at..].chars();
    let mut before = text[..at].chars().rev().peekable();
    let Some(first) = rest.next() else { return true };
    let number = first.is_ascii_digit();
    if !is_word(first) {
        // The sign of a number is no hyphen between two words.
        let sign = matches!(first, '-' | '+') && rest.next().is_some_and(|c| c.is_ascii_digit());
        return !(sign && before.peek().copied().is_some_and(is_word));
    }
    match before.next() {
        Some(c) if is_word(c) => parts(c, first),
        Some('_') => !before.peek().copied().is_some_and(is_word),
        // `.4` is a number, and so is `1.4`; in `is.4` and `...4` a sentence ends.
        Some('.') if number => before.peek().is_some_and(|c| c.is_alphabetic() || *c == '.'),
        Some(',' | '/' | ':') if number => !before.peek().is_some_and(char::is_ascii_digit),
        Some(c) if number => {
            let sign = if is_currency(c) { before.next() } else { Some(c) };
            sign != Some('-') || before.peek().is_some_and(|c| is_word(*c) || *c == ')')
        }
        _ => true,
    }
}

/// Whether what ends at `end` may be the end of a word or a number.
fn ends(text: &str, end: usize) -> bool {
    let mut after = text[end..].chars();
    let (Some(last), Some(next)) = (text[..end].chars().next_back(), after.next()) else { return true };
    if !is_word(last) {
        return true;
    }
    match next {
        c if is_word(c) => parts(last, c),
        '_' => !after.next().is_some_and(is_word),
        '.' | ',' | '/' | ':' if last.is_ascii_digit() => !after.next().is_some_and(|c| c.is_ascii_digit()),
        _ => true,
    }
}

/// The whole numbers and decimals of a text, each in the form of [`decimal`].
fn numbers(text: &str) -> impl Iterator<Item = String> {
    let mut at = 0;
    std::iter::from_fn(move || {
        loop {
            let start = at + text[at..].find(|c: char| c.is_ascii_digit())?;
            let rest = &text[start..];
            let length =
                rest.find(|c: char| !(c.is_ascii_digit() || ".,/:".contains(c))).unwrap_or(rest.len());
            let token = rest[..length].trim_end_matches(['.', ',', '/', ':']);
            at = start + length;
            let sign = usize::from(text[..start].ends_with(['-', '+']));
            let whole = |from: usize| begins(text, from) && ends(text, start + token.len());
            // What is no sign is a hyphen.
            let from = [start - sign, start].into_iter().find(|from| whole(*from));
            if let Some(number) = from.and_then(|from| decimal(&text[from..start + token.len()])) {
                return Some(number);
            }
        }
    })
}

/// A number in digits, without separators of thousands and without zeros at the end of its decimals. Digits with a
/// zero before them are a name (`007`) and no number.
fn decimal(text: &str) -> Option<String> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", text.strip_prefix('+').unwrap_or(text)),
    };
    let (whole, decimals) = digits.split_once('.').unwrap_or((digits, "0"));
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let mut groups = whole.split(',');
    let first = groups.next().unwrap_or_default();
    let grouped = first.len() <= 3 || !whole.contains(',');
    if !is_digits(first) || !grouped || !groups.all(|group| group.len() == 3 && is_digits(group)) {
        return None;
    }
    if !is_digits(decimals) || (first.starts_with('0') && whole != "0") {
        return None;
    }
    let (whole, decimals) = (whole.replace(',', ""), decimals.trim_end_matches('0'));
    match (whole.as_str(), decimals) {
        ("0", "") => Some("0".to_owned()),
        (_, "") => Some(format!("{sign}{whole}")),
        _ => Some(format!("{sign}{whole}.{decimals}")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn contains(answer: &str, target: &str) -> bool {
        FormedAnswer::new(answer).contains(target, TimeLimit::begin()).unwrap()
    }

    #[test]
    fn numbers_match_whole_numbers_only() {
        for answer in [
            "4",
            "It is 4.",
            "**4**",
            "(4)",
            "$4",
            "€4",
            "US$4",
            "4%",
            "4 km",
            "x=4",
            "\\boxed{4}",
            "1, 4, 9",
            "4.0",
            "4.00",
            "+4",
            "3-4 days",
            "pages 2–4",
            "the answer is...4",
            "４",
            "_4_",
            "4匹",
            "room 4, left",
            "\"4\"",
            "4;",
            "4/day",
            "at -3 or 4",
            "4\u{a0}km",
        ] {
            assert!(contains(answer, "4"), "{answer}");
        }
        for answer in [
            "14",
            "41",
            "4.5",
            "1.4",
            ".4",
            "4,5",
            "4,000",
            "4\u{202f}000",
            "1/4",
            "4/5",
            "-4",
            "\u{2212}4",
            "-$4",
            "at 4:30",
            "x4",
            "4th",
            "4km",
            "4e5",
            "four",
            "4¼",
            "4²",
            "04",
            "v1.4.2",
            "5",
            "",
        ] {
            assert!(!contains(answer, "4"), "{answer}");
        }
        for (answer, target) in [
            ("it is 1,000", "1000"),
            ("it is 1000", "1,000"),
            ("1\u{202f}000 people", "1000"),
            ("about 0.50", "0.5"),
            ("\u{2212}4 degrees", "-4"),
            ("minus: -4.", "-4"),
            ("1/4 of it", "1/4"),
            ("agent 007", "007"),
            ("on 2024-01-04", "2024"),
            ("$4,500.00!", "$4,500.00"),
            ("+4 C", "+4"),
            ("at 4:30 pm", "4:30"),
            ("4.5 %", "4.5"),
        ] {
            assert!(contains(answer, target), "{answer}: {target}");
        }
        for (answer, target) in [
            ("10-4", "-4"),
            ("4", "-4"),
            ("10,000", "1000"),
            ("1,0000", "10000"),
            ("7", "007"),
            ("0.55", "0.5"),
            ("10.5", "0.5"),
            ("version 4.5", "version 4"),
        ] {
            assert!(!contains(answer, target), "{answer}: {target}");
        }
    }

    #[test]
    fn words_match_whole_words_only() {
        for (answer, target) in [
            ("It is PARIS!", "paris"),
            ("Paris's streets", "Paris"),
            ("in New\n  York.", "new york"),
            ("*Paris*, _Rome_", "rome"),
            ("答えは東京です", "東京"),
            ("답은 서울입니다", "서울"),
            ("cafe\u{301} noir", "café"),
            ("ΟΔΟΣ", "οδος"),
            ("C++ and Rust", "c++"),
            ("well-known", "known"),
            ("a b a b c", "a b c"),
            ("the end", "end"),
            ("https://example.test/rust", "rust"),
        ] {
            assert!(contains(answer, target), "{answer}: {target}");
        }
        for (answer, target) in [
            ("comparison", "paris"),
            ("unknown", "known"),
            ("cats", "cat"),
            ("snake_case", "snake"),
            ("cafe\u{301}", "cafe"),
            ("New Yorker", "new york"),
            ("Straßen", "Stra"),
            ("", "x"),
        ] {
            assert!(!contains(answer, target), "{answer}: {target}");
        }
    }

    proptest! {
        #[test]
        fn text_between_blanks_is_found(before in "[a-zé0-9 .,\n-]{0,20}", target in "[a-zé]{1,5}( [a-z0-9]{1,4})?", after in "[a-zé0-9 .,\n-]{0,20}") {
            let answer = format!("{before} {target} {after}");
            prop_assert!(contains(&answer, &target));
        }

        #[test]
        fn a_number_matches_only_itself(wanted in 0_u32..2000, found in 0_u32..2000) {
            let answer = format!("It is {found}.");
            prop_assert_eq!(contains(&answer, &wanted.to_string()), wanted == found);
        }

        #[test]
        fn any_text_can_be_scored(answer in "\\PC{0,40}", target in "\\PC{0,6}") {
            contains(&answer, &target);
        }
    }
}
