//! Reads the wait that an answer asks for: seconds, whole or not, a number with its unit, or a date.

use std::time::{Duration, SystemTime};

use hyper::header::{DATE, HeaderMap, RETRY_AFTER};

use crate::duration::spelled;

/// The longest value that is shown.
const MAX_SHOWN: usize = 60;

/// The wait that an answer asks for.
#[derive(Debug, PartialEq)]
pub struct RetryAfter {
    /// The wait; [`Duration::MAX`] if it is longer than can be counted. `None`: the text is neither a number nor a date.
    pub wait: Option<Duration>,
    /// The text of the header, up to 60 letters.
    pub text: String,
}

/// Reads the wait from the headers of an answer.
pub fn retry_after(headers: &HeaderMap) -> Option<RetryAfter> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    Some(RetryAfter { wait: asked_wait(text, headers), text: text.chars().take(MAX_SHOWN).collect() })
}

/// The wait that `text`, the value of a header, asks for. Less than none is none; what is longer than can be counted is
/// [`Duration::MAX`].
pub fn asked_wait(text: &str, headers: &HeaderMap) -> Option<Duration> {
    let text = text.trim();
    seconds(text).or_else(|| spelled(text)).or_else(|| Some(until(read(text)?, headers)))
}

/// A number of seconds as a wait.
pub fn of_seconds(seconds: f64) -> Option<Duration> {
    match seconds {
        _ if seconds.is_nan() => None,
        _ if seconds < 0.0 => Some(Duration::ZERO),
        _ => Some(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)),
    }
}

fn seconds(text: &str) -> Option<Duration> {
    of_seconds(text.parse().ok()?)
}

/// The time until a date, by the server's own clock where it tells it.
fn until(date: SystemTime, headers: &HeaderMap) -> Duration {
    let told = headers.get(DATE).and_then(|value| httpdate::parse_http_date(value.to_str().ok()?).ok());
    date.duration_since(told.unwrap_or_else(SystemTime::now)).unwrap_or_default()
}

/// A date, whatever day of the week it names: some name a wrong one.
fn read(text: &str) -> Option<SystemTime> {
    const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
    let with = |day: &str, rest: &str| httpdate::parse_http_date(&format!("{day},{rest}")).ok();
    let (_, rest) = text.split_once(',').unwrap_or_default();
    httpdate::parse_http_date(text).ok().or_else(|| DAYS.iter().find_map(|day| with(day, rest)))
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    #[test]
    fn every_form_of_a_wait_is_read() {
        let now = "Sun, 06 Nov 1994 08:49:37 GMT";
        for (value, expected) in [
            ("2", Some(Duration::from_secs(2))),
            (" 1.5 ", Some(Duration::from_millis(1500))),
            ("0", Some(Duration::ZERO)),
            ("-3", Some(Duration::ZERO)),
            ("1e300", Some(Duration::MAX)),
            ("inf", Some(Duration::MAX)),
            ("99999999999999999999999", Some(Duration::MAX)),
            ("Sun, 06 Nov 1994 08:50:07 GMT", Some(Duration::from_secs(30))),
            ("Sun, 06 Nov 1994 08:00:00 GMT", Some(Duration::ZERO)),
            ("2s", Some(Duration::from_secs(2))),
            ("1m 30s", Some(Duration::from_secs(90))),
            ("Sun Nov  6 08:50:07 1994", Some(Duration::from_secs(30))),
            ("NaN", None),
            ("soon", None),
            ("", None),
        ] {
            let pairs = [(DATE, now), (RETRY_AFTER, value)];
            let pairs = pairs.map(|(name, value)| (name, HeaderValue::from_str(value).unwrap()));
            let read = retry_after(&HeaderMap::from_iter(pairs)).unwrap();
            assert_eq!(read.wait, expected, "{value}");
            assert_eq!(read.text, value.trim());
        }
        assert_eq!(retry_after(&HeaderMap::new()), None);
        // It is a Thursday.
        for day in ["Thu", "Fri"] {
            let text = format!("{day}, 31 Dec 2099 23:59:59 GMT");
            let value = HeaderValue::from_str(&text).unwrap();
            let read = retry_after(&HeaderMap::from_iter([(RETRY_AFTER, value)])).unwrap();
            assert!(read.wait.is_some_and(|wait| wait > Duration::from_secs(1_000_000_000)), "{read:?}");
            assert_eq!(read.text, text);
        }
    }
}
