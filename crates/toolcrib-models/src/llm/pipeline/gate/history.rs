//! The outcomes of the last attempts at an endpoint: which share of them fails, and whether those that entered last
//! fail more often than that share makes likely.
//!
//! Attempts are judged in the order in which they entered, not in which they ended: an answer to an old request says
//! nothing of an endpoint that refuses all new ones, and failures that are quicker than answers are not counted against
//! it while the answers may still come.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    time::Duration,
};

use tokio::time::Instant;

/// Outcomes that the share of failures is taken from.
const OUTCOMES: u32 = 64;
/// First attempts that the share of failing requests is taken from.
const FIRSTS: u32 = 128;
/// Fewer failures are never suspicious.
const FEWEST: usize = 3;
/// A request that a server that lives failed so often may be one that it cannot do.
const OFTEN: u32 = 3;
/// So many failures are kept at most.
const MOST: usize = 128;
/// Failures are suspicious when chance makes so many of them less likely than this.
const UNLIKELY: f64 = 1e-3;
/// The share of failures that is assumed at least: three in a row are just suspicious where none failed before.
const LEAST_SHARE: f64 = 1.0 / LEAST_SHARE_PARTS as f64;
const LEAST_SHARE_PARTS: usize = 10;
/// The share that is assumed at most: with a greater one no number of failures would be suspicious.
const MOST_SHARE: f64 = 0.9;
/// An error of a server that lives (500) is a sign of an outage only after nothing was answered for so long.
const UNANSWERED: Duration = Duration::from_secs(5);

/// Counts of answers and failures. The time is given, so that it can be tested without waiting.
#[derive(Default)]
pub(super) struct History {
    outcomes: Window<OUTCOMES>,
    firsts: Window<FIRSTS>,
    /// Number of the answered attempt that entered last.
    last_good: u64,
    /// Attempts that entered after it and are still under way; below, those that failed.
    under_way: BTreeSet<u64>,
    failed: BTreeMap<u64, FailureSign>,
    last_answer: Option<Instant>,
    failing_since: Option<Instant>,
}

/// Meaning of a failed attempt for the endpoint.
struct FailureSign {
    /// Whether it is a sign of an outage.
    outage: bool,
    /// Whether it is a sign that the endpoint answers no request. A request that fails repeatedly may be the cause itself.
    silence: bool,
}

/// The last `N` outcomes, at most 128, as bits: a one is a failure.
#[derive(Default)]
struct Window<const N: u32> {
    bits: u128,
    filled: u32,
}

impl History {
    /// An attempt enters, with a greater number than any before.
    pub(super) fn entered(&mut self, number: u64) {
        self.under_way.insert(number);
    }

    /// An attempt ended without saying how it was, or its failure says nothing of the endpoint.
    pub(super) fn left(&mut self, number: u64) {
        self.under_way.remove(&number);
    }

    /// `was_down`: until then the endpoint was down, and its failures say nothing of the share that fails otherwise.
    pub(super) fn answered(&mut self, number: u64, first: bool, was_down: bool, now: Instant) {
        if first {
            self.firsts.push(false);
        }
        if number > self.last_good {
            self.last_good = number;
            self.under_way = self.under_way.split_off(&(number + 1));
            let newer = self.failed.split_off(&(number + 1));
            let older = mem::replace(&mut self.failed, newer);
            for _ in older.iter().filter(|_| !was_down) {
                self.outcomes.push(true);
            }
        }
        self.outcomes.push(false);
        self.last_answer = Some(now);
        self.failing_since = None;
    }

    /// `of_endpoint`: the failure says that the endpoint is down, not that it could not do this request, which failed
    /// so often `before`.
    pub(super) fn failed(&mut self, number: u64, of_endpoint: bool, before: u32, now: Instant) {
        let since = *self.failing_since.get_or_insert(now);
        let unanswered = now.saturating_duration_since(self.last_answer.unwrap_or(since));
        let outage = of_endpoint || unanswered >= UNANSWERED;
        if number < self.last_good {
            return self.outcomes.push(true);
        }
        self.under_way.remove(&number);
        let silence = of_endpoint || before < OFTEN;
        if outage || silence {
            self.failed.insert(number, FailureSign { outage, silence });
        }
        // More than these say no more.
        if self.failed.len() > MOST {
            self.failed.pop_first();
        }
    }

    /// The first attempt of a request failed, and not for lack of room.
    pub(super) fn first_failed(&mut self) {
        self.firsts.push(true);
    }

    /// Whether the signs of an outage are too many for chance.
    pub(super) fn suspects_outage(&self) -> bool {
        self.unlikely(self.failed.values().filter(|failed| failed.outage).count())
    }

    /// Whether the endpoint answers others, as far as is known.
    pub(super) fn answers(&self) -> bool {
        !self.unlikely(self.failed.values().filter(|failed| failed.silence).count())
    }

    /// The share of requests whose first attempt fails, 0 to 1: what was seen and two standard deviations more, so that
    /// chance makes no endpoint look better than it is.
    pub(super) fn failing(&self) -> f64 {
        let (share, seen) = (self.firsts.share(), f64::from(self.firsts.filled.max(1)));
        (share + 2.0 * (share * (1.0 - share) / seen).sqrt() + 1.0 / seen).min(1.0)
    }

    /// Whether so many failures are unlikely among the attempts since the oldest of them: by Chernoff's bound of the
    /// binomial distribution, as if all that are under way were answered. With none of these it is `share ^ failures`.
    fn unlikely(&self, failures: usize) -> bool {
        let Some((oldest, _)) = self.failed.first_key_value().filter(|_| failures >= FEWEST) else {
            return false;
        };
        let share = self.outcomes.share().clamp(LEAST_SHARE, MOST_SHARE);
        // With so many under way the failures are no more than the least share.
        let enough = failures * LEAST_SHARE_PARTS;
        let under_way = self.under_way.range(oldest..).take(enough).count();
        let all = (failures + under_way) as f64;
        let failing = failures as f64 / all;
        if failing <= share {
            return false;
        }
        let rest = if failing < 1.0 { (1.0 - failing) * ((1.0 - failing) / (1.0 - share)).ln() } else { 0.0 };
        -all * (failing * (failing / share).ln() + rest) <= UNLIKELY.ln()
    }
}

impl<const N: u32> Window<N> {
    fn push(&mut self, failed: bool) {
        self.bits = (self.bits << 1 | u128::from(failed)) & (u128::MAX >> (128 - N));
        self.filled = (self.filled + 1).min(N);
    }

    /// The share of failures, 0 where nothing is known.
    fn share(&self) -> f64 {
        f64::from(self.bits.count_ones()) / f64::from(self.filled.max(1))
    }
}
