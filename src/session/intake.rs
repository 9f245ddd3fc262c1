//! What is done with every list of tools that a server gives, at its start and later: it is remembered for the next
//! start.

use super::Surroundings;
use crate::{
    catalog::{CatalogCache, Fingerprint, Listing, ToolChanges},
    config::{Secrets, ServerConfig},
    tool::ServerName,
};

/// Takes the lists of one connection in.
#[derive(Clone)]
pub(super) struct Intake {
    server: ServerName,
    cache: Option<(CatalogCache, Fingerprint)>,
    secrets: Secrets,
}

impl Intake {
    /// To be made before the server is started: its program may be exchanged while it starts.
    pub(super) fn new(config: &ServerConfig, around: &Surroundings) -> Self {
        let cache = around.cache.clone().and_then(|cache| Some((cache, Fingerprint::of(config)?)));
        Self { server: config.name.clone(), cache, secrets: around.kin.secrets.clone() }
    }

    /// Says how the list differs from the last one that was remembered, if there is such a one and it does.
    pub(super) fn take(&self, listing: &Listing) -> Option<ToolChanges> {
        let (cache, print) = self.cache.as_ref()?;
        let changes = cache.remember(&self.server, print, listing, &self.secrets)?;
        tracing::warn!(server = %self.server, %changes, "other tools than before");
        Some(changes)
    }
}
