//! Progress of a call, as its server reports it.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rmcp::model::{ProgressNotificationParam, ProgressToken};
use serde::{Deserialize, Serialize};

/// One report of a server on a call under way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Progress {
    /// So much is done; it grows from one report to the next. In units of the server's own.
    pub progress: f64,
    /// So much is to be done in all, if the server knows.
    pub total: Option<f64>,
    /// What it is doing, in its own words.
    pub message: Option<String>,
}

/// Is told of each report, in their order, by the task that reads what the server says: it must not block.
pub type ProgressListener = Arc<dyn Fn(Progress) + Send + Sync>;

/// What one call is to go by besides its arguments.
#[derive(Clone, Copy, Default)]
pub(crate) struct CallTerms<'a> {
    /// Takes the place of the configured limit.
    pub(crate) limit: Option<Duration>,
    /// Hears how far it is.
    pub(crate) progress: Option<&'a ProgressListener>,
}

impl CallTerms<'_> {
    /// With a limit, if there is one, and nobody who listens.
    pub(crate) fn limited(limit: Option<Duration>) -> Self {
        Self { limit, progress: None }
    }
}

/// The listeners of a session of the SDK's, by the tokens that it has given their calls.
#[derive(Clone, Default)]
pub(super) struct Hearing(Arc<Mutex<HashMap<ProgressToken, ProgressListener>>>);

/// Somebody listens until this is dropped.
pub(super) struct Listening {
    hearing: Hearing,
    token: ProgressToken,
}

impl Hearing {
    pub(super) fn listen(&self, token: ProgressToken, listener: ProgressListener) -> Listening {
        self.listeners().insert(token.clone(), listener);
        Listening { hearing: self.clone(), token }
    }

    pub(super) fn heard(&self, report: ProgressNotificationParam) {
        let listener = self.listeners().get(&report.progress_token).cloned();
        if let Some(listener) = listener {
            let ProgressNotificationParam { progress, total, message, .. } = report;
            listener(Progress { progress, total, message });
        }
    }

    fn listeners(&self) -> MutexGuard<'_, HashMap<ProgressToken, ProgressListener>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.hearing.listeners().remove(&self.token);
    }
}
