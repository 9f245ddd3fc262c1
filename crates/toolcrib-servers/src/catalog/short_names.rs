//! Names of tools within a limit of a client's, which puts a prefix of its own before them.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError},
};

use super::{CatalogEntry, MAX_VISIBLE, ToolCatalog, visible_name};

/// Other names for those tools whose visible names are too long.
#[derive(Debug, Default)]
pub struct ShortNames {
    most: usize,
    /// Short names, by the visible names.
    shown: HashMap<String, String>,
    entries: HashMap<String, usize>,
}

impl ShortNames {
    /// The name of a tool.
    pub fn of<'n>(&'n self, entry: &'n CatalogEntry) -> &'n str {
        self.shown.get(&entry.visible_name).unwrap_or(&entry.visible_name)
    }
}

impl ToolCatalog {
    /// The names of all tools in at most `most` characters. As visible names they depend on the names alone.
    #[doc(hidden)]
    pub fn short_names(&self, most: usize) -> Arc<ShortNames> {
        let mut known = self.short_names.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.as_ref().filter(|known| known.most == most) {
            return known.clone();
        }
        let mut names = ShortNames { most, ..ShortNames::default() };
        for (index, entry) in self.entries.iter().enumerate() {
            if entry.visible_name.len() <= most || most >= MAX_VISIBLE {
                continue;
            }
            let is_taken =
                |name: &str| self.by_visible.contains_key(name) || names.entries.contains_key(name);
            let name = visible_name(&entry.server, &entry.tool.name, most, is_taken);
            names.shown.insert(entry.visible_name.clone(), name.clone());
            names.entries.insert(name, index);
        }
        known.insert(Arc::new(names)).clone()
    }

    /// The tool with this visible name, or this name in at most `most` characters.
    #[doc(hidden)]
    pub fn by_short_name(&self, name: &str, most: usize) -> Option<&Arc<CatalogEntry>> {
        self.by_visible_name(name)
            .or_else(|| self.short_names(most).entries.get(name).map(|index| &self.entries[*index]))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;
    use crate::tool::{ServerName, Tool};

    #[test]
    fn long_names_are_short_stable_and_lead_to_their_tools() {
        let tool = |name: &str| Tool::new(name, "", Map::new());
        let long = "x".repeat(60);
        let tools = vec![tool("now"), tool(&long), tool(&format!("{long}y")), tool(&"z".repeat(40))];
        let server = ServerName::new("server").unwrap();
        let catalog = ToolCatalog::new([(server.clone(), tools.clone())]);
        let names = catalog.short_names(32);
        let shown: Vec<&str> = catalog.entries().iter().map(|entry| names.of(entry)).collect();
        assert_eq!(shown[0], "server__now");
        for (index, name) in shown.iter().enumerate() {
            assert!(name.len() <= 32, "{name}");
            let entry = catalog.by_short_name(name, 32).unwrap();
            assert_eq!(entry.path(), catalog.entries()[index].path());
            // Names that a client knows from before lead there too.
            assert!(catalog.by_short_name(&entry.visible_name, 32).is_some());
        }
        let alone = ToolCatalog::new([(server, vec![tools[2].clone()])]);
        assert_eq!(alone.short_names(32).of(&alone.entries()[0]), shown[2], "whatever else there is");
        assert_eq!(catalog.short_names(64).of(&catalog.entries()[3]), catalog.entries()[3].visible_name);
    }
}
