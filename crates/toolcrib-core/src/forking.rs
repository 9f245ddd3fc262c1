//! Values about Python servers that are forked from templates: what reports and checks tell of them, and the turn of a start. The
//! templates themselves are a crate of their own, which a build may leave out; these names are in every build.

use std::{
    path::PathBuf,
    time::{Duration, SystemTime},
};

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};

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
    /// Time since it was started, or is ready.
    #[serde(rename = "age_ms", with = "crate::task::millis::optional")]
    pub age: Option<Duration>,
    /// Time that the last start needed until it was ready.
    #[serde(rename = "ready_ms", with = "crate::task::millis::optional")]
    pub ready_time: Option<Duration>,
    /// The reason of its failure.
    pub reason: Option<String>,
}

impl TemplateStatus {
    /// The status of a template that was never started.
    #[doc(hidden)]
    pub fn new(interpreter: String) -> Self {
        Self {
            interpreter,
            state: TemplateState::None,
            pid: None,
            modules: None,
            forks: 0,
            waiting: 0,
            age: None,
            ready_time: None,
            reason: None,
        }
    }
}

/// Whether and how the next start of a Python server is forked, if its template is worth it.
#[derive(Debug)]
pub enum Forecast {
    /// It cannot be, in words for a person.
    Never(String),
    /// Nothing is known of this version: its start is an ordinary one, and a later one may be a fork.
    Later,
    /// It may be a fork, which is compared with an ordinary start.
    Compared,
    /// It may be a fork: one has offered what an ordinary start does.
    Proven,
    /// Its ordinary starts differ: how.
    Varies(String),
    /// A fork was not the same.
    Off {
        /// How it differed, or failed.
        reason: String,
        /// When that was found.
        since: SystemTime,
        /// The file that holds this knowledge: without it, a fork is tried again.
        file: Option<PathBuf>,
    },
}

/// The turn of a start among those of a manager: it may work.
pub trait StartTurn: Sync {
    /// Starts that are under way or wait for their turn, this one included.
    fn at_once(&self) -> usize;

    /// It only waits for now: others may work.
    fn give_up(&self);

    /// Whether it has given up its turn, and not taken it again.
    fn has_given_up(&self) -> bool;

    /// Waits until it may work again, if it has given up its turn.
    fn take_again(&self) -> BoxFuture<'_, ()>;
}
