//! The templates of a manager, as a report tells of them.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::{
    launch::template::{
        key::Key,
        pool::{Slot, Stage},
    },
    process::Template,
};

/// State of a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TemplateState {
    /// There is none now: it was not needed yet, or has ended.
    None,
    /// It imports.
    Starting,
    /// It can be forked.
    Ready,
    /// It could not be made, or has ended too often. It is tried again after some minutes.
    Failed,
}

/// A process that Python servers are forked from, at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TemplateStatus {
    /// Its interpreter, the flags of that, and the program if it is for one alone.
    pub interpreter: String,
    /// Its state.
    pub state: TemplateState,
    /// Its process, once it is ready.
    pub pid: Option<u32>,
    /// Modules that it has imported.
    pub modules: Option<u64>,
    /// Servers that were forked from it and from those before it.
    pub forks: u64,
    /// Starts that wait for it.
    pub waiting: usize,
    /// Since it was started, or is ready.
    #[serde(rename = "age_ms", with = "crate::task::millis::optional")]
    pub age: Option<Duration>,
    /// Time that the last start needed until it was ready.
    #[serde(rename = "ready_ms", with = "crate::task::millis::optional")]
    pub ready_time: Option<Duration>,
    /// Why it has failed.
    pub reason: Option<String>,
}

impl TemplateStatus {
    pub(super) fn of(key: &Key, slot: &Slot<Template>, now: Instant) -> Self {
        let mut status = Self {
            interpreter: key.to_string(),
            state: TemplateState::None,
            pid: None,
            modules: None,
            forks: slot.forks,
            waiting: slot.waiting,
            age: None,
            ready_time: slot.memory.ready,
            reason: None,
        };
        match &slot.stage {
            Stage::None => {}
            Stage::Starting { since, .. } => {
                status.state = TemplateState::Starting;
                status.age = Some(now.saturating_duration_since(*since));
            }
            Stage::Ready { since, template, modules } => {
                status.state = TemplateState::Ready;
                status.age = Some(now.saturating_duration_since(*since));
                status.pid = Some(template.pid());
                status.modules = Some(*modules);
            }
            Stage::Failed { reason, .. } => {
                status.state = TemplateState::Failed;
                status.reason = Some(reason.clone());
            }
        }
        status
    }
}
