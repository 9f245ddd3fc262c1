//! The error of a process that could not be started.

use std::{error::Error, fmt};

/// Why no process could be started, and what to do about it.
#[derive(Debug)]
pub struct SpawnError {
    /// The kind, for callers that explain some errors in their own words.
    pub kind: SpawnErrorKind,
    /// The failure in words, with names and folders.
    pub what: String,
    /// Advice on what to do about it.
    pub help: Option<String>,
}

/// The kinds of a [`SpawnError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SpawnErrorKind {
    /// The command has no folder in its name, and the environment of the process no `PATH`.
    NoPath,
    /// The guard could not be started, and no more specific kind applies.
    Guard,
    /// The template could not be started, or it did not start the process: an ordinary start may work.
    Template,
    /// Anything else.
    Other,
}

impl SpawnError {
    pub(crate) fn new(what: String, help: Option<String>) -> Self {
        Self { kind: SpawnErrorKind::Other, what, help }
    }
}

impl fmt::Display for SpawnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl Error for SpawnError {}
