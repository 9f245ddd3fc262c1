//! The one retry loop. It records every failed attempt, so that attempts reported equal attempts made.

use std::time::Duration;

use tokio::time::Instant;

use super::{Decision, EndpointState, FailureRecord, GiveUp, RetryPolicy};
use crate::trace;

/// State that the loop passes to an attempt.
#[derive(Debug, Clone, Copy)]
pub struct AttemptContext {
    /// Number of the attempt on the wire, from 1.
    pub number: u32,
    /// The wait before it.
    pub waited: Duration,
    /// The rest of the policy's total time.
    pub left: Duration,
    /// Time since the first failure; zero before it.
    pub failing_for: Duration,
}

/// A failed attempt, as the operation reports it.
#[derive(Debug)]
pub struct Failure<E> {
    /// The error of the attempt.
    pub error: E,
    /// Whether it may be repeated.
    pub retry: Retry,
    /// The wait that the server asked for.
    pub hint: Option<Duration>,
    /// The owner of the next wait, and the meaning of this failure for the endpoint.
    pub blame: FailureWeight,
    /// Time of this attempt spent in a queue of our own; it does not count against the policy's total.
    pub queued: Duration,
}

/// Meaning of a failed attempt for its endpoint and for the wait before the next attempt.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FailureWeight {
    /// Owner of the wait before the next attempt.
    pub pace: WaitOwner,
    /// Whether a request was sent: it was not where this machine could open no connection.
    pub sent: bool,
    /// Whether it is a sign that the endpoint is down.
    pub outage: bool,
    /// The share of requests to the same endpoint whose first attempt fails, 0 to 1.
    pub failing: f64,
}

/// Owner of the wait before the next attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitOwner {
    /// The retry loop.
    Own(EndpointState),
    /// The operation itself, where all who want the same wait together.
    Gate,
}

impl FailureWeight {
    /// The weight for a request whose endpoint is not observed: only the number of attempts ends it.
    pub const OWN: Self =
        Self { pace: WaitOwner::Own(EndpointState::Answering), sent: true, outage: false, failing: 1.0 };
}

/// Whether a failure may be repeated. Only the caller knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// Repeating cannot help.
    Never,
    /// No repetition now, for this reason.
    Stop(GiveUp),
    /// The policy decides.
    Yes,
    /// The policy decides, but failures of this class are repeated at most so often.
    AtMost {
        /// The class that is counted.
        class: &'static str,
        /// Repetitions of it.
        retries: u32,
    },
    /// The attempt met a connection that was gone already: repeat at once, but only once.
    AtOnce,
    /// There was an answer, but a better one is asked for, at once; the caller keeps count.
    Again,
}

/// The outcome of the retry loop.
#[derive(Debug)]
pub struct RetryOutcome<T, E> {
    /// The answer, or why there was no further attempt after the last failure.
    pub result: Result<T, StopReason>,
    /// The failures in order. Not empty when `result` is an error.
    pub failures: Vec<E>,
    /// All waits between attempts.
    pub waited: Duration,
}

/// Why the attempts ended without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// The last failure is one that repeating cannot help.
    Permanent,
    /// It could be repeated, but not now.
    GaveUp(GiveUp),
}

/// Calls `operation` until it succeeds, fails for good, or the policy or the deadline says stop.
///
/// Dropping the future ends everything at once; the deadline is for callers that want to know what failed. An attempt
/// is not cut short here: the operation gets the time that is left and must obey it.
pub async fn run<T, E, F>(
    policy: &RetryPolicy,
    deadline: Option<Instant>,
    mut operation: impl FnMut(AttemptContext) -> F,
) -> RetryOutcome<T, E>
where
    F: Future<Output = Result<T, Failure<E>>>,
{
    let start = Instant::now();
    let mut failures = Vec::new();
    let mut per_class: Vec<&'static str> = Vec::new();
    let (mut number, mut sent, mut waits, mut replayed) = (0, 0, 0, false);
    let (mut waited, mut last_wait, mut queued) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    // The one clock of a request that fails: when it failed first, and its time in queues by then.
    let mut first_failed: Option<(Instant, Duration)> = None;
    let failing_for = |first: Option<(Instant, Duration)>, queued: Duration| {
        first
            .map_or(Duration::ZERO, |(at, before)| at.elapsed().saturating_sub(queued.saturating_sub(before)))
    };
    loop {
        number += 1;
        let left = policy.total.saturating_sub(start.elapsed().saturating_sub(queued));
        let failing = failing_for(first_failed, queued);
        let context = AttemptContext { number, waited: last_wait, left, failing_for: failing };
        let failure = match operation(context).await {
            Ok(answer) => return RetryOutcome { result: Ok(answer), failures, waited },
            Err(failure) => failure,
        };
        queued += failure.queued;
        last_wait = Duration::ZERO;
        failures.push(failure.error);
        let FailureWeight { pace, sent: was_sent, outage, failing } = failure.blame;
        sent += u32::from(was_sent);
        first_failed.get_or_insert((Instant::now(), queued));
        let stop = |stop, failures| RetryOutcome { result: Err(stop), failures, waited };
        // What is sent again at once is a request too.
        let all_sent = sent >= policy.max_attempts;
        match failure.retry {
            Retry::Never => return stop(StopReason::Permanent, failures),
            Retry::Stop(reason) => return stop(StopReason::GaveUp(reason), failures),
            Retry::Again if !all_sent => continue,
            Retry::AtOnce if !replayed && !all_sent => {
                replayed = true;
                continue;
            }
            Retry::AtMost { class, retries } => {
                per_class.push(class);
                let seen = per_class.iter().filter(|known| **known == class).count();
                if seen > retries as usize && !all_sent {
                    return stop(StopReason::GaveUp(GiveUp::Class { class, retries }), failures);
                }
            }
            Retry::Yes | Retry::AtOnce | Retry::Again => {}
        }
        let elapsed = start.elapsed().saturating_sub(queued);
        waits += 1;
        let endpoint = match pace {
            WaitOwner::Own(endpoint) => endpoint,
            WaitOwner::Gate => EndpointState::Answering,
        };
        // A failure of an endpoint that answers others is not its outage.
        let down = outage && endpoint != EndpointState::Answering;
        let down = down.then(|| failing_for(first_failed, queued));
        let failed = FailureRecord { attempts: sent, waits, failing, endpoint, down };
        let mut draw = || if pace == WaitOwner::Gate { 0.0 } else { fastrand::f64() };
        let wait = match policy.delay(&failed, failure.hint, elapsed, &mut draw) {
            Decision::GiveUp(reason) => return stop(StopReason::GaveUp(reason), failures),
            Decision::Wait(wait) => wait,
        };
        let remaining = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let known = pace != WaitOwner::Gate || failure.hint.is_some();
        if known && remaining.is_some_and(|remaining| wait >= remaining) {
            return stop(StopReason::GaveUp(GiveUp::Deadline { wait }), failures);
        }
        if pace == WaitOwner::Gate {
            continue;
        }
        trace::pause(if failure.hint.is_some() { "retry_after" } else { "backoff" }, wait).await;
        waited += wait;
        last_wait = wait;
    }
}
