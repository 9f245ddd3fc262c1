//! Caches that interpreters offer for their own start.

mod node;
mod python;

use std::path::Path;

use crate::config::StdioConfig;

/// `spec` with a folder below `cache` for what its interpreter compiles. Nothing if it has no interpreter that would
/// be faster for it, its environment decides itself, or it is in a sandbox, where the folder is not open and code of
/// others must not come from.
pub(super) fn with(spec: &StdioConfig, cache: &Path) -> Option<StdioConfig> {
    if !spec.start_caches || spec.sandbox.is_some() {
        return None;
    }
    let (variable, folder) = node::variable(spec).or_else(|| python::variable(spec))?;
    let mut spec = spec.clone();
    spec.set_env(variable, cache.join(folder).display().to_string());
    Some(spec)
}
