//! How many repetitions an endpoint is given that fails in part.

use std::time::Duration;

use tokio::time::Instant;

/// Repetitions that an endpoint is given while it answers others: some at rest, one a second, and one for every five
/// answers. Failures of a part of the requests are so never doubled into an overload.
pub(super) struct Budget {
    left: f64,
    at: Option<Instant>,
}

impl Budget {
    const AT_REST: f64 = 10.0;
    const PER_ANSWER: f64 = 0.2;
    const MOST: f64 = 100.0;

    pub(super) fn earn(&mut self, now: Instant) {
        self.fill(now);
        self.left = (self.left + Self::PER_ANSWER).min(Self::MOST);
    }

    /// Takes one repetition; how long it must wait until it is covered.
    pub(super) fn spend(&mut self, now: Instant) -> Duration {
        self.fill(now);
        self.left -= 1.0;
        Duration::from_secs_f64((-self.left).max(0.0))
    }

    fn fill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.at.unwrap_or(now)).as_secs_f64();
        self.at = Some(now);
        if self.left < Self::AT_REST {
            self.left = (self.left + passed).min(Self::AT_REST);
        }
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self { left: Self::AT_REST, at: None }
    }
}
