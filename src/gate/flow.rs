//! How much goes through a gate: the limits that are set, and the one that is learned from refusals.

use std::time::Duration;

use tokio::time::Instant;

use super::Bounds;
use crate::limit::Rate;

/// After so long without a refusal a learned limit is forgotten: it grows freely again.
const FORGET: Duration = Duration::from_secs(60);

/// With so many at once it is open again for all that matters: one failure among them is no outage.
const STEADY: usize = 16;

/// So many answers at least, and so many rounds of them, lie between a refusal and the next look for one more place.
const ANSWERS: usize = 64;
const ROUNDS: usize = 4;
/// The fastest growth beyond the place of a refusal: by one in so many, with each round of answers.
const FASTEST: usize = 8;

#[derive(Default)]
pub(super) struct Flow {
    pub in_flight: usize,
    pub peak: usize,
    /// Of those in flight, the ones that entered since the last pause.
    pub fresh: usize,
    max: Option<usize>,
    requests: Option<Rate>,
    tokens: Option<Rate>,
    learned: Option<Learned>,
    /// Calls that found no place so far.
    pub refusals: u64,
}

/// A limit as TCP learns it: doubling with each round of answers up to the place of the last refusal. From there on it
/// looks for one more place at a time: seldom at first, as each look may cost a refusal, and twice as soon after each
/// place that was free. A call that finds out that there is no more room pays for it with the wait it is told.
struct Learned {
    limit: usize,
    refused_at: Option<(usize, Instant)>,
    /// Places found free since the last refusal, beyond the place of it.
    found: u32,
    /// Answers since it grew last.
    answers: usize,
    /// It began with a pause, and not with a refusal while others were served.
    ramp: bool,
}

impl Flow {
    pub(super) fn bound(&mut self, bounds: Bounds, now: Instant) {
        self.max = self.max.into_iter().chain(bounds.in_flight.map(Into::into)).min();
        let rate = |known: &mut Option<Rate>, new: Option<_>| {
            let new = new.map(|units| Rate::per_minute(units, now));
            *known = match (known.take(), new) {
                (Some(known), Some(new)) => Some(known.stricter(new)),
                (known, new) => known.or(new),
            };
        };
        rate(&mut self.requests, bounds.requests);
        rate(&mut self.tokens, bounds.tokens);
    }

    /// The limit in force, and nothing if there is none.
    pub(super) fn limit(&self) -> Option<usize> {
        let learned = self.learned.as_ref().map(|learned| learned.limit);
        self.max.into_iter().chain(learned).min()
    }

    /// Whether the gate is not yet fully open after a pause.
    pub(super) fn is_ramp(&self) -> bool {
        self.learned.as_ref().is_some_and(|learned| learned.ramp)
    }

    pub(super) fn is_learned(&self) -> bool {
        self.learned.is_some()
    }

    pub(super) fn has_room(&self) -> bool {
        let learned = self.learned.as_ref().is_none_or(|learned| self.fresh < learned.limit);
        learned && self.max.is_none_or(|max| self.in_flight < max)
    }

    /// Takes a place for a call of so many tokens, or says when there will be one, if only time is missing.
    pub(super) fn enter(&mut self, tokens: f64, now: Instant) -> Result<(), Option<Instant>> {
        if !self.has_room() {
            return Err(None);
        }
        let wait = |rate: &mut Option<Rate>, units| {
            rate.as_mut().map_or(Duration::ZERO, |rate: &mut Rate| rate.wait(units, now))
        };
        let wait = wait(&mut self.requests, 1.0).max(wait(&mut self.tokens, tokens));
        if !wait.is_zero() {
            return Err(Some(now + wait));
        }
        if let Some(rate) = &mut self.requests {
            rate.take(1.0, now);
        }
        self.correct(tokens, now);
        self.in_flight += 1;
        self.fresh += 1;
        self.peak = self.peak.max(self.in_flight);
        Ok(())
    }

    /// Counts tokens beyond, or below, those that were estimated.
    pub(super) fn correct(&mut self, tokens: f64, now: Instant) {
        if let Some(rate) = &mut self.tokens {
            rate.take(tokens, now);
        }
    }

    pub(super) fn leave(&mut self, fresh: bool) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.fresh = self.fresh.saturating_sub(usize::from(fresh));
    }

    /// From now on one at a time; those still under way do not count.
    pub(super) fn paused(&mut self) {
        let refused_at = self.learned.as_ref().and_then(|learned| learned.refused_at);
        self.learned = Some(Learned { limit: 1, refused_at, found: 0, answers: 0, ramp: true });
        self.fresh = 0;
    }

    /// No more were taken than these beside the refused one.
    pub(super) fn refused(&mut self, taken: usize, now: Instant) {
        let known = self.learned.as_ref().map_or(usize::MAX, |learned| learned.limit);
        let limit = known.min(taken.max(1));
        let refused_at = Some((limit, now));
        self.learned = Some(Learned { limit, refused_at, found: 0, answers: 0, ramp: false });
        self.refusals += 1;
    }

    /// An answer came: more may follow. `idle`: nobody waits.
    pub(super) fn grow(&mut self, idle: bool, now: Instant) {
        let Some(learned) = &mut self.learned else { return };
        learned.refused_at = learned.refused_at.filter(|(_, at)| now.saturating_duration_since(*at) < FORGET);
        if learned.refused_at.is_some_and(|(limit, _)| learned.limit >= limit) {
            // Where nobody is held back there is nothing to be found out.
            learned.answers += usize::from(!idle);
            if learned.answers >= learned.until_next() {
                learned.found += 1;
                learned.answers = 0;
                learned.limit += 1;
            }
        } else {
            learned.limit += 1;
        }
        learned.ramp &= learned.limit < STEADY;
        if idle && learned.refused_at.is_none() && 2 * self.fresh < learned.limit {
            self.learned = None;
        }
    }
}

impl Learned {
    /// Answers from one look for a free place to the next.
    fn until_next(&self) -> usize {
        let first = (ROUNDS * self.limit).max(ANSWERS);
        first.checked_shr(self.found).unwrap_or(0).max(self.limit / FASTEST).max(1)
    }
}
