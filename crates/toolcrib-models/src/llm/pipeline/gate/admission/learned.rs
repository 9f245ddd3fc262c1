//! Learns the concurrency limit of an endpoint from its refusals (429).

use std::time::Duration;

use tokio::time::Instant;

/// After so long without a refusal a learned limit is forgotten: it grows freely again.
const FORGET: Duration = Duration::from_secs(60);
/// So many answers at least, and so many rounds of them, lie between a refusal and the next look for one more place.
const ANSWERS: usize = 64;
const ROUNDS: usize = 4;
/// The fastest growth beyond the place of a refusal: by one in so many, with each round of answers.
const FASTEST: usize = 8;
/// Refusals with no more calls between them than this, or than the limit, belong together.
const TOGETHER: usize = 32;
/// A limit that was not just raised is lowered by so many refusals in a row, each with no more calls than this before
/// it.
const IN_A_ROW: u32 = 3;
const CLOSE: u64 = 8;
/// The fewest calls, most of them refused, from which a limit of calls in a time is inferred.
const FEWEST_CALLS: u64 = 16;
/// Such a limit is held for certain so long, and each time that it is found again twice as long.
const CERTAIN: Duration = Duration::from_secs(60);
/// So many refusals where as many at once were served a moment before: the number at once is not their cause.
const UNEXPLAINED: u32 = 4;

/// A limit as TCP learns it: doubling with each round of answers up to the place of the last refusal. From there on it
/// looks for one more place at a time: seldom at first, as each look may cost a refusal, and twice as soon after each
/// place that was free.
///
/// Not every refusal is a matter of how many there are at once: a rate limit or a faulty server refuses some and serves
/// others. Such refusals go on below a number that was served since they began; after four of them the limit is given
/// up.
pub(super) struct LearnedLimit {
    limit: usize,
    refused_at: Option<(usize, Instant)>,
    /// Places found free since the last refusal, beyond the place of it.
    found: u32,
    /// Answers since it grew last.
    answers: usize,
    /// Calls that had entered when the limit was learned, and when a call was refused last.
    since: u64,
    last_refusal: u64,
    /// Calls that were answered or refused since the limit was learned, and the refused of them.
    ended: u64,
    refused: u64,
    /// Until when it is taken for a limit of calls in a time.
    rate_until: Option<Instant>,
    /// Refusals in a row, next to each other.
    in_a_row: u32,
    refusals: RefusalGroup,
}

/// Refusals that belong together.
#[derive(Clone, Copy, Default)]
struct RefusalGroup {
    /// Calls that had entered when the second of them came back: the first may be what a look for more room cost.
    since: Option<u64>,
    /// Calls that entered after `since` and were refused.
    refused: u64,
    /// Most that were under way beside a call that entered after that and was answered.
    served: Option<usize>,
    /// Refused calls with no more calls beside them than were served together.
    unexplained: u32,
}

/// State of the flow at the time when a call entered.
#[derive(Clone, Copy, Debug)]
pub(in crate::llm::pipeline::gate) struct AdmissionTicket {
    /// Others under way.
    pub(super) beside: usize,
    /// Calls refused so far.
    pub(super) refusals: u64,
    /// Its number among all calls, from 1.
    pub(in crate::llm::pipeline::gate) number: u64,
}

impl LearnedLimit {
    /// No more than `taken` were taken beside a refused one.
    pub(super) fn new(taken: usize, entered: u64, now: Instant) -> Self {
        Self {
            limit: taken,
            refused_at: Some((taken, now)),
            found: 0,
            answers: 0,
            since: entered,
            last_refusal: entered,
            ended: 1,
            refused: 1,
            rate_until: None,
            in_a_row: 0,
            refusals: RefusalGroup::default(),
        }
    }

    /// There is a limit of calls in a time, found for the so many-eth time: one call after the other.
    pub(super) fn rate(found: u32, entered: u64, now: Instant) -> Self {
        let certain = CERTAIN.saturating_mul(2_u32.saturating_pow(found.min(10)));
        Self { rate_until: Some(now + certain), ..Self::new(1, entered, now) }
    }

    /// Whether a call entered under this limit.
    pub(super) fn covers(&self, ticket: AdmissionTicket) -> bool {
        ticket.number > self.since
    }

    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    pub(super) fn lower(&mut self, taken: usize, now: Instant) {
        self.limit = self.limit.min(taken.max(1));
        self.refused_at = Some((self.limit, now));
        (self.found, self.answers) = (0, 0);
    }

    /// A call was refused while `taken` others were under way and `entered` had entered. Whether the limit explains
    /// that.
    pub(super) fn refused(
        &mut self,
        ticket: AdmissionTicket,
        taken: usize,
        entered: u64,
        now: Instant,
    ) -> bool {
        self.ended += 1;
        self.refused += 1;
        if !self.covers(ticket) {
            // One more of the wave that met the limit.
            self.lower(taken, now);
            return true;
        }
        let calls = entered - self.last_refusal;
        self.last_refusal = entered;
        self.in_a_row = if calls <= CLOSE { self.in_a_row + 1 } else { 1 };
        if calls > self.limit.max(TOGETHER) as u64 {
            self.refusals = RefusalGroup::default();
        } else {
            let since = *self.refusals.since.get_or_insert(entered);
            if ticket.number > since {
                let served = self.refusals.served.is_some_and(|served| ticket.beside <= served);
                self.refusals.refused += 1;
                self.refusals.unexplained += u32::from(served);
            }
        }
        // One refusal among many answers is no reason to go on with fewer, unless one more place was tried.
        if self.found > 0 || self.in_a_row >= IN_A_ROW {
            self.lower(taken, now);
        }
        let mostly = self.refuses_most(entered);
        if mostly && self.in_a_row >= IN_A_ROW {
            self.limit = (self.limit * 3 / 4).max(1);
        }
        self.knows_rate(now) || mostly || self.refusals.unexplained < UNEXPLAINED
    }

    /// Whether two of three calls of late were refused. Then there is a limit, if only of calls in a time.
    fn refuses_most(&self, entered: u64) -> bool {
        let calls = entered - self.refusals.since.unwrap_or(entered);
        calls >= FEWEST_CALLS && 3 * self.refusals.refused > 2 * calls
    }

    /// Whether the refusal of a call that was alone comes from a limit of calls in a time: three of four were refused,
    /// from the first refusal until then.
    pub(super) fn is_rate(&mut self, now: Instant) -> bool {
        if let Some(until) = self.rate_until {
            return now < until;
        }
        let found = self.ended >= 2 * FEWEST_CALLS && 4 * self.refused > 3 * self.ended;
        self.rate_until = found.then(|| now + CERTAIN);
        found
    }

    /// Whether a limit of calls in a time was found, and is still certain.
    pub(super) fn knows_rate(&self, now: Instant) -> bool {
        self.rate_until.is_some_and(|until| now < until)
    }

    /// The endpoint was paused for so long that it may take more now: the limit grows freely again.
    pub(super) fn forget(&mut self) {
        self.refused_at = None;
    }

    /// A call was answered. Whether the limit can be forgotten. `idle`: no request waits.
    pub(super) fn answered(
        &mut self,
        ticket: AdmissionTicket,
        idle: bool,
        under_way: usize,
        now: Instant,
    ) -> bool {
        self.ended += 1;
        if self.refusals.since.is_some_and(|since| ticket.number > since) {
            self.refusals.served = self.refusals.served.max(Some(ticket.beside));
        }
        self.refused_at = self.refused_at.filter(|(_, at)| now.saturating_duration_since(*at) < FORGET);
        if self.refused_at.is_some_and(|(limit, _)| self.limit >= limit) {
            // If no request is held back, there is nothing to find out.
            self.answers += usize::from(!idle);
            if self.answers >= self.until_next() {
                self.found += 1;
                self.answers = 0;
                self.limit += 1;
            }
        } else {
            self.limit += 1;
        }
        idle && self.refused_at.is_none() && 2 * under_way < self.limit
    }

    /// Answers from one look for a free place to the next.
    fn until_next(&self) -> usize {
        let first = (ROUNDS * self.limit).max(ANSWERS);
        first.checked_shr(self.found).unwrap_or(0).max(self.limit / FASTEST).max(1)
    }
}
