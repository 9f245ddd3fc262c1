//! The token that cancels a start, a call, a request or a task.

use tokio_util::sync;

/// A token that cancels work: passed in the options of the work, and cancelled from anywhere. Clones are the same
/// token.
///
/// ```
/// # use toolcrib_core as toolcrib;
/// use toolcrib::CancellationToken;
///
/// let token = CancellationToken::new();
/// let passed = token.clone(); // in the options of a call: `CallOptions::new().cancel(passed)`
/// token.cancel(); // the call now ends with `Error::CallCancelled`
/// assert!(passed.is_cancelled());
/// ```
#[derive(Debug, Clone, Default)]
pub struct CancellationToken(sync::CancellationToken);

impl CancellationToken {
    /// A token that is not cancelled.
    pub fn new() -> Self {
        Self::default()
    }

    /// Cancels it and its child tokens. It stays cancelled.
    pub fn cancel(&self) {
        self.0.cancel();
    }

    /// Whether it was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.is_cancelled()
    }

    /// Waits until it is cancelled.
    pub async fn cancelled(&self) {
        self.0.cancelled().await;
    }

    /// A token that is cancelled with this one, and can be cancelled alone.
    #[must_use]
    pub fn child_token(&self) -> Self {
        Self(self.0.child_token())
    }

    /// The output of `future`, or `None` once the token is cancelled: `future` is dropped then.
    pub async fn run_until_cancelled<F: Future>(&self, future: F) -> Option<F::Output> {
        self.0.run_until_cancelled(future).await
    }
}

/// Cancels its token when it is dropped.
pub struct CancelGuard(pub CancellationToken);

impl Drop for CancelGuard {
    fn drop(&mut self) {
        self.0.cancel();
    }
}
