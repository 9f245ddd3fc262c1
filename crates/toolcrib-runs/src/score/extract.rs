//! Finds the number and the box in an answer.

use std::sync::LazyLock;

use regex::Regex;

pub(super) fn near(found: f64, wanted: f64, tol: f64) -> bool {
    // A tolerance is given in decimal: what is 0.1 apart on paper may be a bit more apart in binary.
    let slack = if tol > 0.0 { 4.0 * f64::EPSILON * found.abs().max(wanted.abs()) } else { 0.0 };
    (found - wanted).abs() <= tol + slack
}

/// A text that is one number and nothing else.
pub(super) fn number(text: &str) -> Option<f64> {
    text.trim()
        .replace(',', "")
        .replace('\u{2212}', "-")
        .parse()
        .ok()
        .filter(|number: &f64| number.is_finite())
}

pub(super) fn last_number(text: &str) -> Option<f64> {
    static NUMBER: LazyLock<Option<Regex>> = LazyLock::new(|| {
        Regex::new(
            r"[-+\x{2212}]?(?:(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?",
        )
        .ok()
    });
    let found = NUMBER.as_ref()?.find_iter(text).last()?;
    // In `10-5` and `page-3` the line is a hyphen.
    let hyphen = text[..found.start()].chars().next_back().is_some_and(char::is_alphanumeric);
    let digits = found.as_str();
    number(if hyphen { digits.trim_start_matches(['-', '+', '\u{2212}']) } else { digits })
}

pub(super) fn last_boxed(text: &str) -> Option<&str> {
    const OPEN: &str = "\\boxed{";
    let inner = &text[text.rfind(OPEN)? + OPEN.len()..];
    let mut depth = 1_usize;
    let mut escaped = false;
    for (at, c) in inner.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '{' => depth += 1,
            '}' if depth == 1 => return Some(&inner[..at]),
            '}' => depth -= 1,
            _ => {}
        }
    }
    None
}
