//! Tools that a client sees, and those of them that it may call.

use std::sync::Arc;

use crate::{catalog::CatalogEntry, config::NamePattern};

/// A rule that admits some of the tools.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ToolRule {
    /// Patterns, of which one must match `SERVER.TOOL`. `None`: all tools.
    pub tools: Option<Arc<[NamePattern]>>,
    /// Whether only those of these tools are admitted that say that they change nothing.
    pub read_only: bool,
}

/// The tools of a client.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ToolAccess {
    /// Rules that must all admit a tool.
    pub limits: Vec<ToolRule>,
    /// Rules of which one must also admit a tool that is called. `None`: the limits are all.
    pub(crate) granted: Option<Vec<ToolRule>>,
    /// Rules of which one must also admit a tool that is listed. `None`: as for a call.
    pub listed: Option<Vec<ToolRule>>,
}

impl ToolRule {
    pub fn new(tools: Option<&Vec<NamePattern>>, read_only: bool) -> Self {
        Self { tools: tools.map(|patterns| patterns.as_slice().into()), read_only }
    }

    pub(crate) fn admits(&self, entry: &CatalogEntry) -> bool {
        let named = |patterns: &Arc<[NamePattern]>| {
            let path = entry.path();
            patterns.iter().any(|pattern| pattern.is_match(&path))
        };
        let reads = || entry.tool.annotations.read_only_hint == Some(true);
        self.tools.as_ref().is_none_or(named) && (!self.read_only || reads())
    }

    fn is_all(&self) -> bool {
        self.tools.is_none() && !self.read_only
    }
}

impl ToolAccess {
    /// Makes the access that `limits` leave.
    pub(crate) fn limited(limits: impl IntoIterator<Item = ToolRule>) -> Arc<Self> {
        let limits = limits.into_iter().filter(|rule| !rule.is_all()).collect();
        Arc::new(Self { limits, ..Self::default() })
    }

    /// Whether the client may call a tool.
    pub(crate) fn allows(&self, entry: &CatalogEntry) -> bool {
        self.admits(entry, self.granted.as_deref())
    }

    /// Whether the client is shown a tool. One that may be called is.
    pub(crate) fn lists(&self, entry: &CatalogEntry) -> bool {
        self.admits(entry, self.listing())
    }

    fn admits(&self, entry: &CatalogEntry, some: Option<&[ToolRule]>) -> bool {
        self.limits.iter().all(|rule| rule.admits(entry))
            && some.is_none_or(|rules| rules.iter().any(|rule| rule.admits(entry)))
    }

    fn listing(&self) -> Option<&[ToolRule]> {
        self.listed.as_deref().or(self.granted.as_deref())
    }

    /// Whether both show the same, whatever tools there are.
    pub(crate) fn lists_as(&self, other: &Self) -> bool {
        self.limits == other.limits && self.listing() == other.listing()
    }

    /// Whether there may be tools that the client may not call.
    pub(crate) fn limits_calls(&self) -> bool {
        let all = |rules: &Vec<ToolRule>| rules.iter().any(ToolRule::is_all);
        !self.limits.is_empty() || self.granted.as_ref().is_some_and(|rules| !all(rules))
    }

    /// Whether there may be tools that the client does not see.
    pub(crate) fn hides(&self) -> bool {
        !self.limits.is_empty() || self.listing().is_some()
    }
}
