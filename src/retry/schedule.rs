//! A policy in words: what `toolcrib doctor` prints.

use std::{fmt, time::Duration};

use humantime::format_duration;

use super::{Decision, RetryPolicy};

/// Waits that are listed one by one.
const LISTED: usize = 8;

impl RetryPolicy {
    /// The greatest wait before each further attempt, without a hint of the server.
    pub fn ceilings(&self) -> impl Iterator<Item = Duration> {
        (1..self.max_attempts).map_while(|attempts| {
            match self.delay_with(attempts, None, Duration::ZERO, &mut || 1.0) {
                Decision::Wait(wait) => Some(wait),
                Decision::GiveUp(_) => None,
            }
        })
    }
}

impl fmt::Display for RetryPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = |duration| format_duration(duration).to_string();
        let mut ceilings: Vec<String> = self.ceilings().take(LISTED + 1).map(words).collect();
        if ceilings.len() > LISTED {
            ceilings.truncate(LISTED);
            ceilings.push("...".to_owned());
        }
        match self.max_attempts {
            0 | 1 => write!(f, "1 attempt")?,
            attempts => {
                let how = if self.flat { "each about as long" } else { "each drawn from 0 up to it" };
                write!(f, "{attempts} attempts, waits {} ({how})", ceilings.join(", "))?;
            }
        }
        let (first, last) = self.probes();
        write!(
            f,
            ", {} in all; Retry-After up to {}; an endpoint that is down is probed by one request after {}, later {}, \
             and waited for up to {}",
            words(self.total),
            words(self.retry_after_max),
            words(first),
            words(last),
            words(self.outage),
        )
    }
}
