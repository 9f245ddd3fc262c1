//! Other names for tools than those that their servers give them.

use std::collections::BTreeMap;

use crate::tool::{Tool, ToolName};

/// The tools of one server that have another name for models, clients and people than on their server. Two tools can swap
/// their names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolRenames(BTreeMap<String, ToolName>);

impl ToolRenames {
    /// Makes renames of `names`: names that the server gives its tools, each with the one that is shown. Of two tools that are
    /// to have one name, the first in order of their own names has it.
    pub fn new(names: impl IntoIterator<Item = (String, ToolName)>) -> Self {
        Self(names.into_iter().collect())
    }

    /// The name that is shown of the tool that its server calls `own`.
    pub fn shown<'a>(&'a self, own: &'a str) -> &'a str {
        self.0.get(own).map_or(own, ToolName::as_str)
    }

    /// The server's own name of the tool that is shown as `shown`. `None`: its tool of that name is shown by another one.
    pub fn own<'a>(&'a self, shown: &'a str) -> Option<&'a str> {
        let renamed = self.0.iter().find(|(_, name)| name.as_str() == shown);
        renamed.map(|(own, _)| own.as_str()).or_else(|| (!self.0.contains_key(shown)).then_some(shown))
    }

    /// The tool with the name that is shown. `None`: another tool of the server has taken its name.
    #[doc(hidden)]
    pub fn rename(&self, tool: &Tool) -> Option<Tool> {
        let shown = self.shown(&tool.name);
        (self.own(shown) == Some(&*tool.name)).then(|| tool.shown_as(shown))
    }

    /// The first tool of `offered` (their own names) that would be shown by the same name as another one: both own names, and
    /// the name that is shown.
    #[doc(hidden)]
    pub fn clash<'a>(&'a self, offered: &[&'a str]) -> Option<(&'a str, &'a str, &'a str)> {
        let taken = |own: &&'a str| {
            let (shown, own) = (self.shown(own), *own);
            let other = self.own(shown).filter(|other| *other != own && offered.contains(other))?;
            Some((own, other, shown))
        };
        offered.iter().filter(|_| !self.0.is_empty()).find_map(taken)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;

    #[test]
    fn names_lead_to_tools_and_back() {
        let name = |text| ToolName::new(text).unwrap();
        let names = [("search_web", "search"), ("a", "b"), ("b", "a")];
        let renames = ToolRenames::new(names.map(|(own, shown)| (own.to_owned(), name(shown))));
        for own in ["search_web", "a", "b", "other"] {
            assert_eq!(renames.own(renames.shown(own)), Some(own));
        }
        assert_eq!((renames.shown("a"), renames.own("a")), ("b", Some("b")), "these two have swapped");
        assert_eq!(renames.own("search_web"), None, "it has another name now");
        assert_eq!(renames.clash(&["a", "b", "search_web"]), None);
        let clash = renames.clash(&["search", "search_web"]);
        assert_eq!(clash, Some(("search", "search_web", "search")));
        assert_eq!(renames.clash(&["search"]), None, "the tool that would be renamed is not there");
        let shown = |own: &str| renames.rename(&Tool::new(own, "", Map::default()));
        assert_eq!(shown("search_web").unwrap().name, "search");
        assert_eq!(shown("search_web").unwrap().own_name(), "search_web");
        assert_eq!(shown("search"), None, "its name is taken");
        assert_eq!(shown("other").unwrap(), Tool::new("other", "", Map::default()));
    }
}
