//! Describes a retry policy in words, for `toolcrib doctor`.

use std::{fmt, time::Duration};

use humantime::format_duration;

use super::{Decision, EndpointState, FailureRecord, RetryPolicy};
use crate::duration::rounded;

/// So many waits are looked at: any schedule has come to its greatest by then.
const LISTED: usize = 100;

impl RetryPolicy {
    /// The greatest wait before each further attempt, without a hint of the server. `answering`: while the endpoint
    /// answers other requests; otherwise while it is down.
    pub fn longest_waits(&self, answering: bool) -> impl Iterator<Item = Duration> {
        let endpoint = if answering { EndpointState::Answering } else { EndpointState::Down };
        (1..self.max_attempts).map_while(move |attempts| {
            let failed = FailureRecord { attempts, waits: attempts, failing: 1.0, endpoint, down: None };
            match self.delay(&failed, None, Duration::ZERO, &mut || 1.0) {
                Decision::Wait(wait) => Some(wait),
                Decision::GiveUp(_) => None,
            }
        })
    }

    /// `100ms, 200ms, then 400ms`: the last one stays.
    fn listed(&self, answering: bool) -> String {
        let mut waits: Vec<Duration> = self.longest_waits(answering).take(LISTED).collect();
        let all = waits.len();
        waits.dedup();
        let last = waits.len().saturating_sub(1);
        let stays = all > waits.len();
        let words = waits.iter().enumerate().map(|(number, wait)| {
            let then = if stays && number == last && last > 0 { "then " } else { "" };
            format!("{then}{}", format_duration(rounded(*wait)))
        });
        words.collect::<Vec<_>>().join(", ")
    }
}

impl fmt::Display for RetryPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = |duration| format_duration(rounded(duration)).to_string();
        let fewest = self.max_attempts.min(Self::FEWEST);
        match self.max_attempts {
            0 | 1 => write!(f, "1 attempt")?,
            attempts if attempts > fewest => {
                write!(
                    f,
                    "up to {attempts} attempts, {fewest} where nearly all other requests are answered"
                )?;
            }
            attempts => write!(f, "{attempts} attempts")?,
        }
        if self.max_attempts > 1 && self.flat {
            write!(f, ", waits of {}", words(self.base))?;
        } else if self.max_attempts > 1 {
            let (others, nobody) = (self.listed(true), self.listed(false));
            write!(f, ", waits up to {others} (drawn from 0)")?;
            if nobody != others {
                write!(f, ", while it is down {nobody} (drawn from half)")?;
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
