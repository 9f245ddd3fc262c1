//! The result of a step for each agent.

use std::{any::Any, fmt, time::Duration};

use serde::{Serialize, Serializer, ser::SerializeStruct};

use crate::{
    duration::rounded,
    error::{Error, ErrorCode, words_of_panic},
    task::TaskError,
};

/// A tick, or as much of it as was stepped: every agent has its entry, in order.
#[derive(Debug, Serialize)]
#[non_exhaustive]
#[must_use = "it says who failed"]
pub struct StepReport {
    /// Its number, from 0.
    pub tick: u64,
    /// Time that the call took, in milliseconds where it is serialized.
    #[serde(rename = "wall_ms", with = "crate::task::millis::plain")]
    pub wall: Duration,
    /// How many decisions were made one after the other, if all took equally long: the agents that were asked, divided by the
    /// crew's width ([`CrewConfig::width`](super::CrewConfig)) and rounded up.
    pub waves: usize,
    /// One for each agent.
    pub agents: Vec<AgentOutcome>,
}

/// The outcome of one agent in a tick.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct AgentOutcome {
    /// Its name.
    pub agent: String,
    /// How far it came.
    pub result: StepOutcome,
    /// Requests sent for its decision, each try counted, those of earlier calls for the same tick included.
    #[serde(rename = "llm_calls")]
    pub attempts: usize,
    /// How often it was asked for a decision in this tick.
    pub rounds: u32,
    /// Time in the queue of the crew's width.
    #[serde(rename = "queued_ms", with = "crate::task::millis::plain")]
    pub queued: Duration,
    /// Time that its decision took, all rounds together.
    #[serde(rename = "took_ms", with = "crate::task::millis::plain")]
    pub took: Duration,
    /// The longest time, from 50 ms on, that its decision has computed or waited without giving way, else 0. It held up the
    /// decisions of the others ([`Decide`](super::Decide)).
    #[serde(rename = "blocked_ms", with = "crate::task::millis::plain")]
    pub blocked: Duration,
}

/// How far an agent came.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StepOutcome {
    /// It decided and acted.
    Acted,
    /// It has its answer and did not act yet: the tick is open.
    Decided,
    /// It has no answer yet: the tick is open.
    Pending,
    /// It misses the tick, for this reason.
    Failed(StepError),
}

/// Why an agent misses a tick. Serialized as `code` and `message`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StepError {
    /// It could not make its request.
    #[error("could not observe: {0}")]
    Observe(String),
    /// There was no decision.
    #[error(transparent)]
    Decide(Error),
    /// There was no decision within the crew's deadline ([`CrewConfig::deadline`](super::CrewConfig)).
    #[error("no decision within {}", humantime::format_duration(rounded(*.0)))]
    Deadline(Duration),
    /// The decision was of no use.
    #[error("could not apply the answer: {0}")]
    Apply(String),
    /// Its code panicked.
    #[error("panicked: {0}")]
    Panicked(String),
}

impl StepError {
    pub(super) fn panicked(panic: &(dyn Any + Send)) -> Self {
        Self::Panicked(words_of_panic(panic).to_owned())
    }

    /// Stable code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Decide(error) => error.code(),
            Self::Deadline(_) => ErrorCode::BudgetExceeded,
            Self::Apply(_) => ErrorCode::AnswerUnusable,
            Self::Observe(_) | Self::Panicked(_) => ErrorCode::Internal,
        }
    }
}

impl Serialize for StepError {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let message = match self {
            Self::Decide(error) => TaskError::from(error).message,
            other => other.to_string(),
        };
        let mut fields = serializer.serialize_struct("StepError", 2)?;
        fields.serialize_field("code", &self.code())?;
        fields.serialize_field("message", &message)?;
        fields.end()
    }
}

impl StepReport {
    /// Whether every agent decided and acted.
    pub fn is_complete(&self) -> bool {
        self.agents.iter().all(|agent| matches!(agent.result, StepOutcome::Acted))
    }

    /// Agents that failed, with the reason.
    pub fn failures(&self) -> impl Iterator<Item = (&AgentOutcome, &StepError)> {
        self.agents.iter().filter_map(|agent| match &agent.result {
            StepOutcome::Failed(error) => Some((agent, error)),
            StepOutcome::Acted | StepOutcome::Decided | StepOutcome::Pending => None,
        })
    }
}

/// The end of a step under [`OnError::Raise`](super::OnError): the tick is open, and the report says how far each agent
/// came.
#[derive(Debug)]
#[non_exhaustive]
pub struct StepFailure {
    /// The outcome of each agent so far.
    pub report: StepReport,
}

impl fmt::Display for StepFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut failures = self.report.failures();
        match failures.next() {
            Some((agent, error)) => write!(f, "agent `{}`: {error}", agent.agent)?,
            None => write!(f, "the tick is open")?,
        }
        match failures.count() {
            0 => Ok(()),
            more => write!(f, " (and {more} more)"),
        }
    }
}

impl std::error::Error for StepFailure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self.report.failures().next() {
            Some((_, error)) => std::error::Error::source(error),
            None => None,
        }
    }
}
