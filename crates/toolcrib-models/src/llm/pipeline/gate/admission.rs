//! Limits how many requests pass a gate: the configured limits, the ramp after an outage, and the limit that is learned
//! from refusals.

use std::{num::NonZeroU64, time::Duration};

use tokio::time::Instant;

use super::Bounds;
use crate::limit::Rate;

mod learned;

pub(super) use learned::AdmissionTicket;
use learned::LearnedLimit;

/// Requests at once that end a ramp: with this many, the gate counts as open again.
const STEADY: usize = 512;
/// Requests at once after a pause; each answer adds two.
const AFTER_PAUSE: usize = 8;
/// Requests beside those under way after a suspicion that proved wrong.
const AFTER_SUSPICION: usize = 16;
/// The pause after which a learned limit is in doubt.
const LONG_PAUSE: Duration = Duration::from_secs(10);
/// A refusal teaches nothing for so long after a learned limit proved wrong.
const UNTEACHABLE: Duration = Duration::from_secs(30);

#[derive(Default)]
pub(super) struct Admission {
    pub in_flight: usize,
    pub peak: usize,
    /// Requests in flight that entered since the last pause.
    pub fresh: usize,
    /// The limits that were set; those below may be a part of them.
    bounds: Bounds,
    max: Option<usize>,
    requests: Option<Rate>,
    tokens: Option<Rate>,
    /// At most so many at once, after a pause or a suspicion, until the endpoint is steady again.
    ramp: Option<usize>,
    learned: Option<LearnedLimit>,
    unteachable: Option<LearningPause>,
    /// How often a limit of calls in a time was found again.
    rates: u32,
    /// Calls that entered so far, and those of them that found no place.
    entered: u64,
    refusals: u64,
}

/// The time after a learned limit proved wrong, in which no limit is learned, and the refusals in it.
struct LearningPause {
    until: Instant,
    /// Calls that had entered when this count began.
    since: u64,
    /// The refused ones of those that entered after it.
    refused: u64,
}

/// The likely cause of a refused request.
pub(super) enum RefusalCause {
    /// There are too many at once. The call goes again when one of the others is answered. `again`: it was refused
    /// though there were no more at once than were thought to have room.
    Full { again: bool },
    /// Too many requests in a time: not even one at a time is taken.
    Rate,
    /// No known cause.
    Unexplained,
}

impl LearningPause {
    /// So many calls are judged together.
    const JUDGED: u64 = 64;

    /// A call was refused. Whether so many are that it is a limit of calls in a time.
    fn refuses_most(&mut self, ticket: AdmissionTicket, entered: u64) -> bool {
        // Those that entered before are of the last judgement.
        self.refused += u64::from(ticket.number > self.since);
        let calls = entered - self.since;
        let most = calls >= Self::JUDGED && 5 * self.refused > 3 * calls;
        if calls >= 2 * Self::JUDGED {
            (self.since, self.refused) = (entered, 0);
        }
        most
    }
}

impl Admission {
    pub(super) fn bound(&mut self, bounds: Bounds, now: Instant) {
        let known = &mut self.bounds;
        known.in_flight = known.in_flight.into_iter().chain(bounds.in_flight).min();
        known.requests = known.requests.into_iter().chain(bounds.requests).min();
        known.tokens = known.tokens.into_iter().chain(bounds.tokens).min();
        self.max = known.in_flight.map(Into::into);
        set_rate(&mut self.requests, known.requests, now);
        set_rate(&mut self.tokens, known.tokens, now);
    }

    pub(super) fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// Lets this part of the limits count in place of the whole.
    pub(super) fn allow(&mut self, part: crate::llm::EndpointLimits, now: Instant) {
        let none = [part.in_flight, part.requests, part.tokens].contains(&Some(0));
        let places = part.in_flight.map(|places| usize::try_from(places).unwrap_or(usize::MAX));
        self.max = if none { Some(0) } else { places };
        set_rate(&mut self.requests, part.requests.and_then(NonZeroU64::new), now);
        set_rate(&mut self.tokens, part.tokens.and_then(NonZeroU64::new), now);
    }

    /// The limit in force, and `None` if there is none.
    pub(super) fn limit(&self) -> Option<usize> {
        self.max.into_iter().chain(self.fresh_limit()).min()
    }

    /// The limit of those that entered since the last pause.
    fn fresh_limit(&self) -> Option<usize> {
        self.learned.as_ref().map(LearnedLimit::limit).into_iter().chain(self.ramp).min()
    }

    pub(super) fn has_room(&self) -> bool {
        self.fresh_limit().is_none_or(|limit| self.fresh < limit)
            && self.max.is_none_or(|max| self.in_flight < max)
    }

    /// Takes a place for a call of so many tokens, or says when there will be one, if only time is missing.
    pub(super) fn enter(&mut self, tokens: f64, now: Instant) -> Result<AdmissionTicket, Option<Instant>> {
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
        self.entered += 1;
        let ticket = AdmissionTicket { beside: self.fresh, refusals: self.refusals, number: self.entered };
        self.in_flight += 1;
        self.fresh += 1;
        self.peak = self.peak.max(self.in_flight);
        Ok(ticket)
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

    /// So many at once while the endpoint is paused. Those still under way do not count.
    pub(super) fn paused(&mut self, probes: usize) {
        self.ramp = Some(probes);
        self.fresh = 0;
    }

    /// The endpoint answered after a pause of so long.
    pub(super) fn resumed(&mut self, pause: Duration) {
        self.ramp = Some(AFTER_PAUSE);
        if let Some(learned) = self.learned.as_mut().filter(|_| pause >= LONG_PAUSE) {
            learned.forget();
        }
    }

    /// The endpoint answered while it was suspected to be down.
    pub(super) fn cleared(&mut self) {
        self.ramp = Some(self.ramp.map_or(0, |ramp| ramp.max(self.fresh)).max(self.fresh + AFTER_SUSPICION));
    }

    /// An answer came: more may follow. `idle`: no request waits.
    pub(super) fn answered(&mut self, ticket: AdmissionTicket, idle: bool, now: Instant) {
        self.ramp = self.ramp.map(|ramp| ramp + 2).filter(|ramp| *ramp < STEADY);
        if let Some(learned) = &mut self.learned
            && learned.answered(ticket, idle, self.fresh, now)
        {
            self.learned = None;
        }
    }

    /// The endpoint refused a call for lack of room while the gate was open.
    pub(super) fn refused(&mut self, ticket: AdmissionTicket, now: Instant) -> RefusalCause {
        // Those that are left were taken, and those that were answered since it went.
        let since = usize::try_from(self.refusals - ticket.refusals).unwrap_or(usize::MAX);
        let taken = self.fresh.max(ticket.beside.saturating_sub(since));
        self.refusals += 1;
        if taken == 0 {
            if self.learned.as_mut().is_some_and(|learned| learned.covers(ticket) && learned.is_rate(now)) {
                return RefusalCause::Rate;
            }
            // A late refusal of the wave that met a limit of calls in a time says nothing against it.
            match &self.learned {
                Some(learned) if learned.covers(ticket) => self.drop_learned_limit(true, now),
                Some(learned) if !learned.knows_rate(now) => self.drop_learned_limit(false, now),
                _ => {}
            }
            return RefusalCause::Unexplained;
        }
        if let Some(unteachable) = self.unteachable.as_mut().filter(|unteachable| now < unteachable.until) {
            if !unteachable.refuses_most(ticket, self.entered) {
                return RefusalCause::Unexplained;
            }
            self.unteachable = None;
            self.rates += 1;
            self.learned = Some(LearnedLimit::rate(self.rates, self.entered, now));
            return RefusalCause::Rate;
        }
        let Some(learned) = &mut self.learned else {
            self.learned = Some(LearnedLimit::new(taken, self.entered, now));
            return RefusalCause::Full { again: false };
        };
        let again = learned.covers(ticket);
        if !learned.refused(ticket, taken, self.entered, now) {
            self.drop_learned_limit(true, now);
            return RefusalCause::Unexplained;
        }
        RefusalCause::Full { again }
    }

    /// There is no limit after all. `wrong`: refusals that are no matter of how many there are at once will go on.
    fn drop_learned_limit(&mut self, wrong: bool, now: Instant) {
        self.learned = None;
        if wrong {
            self.unteachable =
                Some(LearningPause { until: now + UNTEACHABLE, since: self.entered, refused: 0 });
        }
    }

    /// This machine opens no more connections than those that are under way.
    pub(super) fn exhausted(&mut self, now: Instant) {
        let limit = self.fresh.max(1);
        match &mut self.learned {
            Some(learned) => learned.lower(limit, now),
            None => self.learned = Some(LearnedLimit::new(limit, self.entered, now)),
        }
    }
}

/// Changes a limit in a minute. What was taken by now is not given back.
fn set_rate(rate: &mut Option<Rate>, units: Option<NonZeroU64>, now: Instant) {
    match (rate.as_mut(), units) {
        (Some(rate), Some(units)) => rate.set_per_minute(units, now),
        (None, Some(units)) => *rate = Some(Rate::per_minute(units, now)),
        (_, None) => {}
    }
}
