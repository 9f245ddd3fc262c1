//! A policy in words: what `toolcrib doctor` prints.

use std::{fmt, time::Duration};

use humantime::format_duration;

use super::{Decision, Failed, RetryPolicy, whole};

/// Waits that are listed one by one.
const LISTED: usize = 8;

impl RetryPolicy {
    /// The greatest wait before each further attempt, without a hint of the server. `answering`: while the endpoint
    /// answers other requests.
    pub fn ceilings(&self, answering: bool) -> impl Iterator<Item = Duration> {
        (1..self.max_attempts).map_while(move |attempts| {
            let failed = Failed { attempts, counted: f64::from(attempts), failing: 1.0, answering };
            match self.delay(&failed, None, Duration::ZERO, &mut || 1.0) {
                Decision::Wait(wait) => Some(wait),
                Decision::GiveUp(_) => None,
            }
        })
    }

    fn listed(&self, answering: bool) -> String {
        let words = |duration| format_duration(whole(duration)).to_string();
        let mut waits: Vec<String> = self.ceilings(answering).take(LISTED + 1).map(words).collect();
        if waits.len() > LISTED {
            waits.truncate(LISTED);
            waits.push("...".to_owned());
        }
        waits.join(", ")
    }
}

impl fmt::Display for RetryPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = |duration| format_duration(whole(duration)).to_string();
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
                write!(f, ", while nobody is answered {nobody} (drawn from half)")?;
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
