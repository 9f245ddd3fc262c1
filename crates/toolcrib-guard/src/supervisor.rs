//! Starts processes that belong together: one mark, one scope of teardown, one source of guards.

use std::sync::Arc;

use crate::{Pipes, Process, ProcessSpec, SpawnError, StopGrace, TeardownScope, marks::new_mark, platform};

/// Starts processes, all with one mark. A clone starts more of the same.
///
/// It does not hold the processes: each [`Process`] is owned by who started it.
#[derive(Clone)]
pub struct Supervisor {
    mark: Arc<str>,
    scope: TeardownScope,
    zygote: platform::ZygoteClient,
}

impl Supervisor {
    /// Of no process yet.
    pub fn new(scope: TeardownScope) -> Self {
        Self { mark: new_mark().into(), scope, zygote: platform::ZygoteClient::default() }
    }

    /// Marks every process in its environment, descendants included: see [`marks`](crate::marks).
    pub fn mark(&self) -> &str {
        &self.mark
    }

    /// How far the teardown of its processes reaches.
    pub fn scope(&self) -> &TeardownScope {
        &self.scope
    }

    pub(crate) fn zygote(&self) -> &platform::ZygoteClient {
        &self.zygote
    }

    /// Begins what the first start would wait for, so that it boots while other things are done. What cannot be begun
    /// is told by that start.
    pub fn prepare(&self) {
        if let TeardownScope::Guard { executable } = &self.scope {
            self.zygote.prepare(executable, &self.mark);
        }
    }

    /// Starts `spec`, with the mark in its environment. `grace` is the stop ladder by which it is ended if this process
    /// ends without a word.
    ///
    /// # Errors
    /// What is missing or cannot be held, and what to do about it. Nothing was started then.
    pub async fn spawn(&self, spec: &ProcessSpec, grace: StopGrace) -> Result<(Process, Pipes), SpawnError> {
        Process::spawn(spec, self, grace).await
    }

    /// Ends what stood ready to start more processes.
    pub async fn end(&self) {
        self.zygote.end().await;
    }

    /// The same at once, with or without a runtime.
    pub fn dismiss(&self) {
        self.zygote.dismiss();
    }
}
