//! Shuts a client down: requests under way are answered within a grace period or end with an error.

use std::time::Duration;

use tokio_util::{
    sync::CancellationToken,
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};

use crate::llm::{LlmClient, LlmError, LlmErrorClass, errors::fault::Fault};

/// Counts the callers that wait for answers of one client, and ends their waits at shutdown.
#[derive(Default)]
pub(in crate::llm) struct Shutdown {
    waiting: TaskTracker,
    over: CancellationToken,
}

impl LlmClient {
    /// Takes no more requests, sends at once what still waits for others to share a request with, and gives all that
    /// is under way `grace` to be answered. Callers that still wait then get an error of class
    /// [`Closed`](LlmErrorClass::Closed), as do later callers. Returns how many calls were
    /// cut off.
    ///
    /// All clones end together. May be called any number of times.
    pub async fn shutdown(&self, grace: Duration) -> usize {
        let Shutdown { waiting, over } = &self.inner.shutdown;
        waiting.close();
        self.flush();
        let drained = tokio::time::timeout(grace, waiting.wait()).await;
        let left = if drained.is_ok() { 0 } else { waiting.len() };
        over.cancel();
        left
    }

    /// The outcome of a caller's request; `None` if the client is shut down before, or is being shut down.
    pub(in crate::llm) async fn until_closed<T>(&self, asking: impl Future<Output = T>) -> Option<T> {
        let _waiting = self.enter()?;
        self.until_over(asking).await
    }

    /// The outcome of a part of a request that was let in; `None` if it takes longer than is waited for.
    pub(in crate::llm) async fn until_over<T>(&self, asking: impl Future<Output = T>) -> Option<T> {
        self.inner.shutdown.over.run_until_cancelled(asking).await
    }

    /// Counts as waiting until it is dropped; `None` when no more requests are taken.
    pub(in crate::llm) fn enter(&self) -> Option<TaskTrackerToken> {
        let waiting = &self.inner.shutdown.waiting;
        (!waiting.is_closed()).then(|| waiting.token())
    }

    pub(in crate::llm) fn cancelled(&self) -> LlmError {
        self.error(Fault::new(LlmErrorClass::Cancelled, "the request was cancelled"))
    }

    pub(in crate::llm) fn closed(&self) -> LlmError {
        self.error(Fault::new(LlmErrorClass::Closed, "the client was shut down"))
    }
}
