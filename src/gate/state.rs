//! What a gate knows, and how it decides. Pure but for the draw of jitter: the time is given.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::{sync::Notify, time::Instant};

use super::{GateStats, Patience, Refused, Shut, Trouble, Verdict, budget::Budget, flow::Flow};

/// So many failures in a row, with no answer between, and the endpoint is down.
const DOWN_AFTER: u32 = 3;
/// A refused key or account is not tried again for so long.
const SHUT: Duration = Duration::from_secs(30);
/// Answers after a pause until the next pause is short again.
const STEADY: u32 = 3;

#[derive(Default)]
pub(super) struct State {
    pub flow: Flow,
    pub queued: Duration,
    waiting: BTreeMap<u64, Waiter>,
    mode: Mode,
    /// Grows with each pause: what entered before one says nothing about the time after it.
    epoch: u64,
    next_order: u64,
    /// Pauses since the endpoint was last steady, and answers since the last of them.
    round: u32,
    good: u32,
    /// Failures in a row.
    troubles: u32,
    spoke: bool,
    budget: Budget,
    paused: Duration,
    paused_since: Option<Instant>,
    pauses: u64,
}

#[derive(Default)]
enum Mode {
    #[default]
    Open,
    /// Nobody goes before `until`, and then one. `asked`: the endpoint named the time.
    Paused {
        until: Instant,
        asked: bool,
    },
    /// The one is under way.
    Probing,
    Shut {
        until: Instant,
        why: Shut,
    },
}

/// One who waits.
pub(super) struct Waiter {
    pub called: Arc<Notify>,
    pub not_before: Option<Instant>,
    /// Requests that met the endpoint down.
    pub paid: u32,
}

/// What a call that entered knows of the gate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entered {
    epoch: u64,
    /// Whether the gate was fully open.
    open: bool,
    /// Others under way.
    beside: usize,
    /// Calls refused so far.
    refusals: u64,
}

pub(super) enum Step {
    In(Entered),
    Refused(Refused),
    /// Wait until called, or until then, while the endpoint is down.
    Paused(Option<Instant>),
    /// Wait until called, or until then.
    Wait(Option<Instant>),
}

/// How a call that failed goes again: with what it paid for an endpoint that is down, and not before this.
#[derive(Default)]
pub(super) struct Again {
    pub paid: bool,
    pub not_before: Option<Instant>,
}

impl State {
    pub(super) fn next_order(&mut self) -> u64 {
        self.next_order += 1;
        self.next_order
    }

    pub(super) fn arrive(&mut self, order: u64, waiter: Waiter) {
        self.waiting.insert(order, waiter);
    }

    /// Time of all pauses until now.
    pub(super) fn paused_until(&self, now: Instant) -> Duration {
        self.paused + self.paused_since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    /// What the call at `order` does next. A pause that was asked for is waited for up to `limit`.
    pub(super) fn step(&mut self, order: u64, tokens: f64, limit: Duration, now: Instant) -> Step {
        match &self.mode {
            Mode::Shut { until, why } if now < *until => return Step::Refused(Refused::Shut(why.clone())),
            Mode::Shut { .. } => self.mode = Mode::Paused { until: now, asked: false },
            Mode::Paused { until, asked: true } if *until - now > limit => {
                return Step::Refused(Refused::Asked { left: *until - now, limit });
            }
            Mode::Paused { until, .. } if now < *until => return Step::Paused(Some(*until)),
            Mode::Probing => return Step::Paused(None),
            Mode::Open | Mode::Paused { .. } => {}
        }
        let probing = !matches!(self.mode, Mode::Open);
        let wait = if probing { Step::Paused } else { Step::Wait };
        let own = self.waiting.get(&order).and_then(|waiter| waiter.not_before);
        if let Some(not_before) = own.filter(|not_before| *not_before > now) {
            return wait(Some(not_before));
        }
        if let Some((_, waiter)) = self.first_ready(now).filter(|(first, _)| *first != order) {
            waiter.called.notify_one();
            return wait(None);
        }
        if let Err(until) = self.flow.enter(tokens, now) {
            return wait(until);
        }
        self.waiting.remove(&order);
        let entered = Entered {
            epoch: self.epoch,
            open: !probing && !self.flow.is_ramp(),
            beside: self.flow.fresh - 1,
            refusals: self.flow.refusals,
        };
        if probing {
            self.mode = Mode::Probing;
        }
        Step::In(entered)
    }

    /// The call at `order` entered, or went away.
    pub(super) fn leave_queue(&mut self, order: u64, now: Instant) {
        self.waiting.remove(&order);
        self.call_next(now);
    }

    pub(super) fn answered(&mut self, entered: Entered, patience: &Patience, now: Instant) {
        self.spoke = true;
        self.budget.earn(now);
        if self.leave(entered) {
            self.works(patience, now);
        }
        self.call_next(now);
    }

    /// A call ended without saying how it was. The next one probes in its place.
    pub(super) fn given_up(&mut self, entered: Entered, now: Instant) {
        if self.leave(entered) && matches!(self.mode, Mode::Probing) {
            self.mode = Mode::Paused { until: now, asked: false };
        }
        self.call_next(now);
    }

    pub(super) fn failed(
        &mut self,
        entered: Entered,
        trouble: Trouble,
        hint: Option<Duration>,
        patience: &Patience,
        now: Instant,
    ) -> (Verdict, Again) {
        let current = self.leave(entered);
        let probed = current && matches!(self.mode, Mode::Probing);
        self.spoke |=
            matches!(trouble, Trouble::Throttled | Trouble::None { .. } | Trouble::Outage { spoke: true });
        let by_gate = Verdict { own_wait: None, counts: true };
        let answer = match trouble {
            Trouble::Outage { .. } => self.outage(entered, current, hint, patience, now),
            Trouble::Throttled => self.throttled(entered, current && !probed, hint, patience, now),
            Trouble::Local if current && !probed && self.flow.fresh > 0 => {
                self.flow.refused(entered.beside, now);
                (Verdict { counts: false, ..by_gate }, Again::default())
            }
            Trouble::Local => {
                if probed {
                    self.mode = Mode::Paused { until: now + patience.probe.0, asked: false };
                }
                (self.own_wait(now), Again::default())
            }
            Trouble::Shut(why) => {
                if current {
                    self.epoch += 1;
                    self.flow.paused();
                    self.clock(false, now);
                    self.mode = Mode::Shut { until: now + SHUT, why };
                    self.call_all();
                }
                (by_gate, Again::default())
            }
            Trouble::None { again } => {
                if current {
                    self.works(patience, now);
                }
                // Only repetitions are on the budget.
                (if again { self.own_wait(now) } else { by_gate }, Again::default())
            }
        };
        self.call_next(now);
        answer
    }

    /// It is down for one. After some in a row, or when it says so itself, it is for all.
    fn outage(
        &mut self,
        entered: Entered,
        current: bool,
        hint: Option<Duration>,
        patience: &Patience,
        now: Instant,
    ) -> (Verdict, Again) {
        self.troubles += u32::from(current);
        let ramp = current && self.flow.is_ramp();
        if current && (ramp || hint.is_some() || self.troubles >= DOWN_AFTER) {
            self.pause(hint, patience, now);
        } else if let (Mode::Paused { until, asked }, Some(hint)) = (&mut self.mode, hint) {
            *until = (*until).max(now + spread(hint));
            *asked = true;
            self.call_all();
        }
        if matches!(self.mode, Mode::Open) && !self.flow.is_ramp() {
            return (self.own_wait(now), Again { paid: true, not_before: None });
        }
        // One that never said a word may be a wrong address: then every attempt counts.
        let counts = entered.open || !self.spoke;
        (Verdict { own_wait: None, counts }, Again { paid: true, not_before: None })
    }

    /// It works, and is full. `beside`: the refused call was no probe, so that others may be served.
    fn throttled(
        &mut self,
        entered: Entered,
        beside: bool,
        hint: Option<Duration>,
        patience: &Patience,
        now: Instant,
    ) -> (Verdict, Again) {
        let by_gate = Verdict { own_wait: None, counts: true };
        let current = entered.epoch == self.epoch;
        if current && !(beside && self.flow.fresh > 0) {
            self.pause(hint, patience, now);
            return (by_gate, Again { paid: true, not_before: None });
        }
        if current {
            // Those that are left were taken, and those that were answered since it went.
            let since = usize::try_from(self.flow.refusals - entered.refusals).unwrap_or(usize::MAX);
            self.flow.refused(self.flow.fresh.max(entered.beside.saturating_sub(since)), now);
            self.troubles = 0;
        } else if matches!(self.mode, Mode::Open) && !self.flow.is_learned() {
            // Nothing here would make it wait.
            return (self.own_wait(now), Again::default());
        }
        // The others go on as places get free; this one was told when to come again.
        (by_gate, Again { paid: false, not_before: hint.map(|hint| now + spread(hint)) })
    }

    pub(super) fn stats(&self) -> GateStats {
        GateStats {
            in_flight: self.flow.in_flight,
            peak: self.flow.peak,
            waiting: self.waiting.len(),
            queued: self.queued,
            pauses: self.pauses,
            limit: self.flow.limit(),
        }
    }

    /// Gives a place back. Whether what came of the call says something about now.
    fn leave(&mut self, entered: Entered) -> bool {
        let current = entered.epoch == self.epoch;
        self.flow.leave(current);
        current
    }

    /// The endpoint answers: open, or open further.
    fn works(&mut self, patience: &Patience, now: Instant) {
        self.troubles = 0;
        self.good += 1;
        if self.good >= STEADY {
            self.round = 0;
        }
        self.flow.grow(self.waiting.is_empty(), now);
        if !matches!(self.mode, Mode::Open) {
            let outage =
                self.paused_since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
            self.clock(false, now);
            self.mode = Mode::Open;
            // Those who waited for the same moment must not all use it.
            let within = patience.probe.0.min(outage / 10);
            for waiter in self.waiting.values_mut() {
                let drawn = now + within.mul_f64(fastrand::f64());
                waiter.not_before = Some(waiter.not_before.map_or(drawn, |at| at.max(drawn)));
            }
            self.call_all();
        }
    }

    fn pause(&mut self, hint: Option<Duration>, patience: &Patience, now: Instant) {
        let (base, cap) = patience.probe;
        let doubled = base.saturating_mul(2_u32.saturating_pow(self.round)).min(cap);
        let own = doubled.mul_f64(f64::midpoint(1.0, fastrand::f64()));
        let wait = hint.map_or(own, |hint| own.max(spread(hint)));
        self.round += 1;
        self.good = 0;
        self.pauses += 1;
        self.epoch += 1;
        self.flow.paused();
        self.clock(true, now);
        self.mode = Mode::Paused { until: now + wait, asked: hint.is_some() };
        tracing::debug!(?wait, waiting = self.waiting.len(), "the endpoint is paused");
        // Each sets its own alarm, or finds that this is too long to wait.
        self.call_all();
    }

    fn own_wait(&mut self, now: Instant) -> Verdict {
        Verdict { own_wait: Some(self.budget.spend(now)), counts: true }
    }

    fn clock(&mut self, runs: bool, now: Instant) {
        match (runs, self.paused_since) {
            (true, None) => self.paused_since = Some(now),
            (false, Some(since)) => {
                self.paused += now.saturating_duration_since(since);
                self.paused_since = None;
            }
            _ => {}
        }
    }

    /// The next one: by arrival, but to probe the one who paid least for that so far.
    fn first_ready(&self, now: Instant) -> Option<(u64, &Waiter)> {
        let mut ready = self
            .waiting
            .iter()
            .map(|(order, waiter)| (*order, waiter))
            .filter(|(_, waiter)| waiter.not_before.is_none_or(|at| at <= now));
        match self.mode {
            Mode::Open => ready.next(),
            _ => ready.min_by_key(|(order, waiter)| (waiter.paid, *order)),
        }
    }

    /// Calls the first who may go, who on entering calls the next.
    fn call_next(&self, now: Instant) {
        let open = match &self.mode {
            Mode::Open => self.flow.has_room(),
            Mode::Paused { until, .. } | Mode::Shut { until, .. } => *until <= now,
            Mode::Probing => false,
        };
        if open && let Some((_, waiter)) = self.first_ready(now) {
            waiter.called.notify_one();
        }
    }

    fn call_all(&self) {
        for waiter in self.waiting.values() {
            waiter.called.notify_one();
        }
    }
}

/// A wait that was asked of many, and at which they must not all come back in the same instant.
fn spread(hint: Duration) -> Duration {
    hint.saturating_add((hint / 10).min(Duration::from_secs(1)).mul_f64(fastrand::f64()))
}
