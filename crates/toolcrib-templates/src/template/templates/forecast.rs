//! Forecasts whether the next start of a server will be a fork.

use std::time::{Duration, UNIX_EPOCH};

use super::{Shared, StartFacts, Templates};
use crate::{
    config::StdioConfig,
    forking::Forecast,
    template::{proof::Proof, python::PythonStart},
};

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
