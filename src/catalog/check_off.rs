//! In place of `check` in a build without the feature `schema`: only the servers check arguments.

#![allow(
    clippy::unnecessary_wraps,
    clippy::unused_async,
    clippy::unused_self,
    reason = "as in the module that it replaces"
)]

use std::sync::Arc;

use serde_json::{Map, Value};

/// Arguments do not fit: a line for each mismatch.
pub(super) type Verdict = Result<(), Vec<String>>;

/// No threads.
#[derive(Clone, Debug, Default)]
pub(crate) struct CheckThreads;

/// Lets all arguments pass.
#[derive(Debug)]
pub(super) struct SchemaCheck;

impl SchemaCheck {
    pub(super) fn new(_: String, _: Arc<Map<String, Value>>) -> Self {
        Self
    }

    pub(super) fn at_once(&self, _: &Value) -> Option<Verdict> {
        Some(Ok(()))
    }

    pub(super) async fn on_thread(self: Arc<Self>, _: Value, _: &CheckThreads) -> Verdict {
        Ok(())
    }
}

/// No schema is looked at.
#[cfg(feature = "daemon")]
pub(crate) fn check_schema(_: &Map<String, Value>) -> Result<(), String> {
    Ok(())
}
