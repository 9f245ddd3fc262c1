//! When an agent must stop, and the ways in which it can end.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::{
    config::AgentConfig,
    error::{Error, ErrorCode},
    task::{Limits, TaskError, Usage},
};

/// How a task ended, before it is judged.
#[derive(Clone, Debug)]
pub(super) enum End {
    /// With the model's answer, and the text that it was taken from.
    Answered { answer: String, said: String },
    /// All planned calls were as expected; their texts.
    Passed(String),
    /// A planned call was not as expected; the texts up to it.
    Failed(String, Box<TaskError>),
    /// Without an answer, at a limit that leaves the time to ask for one.
    Stopped(Box<TaskError>),
    /// Without an answer.
    Errored(Box<TaskError>),
    /// From outside.
    Cancelled,
}

impl End {
    pub(super) fn errored(code: ErrorCode, message: impl Into<String>) -> Self {
        Self::Errored(Box::new(TaskError::new(code, message)))
    }

    pub(super) fn stopped(code: ErrorCode, message: impl Into<String>) -> Self {
        Self::Stopped(Box::new(TaskError::new(code, message)))
    }

    pub(super) fn of(error: &Error) -> Self {
        Self::Errored(Box::new(TaskError::from(error)))
    }
}

/// The limits of one task.
#[derive(Debug)]
pub(super) struct Bounds<'a> {
    pub turns: u32,
    tool_calls: u32,
    time: Duration,
    tokens: Option<u64>,
    /// Nothing: so far away that the clock has no number for it.
    pub deadline: Option<Instant>,
    pub cancel: &'a CancellationToken,
}

impl<'a> Bounds<'a> {
    pub(super) fn new(limits: &Limits, config: &AgentConfig, cancel: &'a CancellationToken) -> Self {
        let seconds = limits.seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        let time = seconds.unwrap_or(config.max_time);
        Self {
            turns: limits.turns.unwrap_or(config.max_turns),
            tool_calls: limits.tool_calls.unwrap_or(config.max_tool_calls),
            time,
            tokens: limits.tokens,
            deadline: Instant::now().checked_add(time),
            cancel,
        }
    }

    /// Waits for `work`, but no longer than the task may last.
    pub(super) async fn guard<F: Future>(&self, work: F) -> Result<F::Output, End> {
        let late = async {
            match self.deadline {
                Some(deadline) => sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => Err(End::Cancelled),
            output = work => Ok(output),
            () = late => Err(self.out_of_time()),
        }
    }

    pub(super) fn out_of_time(&self) -> End {
        End::errored(ErrorCode::BudgetExceeded, reached(&format!("seconds = {}", self.time.as_secs_f64())))
    }

    /// Whether a turn after `done` turns is allowed.
    pub(super) fn turn(&self, done: u32) -> Result<(), End> {
        if done < self.turns { Ok(()) } else { Err(stopped(&format!("turns = {}", self.turns))) }
    }

    /// Whether `more` calls after `done` calls are allowed.
    pub(super) fn tool_calls(&self, done: u32, more: usize) -> Result<(), End> {
        let all = u64::from(done) + more as u64;
        if all <= u64::from(self.tool_calls) {
            Ok(())
        } else {
            Err(stopped(&format!("tool_calls = {}", self.tool_calls)))
        }
    }

    /// Whether to go on after `used` tokens.
    pub(super) fn tokens(&self, used: Usage) -> Result<(), End> {
        match self.tokens {
            Some(limit) if used.total() >= limit => {
                Err(End::errored(ErrorCode::BudgetExceeded, reached(&format!("tokens = {limit}"))))
            }
            _ => Ok(()),
        }
    }
}

/// At a limit that leaves the time for an answer.
fn stopped(limit: &str) -> End {
    End::stopped(ErrorCode::BudgetExceeded, reached(limit))
}

fn reached(limit: &str) -> String {
    format!("the task reached its limit ({limit}) before it had an answer")
}
