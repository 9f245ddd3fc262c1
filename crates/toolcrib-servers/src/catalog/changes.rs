//! Compares two tool lists of a server.

use std::{collections::HashMap, fmt, time::SystemTime};

use serde::{Deserialize, Serialize};

use crate::tool::Tool;

/// The tools that came, went and changed from one list of a server to another, by name and in the order of the lists.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolChanges {
    /// Names that are not in the older list.
    pub added: Vec<String>,
    /// Names that are not in the newer list.
    pub removed: Vec<String>,
    /// Tools of both lists whose description, schema or hints differ.
    pub changed: Vec<String>,
    /// When the older list was given, where that is known. In JSON as text, in UTC.
    #[serde(with = "crate::task::date")]
    pub since: Option<SystemTime>,
}

impl ToolChanges {
    /// Finds the changes from `before` to `after`.
    #[doc(hidden)]
    pub fn between(before: &[Tool], after: &[Tool]) -> Self {
        let old: HashMap<&str, &Tool> = before.iter().map(|tool| (tool.name.as_str(), tool)).collect();
        let mut changes = Self::default();
        for tool in after {
            match old.get(tool.name.as_str()) {
                None => changes.added.push(tool.name.clone()),
                Some(before) if *before != tool => changes.changed.push(tool.name.clone()),
                Some(_) => {}
            }
        }
        let gone = |tool: &&Tool| !after.iter().any(|new| new.name == tool.name);
        changes.removed = before.iter().filter(gone).map(|tool| tool.name.clone()).collect();
        changes
    }

    /// The same with other names for the tools.
    pub(crate) fn renamed(mut self, shown: impl Fn(&str) -> String) -> Self {
        let lists = [&mut self.added, &mut self.removed, &mut self.changed];
        for name in lists.into_iter().flatten() {
            *name = shown(name);
        }
        self
    }

    /// All names, those that came with `+`, those that went with `-`, those that changed with `~`.
    pub fn signed(&self) -> Vec<String> {
        let signed = |sign: char, names: &[String]| {
            names.iter().map(|name| format!("{sign}{name}")).collect::<Vec<_>>()
        };
        [signed('+', &self.added), signed('-', &self.removed), signed('~', &self.changed)].concat()
    }

    /// Whether there are none. The order of the tools does not count.
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty() && self.changed.is_empty()
    }
}

impl fmt::Display for ToolChanges {
    /// `+2 -1 ~1 tools`, `~1 tool`, and since when.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (sign, names) in [('+', &self.added), ('-', &self.removed), ('~', &self.changed)] {
            if !names.is_empty() {
                write!(f, "{sign}{} ", names.len())?;
            }
        }
        let count = self.added.len() + self.removed.len() + self.changed.len();
        f.write_str(if count == 1 { "tool" } else { "tools" })?;
        match self.since {
            Some(since) => write!(f, " since {}", humantime::format_rfc3339_seconds(since)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;

    #[test]
    fn each_changed_tool_is_counted_once() {
        let tool = |name: &str, text: &str| Tool::new(name, text, Map::new());
        let before = [tool("a", ""), tool("b", ""), tool("c", "")];
        let after = [tool("c", "new words"), tool("d", ""), tool("a", ""), tool("e", "")];
        let changes = ToolChanges::between(&before, &after);
        assert_eq!(changes.signed(), ["+d", "+e", "-b", "~c"]);
        assert_eq!(changes.to_string(), "+2 -1 ~1 tools");
        assert!(ToolChanges::between(&before, &before).is_empty());
    }
}
