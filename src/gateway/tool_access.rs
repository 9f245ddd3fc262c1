//! Which tools a client sees, and which of them it may call.

use std::sync::Arc;

use crate::{catalog::CatalogEntry, config::NamePattern};

/// Some of the tools.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ToolRule {
    /// Those whose `SERVER.TOOL` matches one of these patterns. `None`: all.
    pub(crate) tools: Option<Arc<[NamePattern]>>,
    /// Of these only those that say that they change nothing.
    pub(crate) read_only: bool,
}

/// The tools of a client.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ToolAccess {
    /// All of these must admit a tool.
    pub(crate) limits: Vec<ToolRule>,
    /// And one of these, for a call. `None`: the limits are all.
    pub(crate) granted: Option<Vec<ToolRule>>,
    /// One of these, for the list. `None`: as for a call.
    pub(crate) listed: Option<Vec<ToolRule>>,
}

impl ToolRule {
    pub(crate) fn new(tools: Option<&Vec<NamePattern>>, read_only: bool) -> Self {
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
    /// What `limits` leave.
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
