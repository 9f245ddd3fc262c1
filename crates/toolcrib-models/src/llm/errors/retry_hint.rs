//! The wait that a server asks for: in headers, in its words, in members of its error; the first that can be read counts.

use std::{sync::LazyLock, time::Duration};

use hyper::header::HeaderMap;
use regex::Regex;
use serde_json::{Map, Value};

use crate::{
    duration::{SPELLED_PART, spelled},
    http::{asked_wait, of_seconds},
};

/// The wait named by headers. A LiteLLM proxy passes its provider's headers on with a prefix only.
pub(in crate::llm) fn from_headers(headers: &HeaderMap) -> Option<Duration> {
    ["", "llm_provider-"].iter().find_map(|prefix| {
        let text = |name: &str| headers.get(format!("{prefix}{name}")).and_then(|value| value.to_str().ok());
        text("retry-after-ms")
            .and_then(|text| of_seconds(text.trim().parse().ok()?))
            .map(|milliseconds| milliseconds / 1000)
            .or_else(|| asked_wait(text("retry-after")?, headers))
    })
}

/// The wait named by an error's text ("try again in 1.5s", "retry after 20 seconds").
pub(in crate::llm) fn from_text(text: &str) -> Option<Duration> {
    static SENTENCE: LazyLock<Regex> = LazyLock::new(|| {
        let pattern =
            format!(r"(?i)(?:try again|retry)[a-z ]{{0,20}} (?:in|after)\s+((?:{SPELLED_PART}\s*)+)");
        Regex::new(&pattern).expect("a constant pattern")
    });
    spelled(SENTENCE.captures(text)?.get(1)?.as_str())
}

/// The wait named by a member of an error: `retry_after: 1.5`, and Google's `details: [{retryDelay: "34s"}]`, wherever
/// that stands.
pub(in crate::llm) fn from_members(error: &Map<String, Value>) -> Option<Duration> {
    const SECONDS: [&str; 5] =
        ["retryDelay", "retry_after", "retryAfter", "retry_after_seconds", "retry-after"];
    let number = |value: &Value| of_seconds(value.as_f64().or_else(|| value.as_str()?.trim().parse().ok())?);
    let delay = |value: &Value| spelled(value.get("retryDelay")?.as_str()?);
    let of_member = |key: &&str| {
        let value = error.get(*key)?;
        number(value).or_else(|| spelled(value.as_str()?))
    };
    let of_milliseconds = |key: &&str| number(error.get(*key)?).map(|milliseconds| milliseconds / 1000);
    let details = error.get("details");
    SECONDS
        .iter()
        .find_map(of_member)
        .or_else(|| ["retry_after_ms", "retryAfterMs"].iter().find_map(of_milliseconds))
        .or_else(|| details.and_then(delay))
        .or_else(|| details?.as_array()?.iter().find_map(delay))
}

#[cfg(test)]
mod tests {
    use hyper::header::{HeaderName, HeaderValue};
    use serde_json::json;

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
            (&[("retry-after", "2s")], Some(2000)),
            (&[("retry-after", "-3")], Some(0)),
            (&[("retry-after", "NaN")], None),
            (&[("retry-after", "")], None),
            (&[], None),
        ] {
            assert_eq!(from_headers(&headers(pairs)), expected.map(Duration::from_millis), "{pairs:?}");
        }
        // For ever, and a date whose day of the week is another one.
        for endless in ["inf", "99999999999999999999999", "Mon, 31 Dec 2099 23:59:59 GMT"] {
            let wait = from_headers(&headers(&[("retry-after", endless)])).unwrap();
            assert!(wait > Duration::from_secs(1_000_000_000), "{endless}: {wait:?}");
        }
    }

    #[test]
    fn waits_in_members_are_read() {
        for (error, expected) in [
            (json!({"retry_after": 1.5}), Some(1500)),
            (json!({"retryAfter": "2"}), Some(2000)),
            (json!({"retry_after_seconds": "20s"}), Some(20_000)),
            (json!({"retry_after_ms": 250}), Some(250)),
            (json!({"retryDelay": "0.5s"}), Some(500)),
            (json!({"details": {"retryDelay": "3s"}}), Some(3000)),
            (json!({"details": [{}, {"retryDelay": "4s"}]}), Some(4000)),
            (json!({"retry_after": null, "details": 7}), None),
            (json!({"retry_after": "soon"}), None),
        ] {
            let found = from_members(error.as_object().unwrap());
            assert_eq!(found, expected.map(Duration::from_millis), "{error}");
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
    }
}
