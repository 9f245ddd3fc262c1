//! What is done with every list of tools that a server gives, at its start and later: it is held against the
//! lockfile, and remembered for the next start.

use std::sync::Arc;

use super::{Surroundings, failure::Cause};
use crate::{
    catalog::{CatalogCache, Fingerprint, Listing, LockFile, ToolChanges},
    config::{Secrets, ServerConfig, ToolFilter},
    tool::{ServerName, Tool},
};

/// Takes the lists of one connection in.
#[derive(Clone)]
pub(super) struct Intake {
    server: ServerName,
    offered: ToolFilter,
    lock: Option<Arc<LockFile>>,
    cache: Option<(CatalogCache, Fingerprint)>,
    secrets: Secrets,
}

impl Intake {
    /// To be made before the server is started: its program may be exchanged while it starts.
    pub(super) fn new(config: &ServerConfig, around: &Surroundings) -> Self {
        let cache = around.cache.clone().and_then(|cache| Some((cache, Fingerprint::of(config)?)));
        Self {
            server: config.name.clone(),
            offered: config.tools.clone(),
            lock: around.lock.clone(),
            cache,
            secrets: around.kin.secrets.clone(),
        }
    }

    /// What stands in the way of a list, without secrets that a server may have put into it.
    pub(super) fn shown(&self, cause: &Cause) -> String {
        self.secrets.hide(&format!("{cause:?}"))
    }

    /// Says how the list differs from the last one that was remembered, if there is such a one and it does.
    ///
    /// # Errors
    /// [`Cause::Locked`]: the list is not to be used.
    pub(super) fn take(&self, listing: &Listing) -> Result<Option<ToolChanges>, Cause> {
        if let Some(lock) = &self.lock {
            let objections = objections(lock, &self.server, &self.offered, &listing.tools);
            if !objections.is_empty() {
                return Err(Cause::Locked(objections));
            }
        }
        let Some((cache, print)) = &self.cache else { return Ok(None) };
        let changes = cache.remember(&self.server, print, listing, &self.secrets);
        if let Some(changes) = &changes {
            tracing::warn!(server = %self.server, %changes, "other tools than before");
        }
        Ok(changes)
    }
}

/// What the lockfile says against the tools that would be offered.
pub(super) fn objections(
    lock: &LockFile,
    server: &ServerName,
    offered: &ToolFilter,
    tools: &[Tool],
) -> Vec<String> {
    let offered: Vec<&Tool> = tools.iter().filter(|tool| offered.permits(&tool.name)).collect();
    lock.objections(server, &offered)
}
