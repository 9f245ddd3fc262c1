//! Routes a request to one of several models: fallback, round robin, or a race.
//!
//! Each member keeps its own limits and retries. A request waits at an endpoint that is down or asked for a pause only
//! when there is no other member left to ask; where the strategy has retries of its own, it never waits there.

mod race;

use std::{
    sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    time::Duration,
};

use tokio::time::Instant;

use crate::llm::{
    ChatAnswer, ChatRequest, ChatTimings, LlmClient, LlmError, LlmErrorClass as Class, LlmStats,
    client::RequestContext, errors::fault::Fault,
};
use crate::{
    config::{Order, Strategy},
    duration::rounded,
    retry::{self, Failure, FailureWeight, Retry, RetryPolicy, StopReason},
};

/// The members of a strategy.
pub(in crate::llm) struct Router {
    pub members: Vec<LlmClient>,
    order: Order,
    next: AtomicUsize,
    total: Option<Duration>,
    retry: Option<RetryPolicy>,
    table: String,
    /// Attempts that were cancelled because another member had answered first.
    cancelled: AtomicU64,
}

impl Router {
    /// The strategy of that name, with its members in order.
    pub(in crate::llm) fn new(name: &str, strategy: &Strategy, members: Vec<LlmClient>) -> Self {
        let first = match strategy.order {
            Order::RoundRobin { from_first: false } => fastrand::usize(..members.len().max(1)),
            Order::RoundRobin { from_first: true } | Order::Fallback | Order::Race { .. } => 0,
        };
        Self {
            members,
            order: strategy.order,
            next: AtomicUsize::new(first),
            total: strategy.total,
            retry: strategy.retry.clone(),
            table: format!("[llm.strategies.{name}]"),
            cancelled: AtomicU64::new(0),
        }
    }

    /// Asks until one answers: one after another, or side by side.
    pub(in crate::llm) async fn ask(
        &self,
        request: &ChatRequest,
        context: RequestContext<'_>,
    ) -> Result<ChatAnswer, LlmError> {
        let own = self.total.and_then(|total| Instant::now().checked_add(total));
        let deadline = context.deadline.into_iter().chain(own).min();
        let context = RequestContext { deadline, ..context };
        let result = match &self.retry {
            None => self.pass(request, context).await,
            Some(policy) => self.passes(policy, request, context).await,
        };
        result.map_err(|mut error| {
            if let Some(total) = self.total.filter(|_| error.class == Class::Deadline && deadline == own) {
                let total = humantime::format_duration(rounded(total));
                error.class = Class::Timeout;
                error.message = format!("no answer within {total} (total in {})", self.table);
            }
            error
        })
    }

    /// All of them again and again, as the strategy's own policy says.
    async fn passes(
        &self,
        policy: &RetryPolicy,
        request: &ChatRequest,
        context: RequestContext<'_>,
    ) -> Result<ChatAnswer, LlmError> {
        let context = RequestContext { patient: false, ..context };
        let run = retry::run(policy, context.deadline, |_| async {
            self.pass(request, context).await.map_err(|error| Failure {
                retry: if error.class.retry(None) == Retry::Never { Retry::Never } else { Retry::Yes },
                hint: None,
                blame: FailureWeight::OWN,
                queued: Duration::ZERO,
                error: Box::new(error),
            })
        })
        .await;
        let attempts: Vec<_> = run.failures.iter().flat_map(|error| error.attempts.clone()).collect();
        let reason = match run.result {
            Ok(answer) => return Ok(after(attempts, answer)),
            Err(StopReason::GaveUp(reason)) => Some(reason),
            Err(StopReason::Permanent) => None,
        };
        let mut failures = run.failures;
        // The loop ends without an answer only after a failure.
        let Some(mut last) = failures.pop().map(|last| *last) else {
            return Err(self.without_members());
        };
        last.waited += run.waited + failures.iter().map(|error| error.waited).sum::<Duration>();
        (last.attempts, last.gave_up) = (attempts, reason);
        Err(last)
    }

    /// Each of them once.
    async fn pass(&self, request: &ChatRequest, context: RequestContext<'_>) -> Result<ChatAnswer, LlmError> {
        let count = self.members.len();
        let first = match self.order {
            Order::Race { delay } => return self.race(delay, request, context).await,
            Order::Fallback => 0,
            Order::RoundRobin { .. } => self.next.fetch_add(1, Relaxed) % count.max(1),
        };
        let (mut attempts, mut waited, mut others) = (Vec::new(), Duration::ZERO, Vec::new());
        for step in 0..count {
            let member = &self.members[(first + step) % count];
            let last = step + 1 == count;
            let context = RequestContext { patient: context.patient && last, ..context };
            // A strategy may be a member of a strategy.
            let mut error = match Box::pin(member.with_shutdown(request, context)).await {
                Ok(answer) => return Ok(after(attempts, answer)),
                Err(error) => error,
            };
            attempts.append(&mut error.attempts);
            waited += error.waited;
            let over = context.deadline.is_some_and(|deadline| deadline <= Instant::now());
            if last || over || error.class == Class::Deadline || !self.goes_on(&error) {
                error.attempts = attempts;
                error.waited = waited;
                error.others.splice(..0, others);
                return Err(error);
            }
            tracing::debug!(client = member.name(), class = error.class.name(), "asking the next client");
            others.append(&mut error.others);
            others.push(format!("{}: {}", member.name(), error.message));
        }
        Err(self.without_members())
    }

    /// Whether another one may know better. Behind a round-robin are equals: what one of them finds wrong with the
    /// request the others will too.
    fn goes_on(&self, error: &LlmError) -> bool {
        let the_request = error.class == Class::Context || matches!(error.status, Some(400 | 413 | 422));
        self.order == Order::Fallback || !the_request
    }

    /// The error of a strategy without members, which no configuration has.
    fn without_members(&self) -> LlmError {
        Fault::new(Class::Config, "there is no client to ask").into_error(&self.table, None, &self.table)
    }

    /// Counters of all members together.
    pub(in crate::llm) fn stats(&self, own: LlmStats) -> LlmStats {
        let own = LlmStats { cancelled: self.cancelled.load(Relaxed), ..own };
        self.members.iter().map(LlmClient::stats).fold(own, |mut sum, member| {
            sum.attempts += member.attempts;
            sum.cache_hits += member.cache_hits;
            sum.cache_misses += member.cache_misses;
            sum.batch_count += member.batch_count;
            sum.cache_hit_rate = sum.cache_hits as f64 / sum.request_count.max(1) as f64;
            sum.in_flight += member.in_flight;
            sum.peak = sum.peak.max(member.peak);
            sum.waiting += member.waiting;
            sum.queued += member.queued;
            sum.pauses += member.pauses;
            sum.cancelled += member.cancelled;
            sum.retries = sum.attempts.saturating_sub(sum.request_count + sum.cancelled);
            sum
        })
    }
}

/// `answer` with what was tried before it.
fn after(mut attempts: Vec<super::Attempt>, mut answer: ChatAnswer) -> ChatAnswer {
    attempts.append(&mut answer.attempts);
    answer.timings = ChatTimings::of(&attempts);
    answer.attempts = attempts;
    answer
}
