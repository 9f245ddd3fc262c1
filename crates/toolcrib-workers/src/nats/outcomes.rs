//! How each task has ended, in a word: what is counted without reading its results. The journal is the truth; a worker that
//! ended between the two is made up for by the next one that gets the task.

use async_nats::jetstream::kv::{self, Operation};
use serde_json::Value;

use super::{NatsStore, REMOVED, name_of};
use crate::error::Result;

/// The keys of what is kept of runs.
const RUN: &str = "run.";

/// A run as it was submitted.
pub(crate) struct SubmittedRun {
    pub run: String,
    /// When, in milliseconds since 1970 by the clock of the server.
    pub at: i64,
    pub about: Value,
}

/// How a task has ended.
pub(crate) struct TaskOutcome {
    pub run: String,
    pub task: String,
    /// When, in milliseconds since 1970 by the clock of the server.
    pub at: i64,
    pub status: String,
}

impl NatsStore {
    /// Notes how the task of this key has ended.
    pub(super) async fn note_outcome(&self, key: &str, status: &str) -> Result<()> {
        let put = self.0.outcomes.put(key, status.to_owned().into()).await;
        put.map(drop).map_err(|error| self.failed("cannot write to", &error))
    }

    /// All runs.
    ///
    /// # Errors
    /// [`Error::Io`](toolcrib_core::Error::Io).
    pub(crate) async fn submitted_runs(&self) -> Result<Vec<SubmittedRun>> {
        let mut runs = Vec::new();
        let take = |entry: kv::Entry| {
            if let (Operation::Put, Some(run)) = (entry.operation, entry.key.strip_prefix(RUN)) {
                let about: Value = serde_json::from_slice(&entry.value).unwrap_or_default();
                if about[REMOVED] == true {
                    return;
                }
                runs.push(SubmittedRun { run: name_of(run), at: millis(&entry), about });
            }
        };
        self.each_entry(&self.0.runs, take).await?;
        Ok(runs)
    }

    /// Gives the outcome of each task that has ended, of all runs, to `take`.
    ///
    /// # Errors
    /// [`Error::Io`](toolcrib_core::Error::Io).
    pub(crate) async fn each_outcome(&self, mut take: impl FnMut(TaskOutcome)) -> Result<()> {
        let give = |entry: kv::Entry| {
            if let (Operation::Put, Some((run, task))) = (entry.operation, entry.key.split_once('.')) {
                let status = String::from_utf8_lossy(&entry.value).into_owned();
                take(TaskOutcome { run: name_of(run), task: name_of(task), at: millis(&entry), status });
            }
        };
        self.each_entry(&self.0.outcomes, give).await
    }
}

pub(super) fn millis(entry: &kv::Entry) -> i64 {
    i64::try_from(entry.created.unix_timestamp_nanos() / 1_000_000).unwrap_or_default()
}
