//! The time of a task, divided by what it waited for.

use serde::{Deserialize, Serialize};

/// Parts of a task's wall-clock time, in milliseconds. The time of agents that were called as tools is that of their
/// models and tools; the time of calls that ran side by side is divided among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Timings {
    /// Waiting for servers to start.
    pub init: f64,
    /// Waiting for a place (in-flight limits).
    pub queue: f64,
    /// Waiting for the model's server.
    pub model: f64,
    /// Waiting for tools.
    pub tools: f64,
    /// Waiting between attempts at the model.
    pub retry_wait: f64,
    /// The rest.
    pub other: f64,
}

impl Timings {
    /// All of it together.
    pub fn sum(&self) -> f64 {
        self.init + self.queue + self.model + self.tools + self.retry_wait + self.other
    }

    /// Each part times `factor`.
    #[doc(hidden)]
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        Self {
            init: self.init * factor,
            queue: self.queue * factor,
            model: self.model * factor,
            tools: self.tools * factor,
            retry_wait: self.retry_wait * factor,
            other: self.other * factor,
        }
    }
}

impl std::ops::AddAssign for Timings {
    fn add_assign(&mut self, more: Self) {
        self.init += more.init;
        self.queue += more.queue;
        self.model += more.model;
        self.tools += more.tools;
        self.retry_wait += more.retry_wait;
        self.other += more.other;
    }
}
