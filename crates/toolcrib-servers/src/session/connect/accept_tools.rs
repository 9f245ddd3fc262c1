//! Checks every tool list that a server gives, at its start and later: a tool that is listed twice is dropped, the list
//! is compared with the lockfile, and remembered for the next start.

use std::{collections::HashSet, sync::Arc};

use super::failure::Cause;
use crate::session::ConnectContext;
use crate::{
    catalog::{CatalogCache, Fingerprint, Listing, LockFile, ToolChanges},
    config::{Secrets, ServerConfig, ToolFilter, ToolRenames},
    tool::{ServerName, Tool},
};

/// Takes the lists of one connection in.
#[derive(Clone)]
pub(super) struct ToolListCheck {
    server: ServerName,
    offered: ToolFilter,
    renames: ToolRenames,
    lock: Option<Arc<LockFile>>,
    cache: Option<(CatalogCache, Fingerprint)>,
    secrets: Secrets,
}

/// A list as it is used.
pub(super) struct AcceptedTools {
    /// No two of one name; under a lockfile they, and the keys of their schemas, in the order that was reviewed.
    pub(super) tools: Arc<[Tool]>,
    /// How it differs from the last one that was remembered, if there is such a one and it does.
    pub(super) changes: Option<ToolChanges>,
    /// Oddities of the list, each with its place.
    pub(super) oddities: Vec<String>,
}

impl ToolListCheck {
    /// Must be made before the server is started: its program may be exchanged while it starts.
    pub(super) fn new(config: &ServerConfig, connect_context: &ConnectContext) -> Self {
        let print = || Fingerprint::of(config, &connect_context.client.identity.capabilities);
        let cache = connect_context.cache.clone().and_then(|cache| Some((cache, print()?)));
        Self {
            server: config.name.clone(),
            offered: config.tools.clone(),
            renames: config.renames.clone(),
            lock: connect_context.lock.clone(),
            cache,
            secrets: connect_context.secrets.clone(),
        }
    }

    /// Text of the reason why a list was not accepted, with secrets hidden that a server may have put into it.
    pub(super) fn shown(&self, cause: &Cause) -> String {
        self.secrets.hide(&format!("{cause:?}"))
    }

    /// Tells that changes of the lists are not told of, and why.
    pub(super) fn unwatched(&self, why: &str) {
        let why = self.secrets.hide(why);
        tracing::warn!(server = %self.server, why, "does not tell of changes of its lists: they will not be noticed");
    }

    /// Takes a list in. Of two tools with one name the first counts: a call goes by the name, and the server decides
    /// which of them runs. `oddities` were found when it was read.
    ///
    /// # Errors
    /// [`Cause::Locked`] and [`Cause::SameName`]: the list is not to be used.
    pub(super) fn take(
        &self,
        listing: &mut Listing,
        mut oddities: Vec<String>,
    ) -> Result<AcceptedTools, Cause> {
        oddities.extend(told_twins(&without_twins(&mut listing.tools)));
        for oddity in &mut oddities {
            *oddity = self.secrets.hide(oddity);
            tracing::warn!(server = %self.server, oddity, "the tool list is not as the protocol has it");
        }
        let mut tools = listing.tools.clone();
        if let Some(lock) = &self.lock {
            tools = admitted(lock, &self.server, &self.offered, &tools).map_err(Cause::Locked)?;
        }
        if let Some(clash) = clash(&self.offered, &self.renames, &tools) {
            return Err(Cause::SameName(clash));
        }
        let remember = |(cache, print): &(CatalogCache, Fingerprint)| {
            cache.remember(&self.server, print, listing, &self.secrets)
        };
        let changes = self.cache.as_ref().and_then(remember);
        let changes = changes.map(|changes| changes.renamed(|own| self.renames.shown(own).to_owned()));
        if let Some(changes) = &changes {
            tracing::warn!(server = %self.server, %changes, "other tools than before");
        }
        Ok(AcceptedTools { tools, changes, oddities })
    }
}

/// Leaves out all tools but the first of each name; says of which names there were more, each once.
fn without_twins(tools: &mut Arc<[Tool]>) -> Vec<String> {
    let (mut names, mut again, mut twins) = (HashSet::new(), HashSet::new(), Vec::new());
    for tool in tools.iter() {
        let name = tool.name.as_str();
        if !names.insert(name) && again.insert(name) {
            twins.push(name.to_owned());
        }
    }
    if !twins.is_empty() {
        let mut names = HashSet::new();
        *tools = tools.iter().filter(|tool| names.insert(tool.name.clone())).cloned().collect();
    }
    twins
}

/// The oddity of a list in which names occur more than once. `None`: there is no such name.
fn told_twins(twins: &[String]) -> Option<String> {
    let tool = twins.first()?;
    let others = match twins.len() - 1 {
        0 => String::new(),
        others => format!(" (and so {others} more)"),
    };
    Some(format!("it lists the tool `{tool}` more than once{others}: only the first of them counts"))
}

/// Two of the tools that would be offered by the same name, in words.
pub(in crate::session) fn clash(
    offered: &ToolFilter,
    renames: &ToolRenames,
    tools: &[Tool],
) -> Option<String> {
    let names = tools.iter().map(|tool| tool.name.as_str()).filter(|name| offered.permits(name));
    let (one, other, shown) = renames.clash(&names.collect::<Vec<_>>())?;
    Some(format!("`{one}` and `{other}` would both be named `{shown}`"))
}

/// The tools as the lockfile has them to be shown.
///
/// # Errors
/// What it says against those that would be offered.
pub(in crate::session) fn admitted(
    lock: &LockFile,
    server: &ServerName,
    offered: &ToolFilter,
    tools: &[Tool],
) -> Result<Arc<[Tool]>, Vec<String>> {
    let shown: Vec<&Tool> = tools.iter().filter(|tool| offered.permits(&tool.name)).collect();
    match lock.lock_violations(server, &shown) {
        lock_violations if lock_violations.is_empty() => Ok(lock.in_reviewed_order(server, tools)),
        lock_violations => Err(lock_violations),
    }
}
