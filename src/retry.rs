//! Retry as a pure value plus one loop.

use std::time::Duration;

/// How often a model request is repeated, and how long between.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RetryPolicy {
    /// Attempts in all, the first included.
    pub max_attempts: u32,
    /// First wait before jitter; doubles with each attempt.
    pub base: Duration,
    /// Greatest wait before jitter.
    pub cap: Duration,
    /// Limit of one request with all attempts and waits.
    pub total: Duration,
    /// Greatest `Retry-After` that is waited for; a longer one fails at once.
    pub retry_after_max: Duration,
}

impl RetryPolicy {
    /// The default for agents.
    pub fn agent() -> Self {
        Self {
            max_attempts: 6,
            base: Duration::from_secs(1),
            cap: Duration::from_secs(30),
            total: Duration::from_secs(600),
            retry_after_max: Duration::from_secs(120),
        }
    }
}
