//! The wait that a server asks for: all known spellings; the first that parses counts.

use std::{sync::LazyLock, time::Duration};

use hyper::header::HeaderMap;
use regex::Regex;

use crate::http;

/// One number with its unit.
const PART: &str = r"(?<number>\d+(?:\.\d+)?)\s*(?<unit>milliseconds?|seconds?|minutes?|hours?|ms|s|m|h)";

/// The wait named by headers. A LiteLLM proxy passes its provider's headers on with a prefix only.
pub(in crate::llm) fn from_headers(headers: &HeaderMap) -> Option<Duration> {
    ["", "llm_provider-"].iter().find_map(|prefix| {
        let text = |name: &str| headers.get(format!("{prefix}{name}")).and_then(|value| value.to_str().ok());
        text("retry-after-ms")
            .and_then(|text| seconds(text).map(|milliseconds| milliseconds / 1000))
            .or_else(|| text("retry-after").and_then(|text| seconds(text).or_else(|| date(text, headers))))
    })
}

/// The wait named by an error's text ("try again in 1.5s", "retry after 20 seconds").
pub(in crate::llm) fn from_text(text: &str) -> Option<Duration> {
    static SENTENCE: LazyLock<Regex> = LazyLock::new(|| {
        let pattern = format!(r"(?i)(?:try again|retry)[a-z ]{{0,20}} (?:in|after)\s+((?:{PART}\s*)+)");
        Regex::new(&pattern).expect("a constant pattern")
    });
    spelled(SENTENCE.captures(text)?.get(1)?.as_str())
}

/// A duration as providers spell it: `2s`, `1.5s`, `6m0s`, `20ms`, `20 seconds`.
pub(in crate::llm) fn spelled(text: &str) -> Option<Duration> {
    static PARTS: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(&format!("(?i){PART}")).expect("a constant pattern"));
    let mut total = None;
    for part in PARTS.captures_iter(text) {
        let unit = match part["unit"].to_ascii_lowercase().as_str() {
            unit if unit.starts_with("ms") || unit.starts_with("mil") => 0.001,
            unit if unit.starts_with('s') => 1.0,
            unit if unit.starts_with('m') => 60.0,
            _ => 3600.0,
        };
        let part = Duration::try_from_secs_f64(part["number"].parse::<f64>().ok()? * unit).ok()?;
        total = Some(total.unwrap_or(Duration::ZERO).saturating_add(part));
    }
    total
}

/// Whole or fractional seconds; `None` for negative or absurd numbers.
fn seconds(text: &str) -> Option<Duration> {
    Duration::try_from_secs_f64(text.trim().parse().ok()?).ok()
}

/// The time until an HTTP date.
fn date(text: &str, headers: &HeaderMap) -> Option<Duration> {
    Some(http::until(httpdate::parse_http_date(text).ok()?, headers))
}

#[cfg(test)]
mod tests {
    use hyper::header::{HeaderName, HeaderValue};

    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn every_header_spelling_is_read() {
        for (pairs, expected) in [
            (&[("retry-after", "2")][..], Some(2000)),
            (&[("retry-after", " 1.5 ")], Some(1500)),
            (&[("retry-after-ms", "250")], Some(250)),
            (&[("retry-after-ms", "250"), ("retry-after", "9")], Some(250)),
            (&[("retry-after-ms", "soon"), ("retry-after", "9")], Some(9000)),
            (&[("llm_provider-retry-after", "60")], Some(60_000)),
            (&[("llm_provider-retry-after-ms", "1500")], Some(1500)),
            (&[("retry-after", "1"), ("llm_provider-retry-after", "60")], Some(1000)),
            (
                &[
                    ("date", "Sun, 06 Nov 1994 08:49:37 GMT"),
                    ("retry-after", "Sun, 06 Nov 1994 08:50:07 GMT"),
                ],
                Some(30_000),
            ),
            (&[("retry-after", "Sun, 06 Nov 1994 08:49:37 GMT")], Some(0)),
            (&[("retry-after", "-3")], None),
            (&[("retry-after", "NaN")], None),
            (&[("retry-after", "inf")], None),
            (&[("retry-after", "")], None),
            (&[], None),
        ] {
            assert_eq!(from_headers(&headers(pairs)), expected.map(Duration::from_millis), "{pairs:?}");
        }
    }

    #[test]
    fn waits_in_sentences_are_read() {
        for (text, expected) in [
            ("Rate limit reached. Please try again in 1.5s. Visit", Some(1500)),
            ("Please try again in 6m0s.", Some(360_000)),
            ("Please try again in 20ms", Some(20)),
            ("Please retry after 20 seconds.", Some(20_000)),
            ("Please retry your request in 2 minutes", Some(120_000)),
            ("try again later", None),
            ("retry 3 times", None),
        ] {
            assert_eq!(from_text(text), expected.map(Duration::from_millis), "{text}");
        }
        assert_eq!(spelled("34.074824224s"), Some(Duration::from_secs_f64(34.074_824_224)));
    }
}
