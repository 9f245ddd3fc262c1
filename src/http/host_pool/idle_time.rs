//! How long a connection is kept without a request: as long as its server says that it keeps it.

use std::time::Duration;

use hyper::HeaderMap;

/// The longest that a server's word is followed.
const LONGEST: Duration = Duration::from_secs(600);
/// So much earlier than the server: a request must not meet the end of its connection.
const EARLIER: Duration = Duration::from_secs(1);

/// How long connections of one pool are kept without a request.
#[derive(Debug, Clone, Copy)]
pub(in crate::http) struct IdleTime {
    /// Where the server says nothing.
    usual: Duration,
    /// At most, whatever it says.
    most: Duration,
}

impl IdleTime {
    /// As the server says, and `usual` where it says nothing.
    pub(in crate::http) fn learned(usual: Duration) -> Self {
        Self { usual, most: LONGEST }
    }

    /// A limit that somebody set: only a server that keeps connections for a shorter time has a say.
    pub(in crate::http) fn set(limit: Duration) -> Self {
        Self { usual: limit, most: limit }
    }

    /// For a connection whose last answer had these headers.
    pub(super) fn after(self, headers: &HeaderMap) -> Duration {
        match told(headers) {
            Some(told) => told.saturating_sub(EARLIER).min(self.most),
            None => self.usual,
        }
    }
}

/// `Keep-Alive: timeout=75, max=100`.
fn told(headers: &HeaderMap) -> Option<Duration> {
    let all = headers.get_all("keep-alive").iter().filter_map(|value| value.to_str().ok());
    let mut parts = all.flat_map(|value| value.split(',')).filter_map(|part| part.split_once('='));
    let (_, seconds) = parts.find(|(name, _)| name.trim().eq_ignore_ascii_case("timeout"))?;
    seconds.trim().trim_matches('"').parse().ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_of_a_server_has_limits() {
        let usual = Duration::from_secs(4);
        for (header, learned, set) in [
            ("", 4, 30),
            ("timeout=5", 4, 4),
            ("timeout=75, max=100", 74, 30),
            ("max=100 , Timeout = \"20\"", 19, 19),
            ("timeout=1", 0, 0),
            ("timeout=0", 0, 0),
            ("timeout=18446744073709551615", 600, 30),
            ("timeout=-3", 4, 30),
            ("timeout=soon", 4, 30),
            ("timeout", 4, 30),
        ] {
            let mut headers = HeaderMap::new();
            if !header.is_empty() {
                headers.insert("keep-alive", header.parse().unwrap());
            }
            let times = [IdleTime::learned(usual), IdleTime::set(Duration::from_secs(30))];
            assert_eq!(times.map(|time| time.after(&headers).as_secs()), [learned, set], "{header}");
        }
    }
}
