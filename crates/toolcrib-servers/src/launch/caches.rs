//! Compile caches of interpreters, for faster starts.

mod node;
mod python;

use std::{path::Path, sync::Arc};

use crate::config::StdioConfig;

/// The folder below which interpreters may keep what they compile. A cheap handle.
#[derive(Clone, Debug)]
pub(super) struct Caches {
    folder: Arc<Path>,
    /// It was there before: what is put into it outlasts a start.
    lasts: bool,
}

impl Caches {
    pub(super) fn new(folder: &Path) -> Self {
        Self { folder: folder.into(), lasts: folder.is_dir() }
    }

    /// `spec` with a folder for what its interpreter compiles. `None` if it has no interpreter that would be faster
    /// for it, its environment decides itself, or it is in a sandbox, where the folder is not open and code of others
    /// must not come from.
    pub(super) fn with(&self, spec: &StdioConfig) -> Option<StdioConfig> {
        if !spec.start_caches || spec.sandbox.is_some() {
            return None;
        }
        let python = || if self.lasts { python::variable(spec) } else { None };
        let (variable, folder) = node::variable(spec).or_else(python)?;
        let mut spec = spec.clone();
        spec.set_env(variable, self.folder.join(folder).display().to_string());
        Some(spec)
    }
}
