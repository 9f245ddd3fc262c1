//! A token bucket: an amount per minute, in any distribution.

use std::{num::NonZeroU64, time::Duration};

use tokio::time::Instant;

/// A limit of units in any 60 seconds. A tenth of them may go at once; the rest flows evenly, so that the burst and the flow
/// together are the limit and not more.
#[derive(Debug, Clone)]
pub struct Rate {
    burst: f64,
    per_second: f64,
    filled: f64,
    at: Instant,
}

/// Debt is paid within this time: a count from the server must not close the gate for ever.
const MOST_DEBT: Duration = Duration::from_secs(600);

impl Rate {
    /// A full bucket.
    pub fn per_minute(units: NonZeroU64, now: Instant) -> Self {
        let units = units.get() as f64;
        // One unit must always fit.
        let burst = (units / 10.0).max(1.0);
        // The unit that ends a minute belongs to the next one.
        let per_second = (units - burst + 1.0) / 60.0;
        Self { burst, per_second, filled: burst, at: now }
    }

    /// How long until `units` can be taken. More than fit at once need a full bucket, and leave it in debt.
    pub fn wait(&mut self, units: f64, now: Instant) -> Duration {
        self.fill(now);
        let missing = units.min(self.burst) - self.filled;
        // Below a millionth of a unit it is an error of rounding.
        if missing < 1e-6 {
            Duration::ZERO
        } else {
            Duration::try_from_secs_f64(missing / self.per_second).unwrap_or(Duration::MAX)
        }
    }

    /// Takes `units`; fewer than none gives back.
    pub fn take(&mut self, units: f64, now: Instant) {
        self.fill(now);
        let debt = -self.burst - MOST_DEBT.as_secs_f64() * self.per_second;
        self.filled = (self.filled - units).clamp(debt, self.burst);
    }

    /// Changes the limit. A larger one is filled in its own time.
    pub fn set_per_minute(&mut self, units: NonZeroU64, now: Instant) {
        self.fill(now);
        let filled = self.filled;
        *self = Self::per_minute(units, now);
        self.filled = filled.min(self.burst);
    }

    fn fill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.at = self.at.max(now);
        self.filled = (self.filled + passed * self.per_second).min(self.burst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_debt_is_paid_within_ten_minutes() {
        let now = Instant::now();
        let mut rate = Rate::per_minute(NonZeroU64::new(50).unwrap(), now);
        rate.take(u64::MAX as f64, now);
        assert!(rate.wait(1.0, now) <= Duration::from_secs(700), "{:?}", rate.wait(1.0, now));
    }

    #[test]
    fn no_minute_holds_more_than_the_limit() {
        for limit in [1, 2, 7, 60, 600, 10_000] {
            let start = Instant::now();
            let mut rate = Rate::per_minute(NonZeroU64::new(limit).unwrap(), start);
            let (mut now, mut taken) = (start, Vec::new());
            while now < start + Duration::from_secs(240) {
                match rate.wait(1.0, now) {
                    Duration::ZERO => {
                        rate.take(1.0, now);
                        taken.push(now);
                    }
                    wait => now += wait.max(Duration::from_micros(1)),
                }
            }
            let minute = Duration::from_secs(60);
            let most = (0..taken.len())
                .map(|first| taken[first..].partition_point(|at| *at < taken[first] + minute))
                .max()
                .unwrap_or_default() as u64;
            assert!(most <= limit, "{most} of {limit}");
            assert!(taken.len() as u64 >= limit * 3, "it flows: {} of {limit}", taken.len());
        }
    }

    #[test]
    fn a_debt_is_paid_before_the_next() {
        let start = Instant::now();
        let mut rate = Rate::per_minute(NonZeroU64::new(6000).unwrap(), start);
        assert_eq!(rate.wait(50_000.0, start), Duration::ZERO, "more than fits goes when the bucket is full");
        rate.take(50_000.0, start);
        let wait = rate.wait(1.0, start);
        assert!(wait > Duration::from_secs(500), "{wait:?}");
        rate.take(-49_500.0, start);
        assert!(rate.wait(1.0, start) < Duration::from_secs(1), "what was not used is given back");
    }

    #[test]
    fn a_changed_limit_gives_nothing_back() {
        let now = Instant::now();
        let of = |units| NonZeroU64::new(units).unwrap();
        let mut rate = Rate::per_minute(of(60), now);
        rate.take(6.0, now);
        rate.set_per_minute(of(600), now);
        assert!(rate.wait(1.0, now) > Duration::ZERO, "a larger limit begins with what was left");
        let mut rate = Rate::per_minute(of(600), now);
        rate.set_per_minute(of(60), now);
        rate.take(6.0, now);
        assert!(
            rate.wait(1.0, now) > Duration::from_millis(900),
            "a smaller one with no more than it allows at once"
        );
    }
}
