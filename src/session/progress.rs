//! Progress of a call, as its server reports it.

use std::sync::Arc;

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

/// Gets each report in order. It runs in the task that reads the server's messages, so it must not block.
pub type ProgressListener = Arc<dyn Fn(Progress) + Send + Sync>;
