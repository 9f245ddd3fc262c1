//! The decide phase: limited concurrency, a time limit for each agent, and a failure affects only its agent.

use std::{
    future::poll_fn,
    panic::AssertUnwindSafe,
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use futures_util::{FutureExt, StreamExt, stream};
use tokio::time::Instant;

use super::{AgentProgress, Crew, CrewAgent, OnError, Stage, StepError};
use crate::{
    error::{Error, LlmErrorClass, Result},
    llm::{ChatAnswer, ChatOptions, ChatRequest, LlmClient},
};

/// A decision that does not give way for so long has held up the others.
const BLOCKS: Duration = Duration::from_millis(50);

/// Makes the decisions of a crew: a model client, or an agent with tools, or code.
///
/// All decisions of a tick are made by the task that calls [`Crew::step`]. A decision that computes for long, or waits without
/// `await`, holds up the others and their deadlines: such work belongs on a thread of its own, as with
/// `tokio::task::spawn_blocking(..).await`. The report names it ([`AgentOutcome::blocked`](super::AgentOutcome)).
pub trait Decide {
    /// The question of an agent.
    type Request;
    /// The decision.
    type Answer;

    /// Answers one agent. At `deadline` it is dropped if it has not ended.
    fn decide(
        &self,
        request: &Self::Request,
        deadline: Option<std::time::Instant>,
    ) -> impl Future<Output = Decided<Self::Answer>> + Send;
}

/// A decision, or why there is none.
#[derive(Debug)]
pub struct Decided<T> {
    /// The answer.
    pub result: Result<T>,
    /// Requests that it took on the wire.
    pub attempts: usize,
}

impl Decide for LlmClient {
    type Request = ChatRequest;
    type Answer = ChatAnswer;

    async fn decide(
        &self,
        request: &ChatRequest,
        deadline: Option<std::time::Instant>,
    ) -> Decided<ChatAnswer> {
        match self.chat_with(request, &ChatOptions::new().deadline(deadline)).await {
            Ok(answer) => Decided { attempts: answer.attempts.len(), result: Ok(answer) },
            Err(error) => Decided { attempts: error.attempts.len(), result: Err(error.into()) },
        }
    }
}

/// The outcome of asking one agent.
struct Asked<T> {
    index: usize,
    result: Result<T, StepError>,
    attempts: usize,
    queued: Duration,
    took: Duration,
    blocked: Duration,
}

impl<A: CrewAgent> Crew<A> {
    /// Asks for all who wait for a decision. What comes in is kept at once: this future may be dropped any time.
    pub(super) async fn decide<D>(&mut self, mind: &D)
    where
        D: Decide<Request = A::Request, Answer = A::Answer>,
    {
        let (began, limit) = (Instant::now(), self.config.deadline);
        let width = self.config.width.map_or(usize::MAX, Into::into);
        let places = self.places.iter().enumerate();
        let pending: Vec<_> =
            places.filter_map(|(index, place)| Some((index, Arc::clone(place.pending()?)))).collect();
        let answers = stream::iter(pending)
            .map(|(index, request)| async move { ask(mind, index, &request, began, limit).await })
            .buffer_unordered(width);
        let mut answers = pin!(answers);
        while let Some(asked) = answers.next().await {
            let failed = asked.result.is_err();
            self.places[asked.index].settle(asked);
            if failed && self.config.on_error == OnError::Raise {
                return;
            }
        }
    }
}

/// Waits for the decision of one agent, for as long as it may take.
async fn ask<D: Decide>(
    mind: &D,
    index: usize,
    request: &D::Request,
    began: Instant,
    limit: Option<Duration>,
) -> Asked<D::Answer> {
    let start = Instant::now();
    // A time too long to be held is none.
    let deadline = limit.and_then(|limit| start.checked_add(limit));
    let told = deadline.map(Instant::into_std);
    let mut blocked = Duration::ZERO;
    let mut decision = pin!(AssertUnwindSafe(async { mind.decide(request, told).await }).catch_unwind());
    let decision = measured(decision.as_mut(), &mut blocked);
    let decided = match deadline {
        Some(deadline) => tokio::time::timeout_at(deadline, decision).await.ok(),
        None => Some(decision.await),
    };
    // What decides may notice the deadline itself, and does not know how long that was.
    let late = |error: &Error| {
        matches!(error, Error::Llm(error) if error.class == LlmErrorClass::Deadline)
            && deadline.is_some_and(|deadline| deadline <= Instant::now())
    };
    let (result, attempts) = match decided {
        Some(Ok(Decided { result: Err(error), attempts })) if late(&error) => {
            (Err(StepError::Deadline(limit.unwrap_or_default())), attempts)
        }
        Some(Ok(Decided { result, attempts })) => (result.map_err(StepError::Decide), attempts),
        Some(Err(panic)) => (Err(StepError::panicked(panic.as_ref())), 1),
        None => (Err(StepError::Deadline(limit.unwrap_or_default())), 1),
    };
    let queued = start.duration_since(began);
    Asked { index, result, attempts, queued, took: start.elapsed(), blocked }
}

/// `work`, with the longest time that it has not given way for in `blocked`, if that was long.
async fn measured<F: Future>(mut work: Pin<&mut F>, blocked: &mut Duration) -> F::Output {
    poll_fn(|context| {
        let began = std::time::Instant::now();
        let polled = work.as_mut().poll(context);
        let took = began.elapsed();
        if took >= BLOCKS {
            *blocked = (*blocked).max(took);
        }
        polled
    })
    .await
}

impl<R, A> AgentProgress<R, A> {
    fn settle(&mut self, asked: Asked<A>) {
        self.attempts += asked.attempts;
        self.rounds += 1;
        self.queued += asked.queued;
        self.took += asked.took;
        self.blocked = self.blocked.max(asked.blocked);
        match asked.result {
            Ok(answer) => (self.stage, self.error) = (Stage::Answered(answer), None),
            Err(error) => self.error = Some(error),
        }
    }

    /// The request of an agent that waits for a decision which may still come.
    pub(super) fn pending(&self) -> Option<&Arc<R>> {
        match &self.stage {
            Stage::Asking(request) if self.error.as_ref().is_none_or(StepError::may_pass) => Some(request),
            _ => None,
        }
    }
}

/// Runs what an agent's author wrote; a panic is that agent's failure.
pub(super) fn guarded<T>(run: impl FnOnce() -> T) -> Result<T, StepError> {
    std::panic::catch_unwind(AssertUnwindSafe(run)).map_err(|panic| StepError::panicked(panic.as_ref()))
}

impl StepError {
    /// Whether asking again, with the same request, may bring a decision.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Self::Decide(Error::Llm(error)) => error.may_pass(),
            Self::Decide(_) | Self::Deadline(_) => true,
            Self::Observe(_) | Self::Apply(_) | Self::Panicked(_) => false,
        }
    }
}
