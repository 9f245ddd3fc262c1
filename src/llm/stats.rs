//! What a model client counts.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use crate::{gate::GateStats, task::Usage};

/// What a client counted so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LlmStats {
    /// Requests made.
    pub requests: u64,
    /// Requests answered.
    pub answered: u64,
    /// Attempts on the wire.
    pub attempts: u64,
    /// Attempts beyond the first of each request.
    pub retries: u64,
    /// Attempts under way.
    pub in_flight: usize,
    /// Most attempts under way at once.
    pub peak: usize,
    /// Waiting for the in-flight limit.
    pub waiting: usize,
    /// Time spent waiting for it, all together.
    pub queued: Duration,
    /// Most attempts that may be under way now: the configured limit, or a smaller one learned from refusals.
    pub limit: Option<usize>,
    /// How often the endpoint was paused for being down or overloaded.
    pub pauses: u64,
    /// Tokens, as the server counts them.
    pub usage: Usage,
    /// Connections opened to model servers of this kind (loopback, elsewhere) by the shared HTTP client.
    pub connections_opened: u64,
}

/// The counters themselves.
#[derive(Default)]
pub(super) struct Counters {
    requests: AtomicU64,
    answered: AtomicU64,
    attempts: AtomicU64,
    retries: AtomicU64,
    usage: Mutex<Usage>,
}

impl Counters {
    pub(super) fn request(&self) {
        self.requests.fetch_add(1, Relaxed);
    }

    /// Counts the attempt of this number, from 1, of some request.
    pub(super) fn attempt(&self, number: u32) {
        self.attempts.fetch_add(1, Relaxed);
        if number > 1 {
            self.retries.fetch_add(1, Relaxed);
        }
    }

    pub(super) fn answered(&self, usage: Usage) {
        self.answered.fetch_add(1, Relaxed);
        *self.usage.lock().unwrap_or_else(PoisonError::into_inner) += usage;
    }

    pub(super) fn stats(&self, gate: &GateStats, connections_opened: u64) -> LlmStats {
        LlmStats {
            requests: self.requests.load(Relaxed),
            answered: self.answered.load(Relaxed),
            attempts: self.attempts.load(Relaxed),
            retries: self.retries.load(Relaxed),
            in_flight: gate.in_flight,
            peak: gate.peak,
            waiting: gate.waiting,
            queued: gate.queued,
            limit: gate.limit,
            pauses: gate.pauses,
            usage: *self.usage.lock().unwrap_or_else(PoisonError::into_inner),
            connections_opened,
        }
    }
}
