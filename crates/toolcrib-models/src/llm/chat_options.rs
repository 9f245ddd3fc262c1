//! Options of a request to a model.

use std::{sync::Arc, time::Instant};

use crate::cancel::CancellationToken;

use super::Delta;

/// Receives each piece of an answer.
pub(super) type DeltaObserver = Arc<dyn Fn(Delta<'_>) + Send + Sync>;

/// Options of a request to a model, or of each request of a batch. The default: no deadline but those of the
/// configuration, and the answer as a whole.
///
/// Dropping the future of a request is always safe: the request on the wire ends with it, and the client goes on. A
/// deadline and a token do the same and end the request with an error.
///
/// ```
/// # mod toolcrib { pub use {toolcrib_core::*, toolcrib_net::*, toolcrib_models::*}; }
/// # use std::time::{Duration, Instant};
/// # use toolcrib::{CancellationToken, llm::ChatOptions};
/// let token = CancellationToken::new();
/// let options = ChatOptions::new().deadline(Instant::now() + Duration::from_secs(30)).cancel(token.clone());
/// ```
#[derive(Clone, Default)]
pub struct ChatOptions {
    pub(super) deadline: Option<Instant>,
    pub(super) observer: Option<DeltaObserver>,
    pub(super) cancel: Option<CancellationToken>,
}

impl ChatOptions {
    /// The default options.
    pub fn new() -> Self {
        Self::default()
    }

    /// When the caller no longer wants an answer. Nothing is waited for beyond it: neither an attempt nor the time between
    /// two. The error is of class [`LlmErrorClass::Deadline`](toolcrib_core::error::LlmErrorClass). `None`: no deadline.
    #[must_use]
    pub fn deadline(mut self, deadline: impl Into<Option<Instant>>) -> Self {
        self.deadline = deadline.into();
        self
    }

    /// Receives every piece of the answer as soon as it is there: few large pieces where the configuration does not say
    /// `stream`, or where a recorded answer is given again. Called by the task that reads the answer: it must not block. The
    /// requests of a batch do not call it.
    #[must_use]
    pub fn observe(mut self, observer: impl Fn(Delta<'_>) + Send + Sync + 'static) -> Self {
        self.observer = Some(Arc::new(observer));
        self
    }

    /// Ends the request with an error of class [`LlmErrorClass::Cancelled`](toolcrib_core::error::LlmErrorClass) when `token` is
    /// cancelled.
    #[must_use]
    pub fn cancel(mut self, token: CancellationToken) -> Self {
        self.cancel = Some(token);
        self
    }

    /// The deadline on Tokio's clock.
    pub(super) fn deadline_on_clock(&self) -> Option<tokio::time::Instant> {
        self.deadline.map(Into::into)
    }

    /// The output of `asking`, or `None` once the token is cancelled: `asking` is dropped then.
    pub(super) async fn until_cancelled<F: Future>(&self, asking: F) -> Option<F::Output> {
        match &self.cancel {
            Some(token) => token.run_until_cancelled(asking).await,
            None => Some(asking.await),
        }
    }
}
