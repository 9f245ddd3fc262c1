//! Forecasts whether the next start of a server will be a fork.

use std::{
    path::PathBuf,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::{Shared, StartFacts, Templates};
use crate::{
    config::StdioConfig,
    launch::template::{proof::Proof, python::PythonStart},
};

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
        since: SystemTime,
        /// The file that holds this knowledge: without it, a fork is tried again.
        file: Option<PathBuf>,
    },
}

impl Templates {
    /// Forecasts the next start of `spec`, which is the configuration after all rewrites. `configured` as in [`StartFacts`].
    /// `None`: it is no Python server. Looks at files.
    pub fn forecast(&self, spec: &StdioConfig, configured: &str) -> Option<Forecast> {
        if !PythonStart::is_of_python(spec) {
            return None;
        }
        let facts = StartFacts::of(configured);
        let planned = match self.examine(spec, facts) {
            Ok(planned) => planned,
            Err(why) => return Some(Forecast::Never(why)),
        };
        let Shared { proofs, .. } = &*self.0;
        Some(match planned.proof() {
            Proof::Unknown | Proof::Own | Proof::Doubtful { .. } => Forecast::Later,
            Proof::Borrowed(_) | Proof::Baseline(_) => Forecast::Compared,
            Proof::Proven(_) | Proof::Fragile(_) => Forecast::Proven,
            Proof::Varies { reason, .. } => Forecast::Varies(reason.clone()),
            Proof::Off { reason, when, .. } => {
                let since = UNIX_EPOCH.checked_add(Duration::from_secs(*when)).unwrap_or(UNIX_EPOCH);
                Forecast::Off { reason: reason.clone(), since, file: proofs.file(&planned.identity) }
            }
        })
    }
}
