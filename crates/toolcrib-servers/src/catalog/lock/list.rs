//! One list of tools in a lockfile.

use std::collections::HashSet;

use serde_json::Value;

use super::{LockedList, LockedServer, LockedTool, ToolText, order};
use crate::{config::Secrets, tool::Tool};

impl LockedList {
    /// Makes the list of these tools; of two tools with one name the first counts. Texts of `before` stay, in their order of
    /// keys, for tools that are the same.
    pub(super) fn of<'a>(tools: impl IntoIterator<Item = &'a Tool>, before: Option<&LockedServer>) -> Self {
        let known: HashSet<(&str, &str)> =
            before.into_iter().flat_map(LockedServer::tools).map(LockedTool::parts).collect();
        let (mut now, mut names) = (Self::default(), HashSet::new());
        for tool in tools.into_iter().filter(|tool| names.insert(tool.own_name())) {
            let locked = LockedTool::of(tool);
            let before = before.filter(|_| known.contains(&locked.parts()));
            let text = match before.and_then(|before| before.text(tool)) {
                before @ Some(_) => ToolText::of(&order::reviewed(tool, before)),
                None => ToolText::of(tool),
            };
            now.texts.extend(text.map(|text| (tool.own_name().to_owned(), text)));
            now.tools.push(locked);
        }
        now
    }

    /// Removes the tools that `other` has in the same words.
    pub(super) fn without(mut self, other: &Self) -> Self {
        self.tools.retain(|tool| other.hash(&tool.name) != Some(tool.sha256.as_str()));
        let names: HashSet<&str> = self.tools.iter().map(|tool| tool.name.as_str()).collect();
        self.texts.retain(|name, _| names.contains(name.as_str()));
        self
    }

    pub(super) fn hash(&self, name: &str) -> Option<&str> {
        self.tools.iter().find(|tool| tool.name == name).map(|tool| tool.sha256.as_str())
    }

    pub(super) fn hide(&mut self, secrets: &Secrets) {
        for tool in &mut self.tools {
            tool.name = secrets.hide(&tool.name);
        }
        for (name, mut text) in std::mem::take(&mut self.texts) {
            text.description = secrets.hide(&text.description);
            let mut schemas: Value = serde_json::from_str(&text.schemas).unwrap_or_default();
            secrets.hide_in(&mut schemas);
            text.schemas = format!("{schemas:#}");
            self.texts.insert(secrets.hide(&name), text);
        }
    }
}
