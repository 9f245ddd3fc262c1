//! Finds tools by words: BM25 over their names, descriptions and arguments.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use super::{CatalogEntry, ToolCatalog};

/// How many words of one tool, and of one query, count.
const MAX_WORDS: usize = 2000;
const MAX_QUERY: usize = 64;
/// How often a word of a name counts, beside one of a description.
const NAME_WEIGHT: f32 = 3.0;
/// Words that say nothing about a tool.
const FILLERS: &[&str] = &["a", "an", "and", "for", "in", "of", "on", "or", "the", "to", "with"];
/// The usual constants of BM25: how soon more of a word stops to matter, and how much long texts are held back.
const K1: f32 = 1.2;
const B: f32 = 0.75;

/// The words of all tools of a catalog, in its order.
#[derive(Debug)]
pub(super) struct SearchIndex {
    tools: Vec<IndexedTool>,
    /// In how many tools a word is.
    spread: HashMap<String, f32>,
    mean_length: f32,
}

#[derive(Debug)]
struct IndexedTool {
    words: HashMap<String, f32>,
    length: f32,
}

impl SearchIndex {
    pub(super) fn of(entries: &[Arc<CatalogEntry>]) -> Self {
        let tools: Vec<IndexedTool> = entries.iter().map(|entry| IndexedTool::of(entry)).collect();
        let mut spread = HashMap::new();
        for word in tools.iter().flat_map(|tool| tool.words.keys()) {
            *spread.entry(word.clone()).or_default() += 1.0;
        }
        let whole: f32 = tools.iter().map(|tool| tool.length).sum();
        let mean_length = (whole / count(tools.len())).max(1.0);
        Self { tools, spread, mean_length }
    }

    /// The score of a tool for each word of a query. 0: it has none of them.
    fn score(&self, tool: &IndexedTool, query: &HashSet<String>) -> f32 {
        let of_word = |word: &String| {
            let (times, spread) = (tool.words.get(word)?, self.spread.get(word)?);
            let rarity = (1.0 + (count(self.tools.len()) - spread + 0.5) / (spread + 0.5)).ln();
            let held_back = K1 * (1.0 - B + B * tool.length / self.mean_length);
            Some(rarity * times * (K1 + 1.0) / (times + held_back))
        };
        query.iter().filter_map(of_word).sum()
    }
}

impl IndexedTool {
    fn of(entry: &CatalogEntry) -> Self {
        let tool = &entry.tool;
        let mut words: HashMap<String, f32> = HashMap::new();
        let properties = tool.input_schema.get("properties").and_then(|properties| properties.as_object());
        let arguments = properties.into_iter().flatten().flat_map(|(name, schema)| {
            let description = schema.get("description").and_then(|text| text.as_str()).unwrap_or_default();
            words_of(name).chain(words_of(description))
        });
        let names = words_of(entry.server.as_str()).chain(words_of(&tool.name));
        let texts = words_of(&tool.description).chain(arguments);
        let weighted = names.map(|word| (word, NAME_WEIGHT)).chain(texts.map(|word| (word, 1.0)));
        let mut length = 0.0;
        for (word, weight) in weighted.take(MAX_WORDS) {
            *words.entry(word).or_default() += weight;
            length += weight;
        }
        Self { words, length }
    }
}

impl ToolCatalog {
    /// Those of its tools that `admit` lets through and that have a word of `query` in their names, descriptions or
    /// arguments, the best first (by BM25), at most `limit`.
    pub fn search(
        &self,
        query: &str,
        limit: usize,
        admit: impl Fn(&CatalogEntry) -> bool,
    ) -> Vec<&Arc<CatalogEntry>> {
        let query: HashSet<String> = words_of(query).take(MAX_QUERY).collect();
        let index = self.search_index.get_or_init(|| SearchIndex::of(&self.entries));
        let scored = self.entries.iter().zip(&index.tools).filter(|(entry, _)| admit(entry));
        let scored = scored.map(|(entry, tool)| (index.score(tool, &query), entry));
        let mut found: Vec<_> = scored.filter(|(score, _)| *score > 0.0).collect();
        // Stable: of two with one score, the first in the catalog is first.
        found.sort_by(|(one, _), (other, _)| other.total_cmp(one));
        found.into_iter().take(limit).map(|(_, entry)| entry).collect()
    }
}

/// The words of a text in lower case and the singular: `readTextFiles` and `read_text_file` have the same.
fn words_of(text: &str) -> impl Iterator<Item = String> {
    let words = text.split(|c: char| !c.is_alphanumeric()).flat_map(parts);
    words.filter(|word| !word.is_empty() && !FILLERS.contains(&&**word))
}

/// A word at its changes from lower to upper case.
fn parts(word: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut was_lower = false;
    for c in word.chars() {
        if c.is_uppercase() && was_lower {
            parts.push(String::new());
        }
        was_lower = c.is_lowercase();
        if let Some(part) = parts.last_mut() {
            part.extend(c.to_lowercase());
        }
    }
    for part in &mut parts {
        if part.len() > 3 && part.ends_with('s') && !part.ends_with("ss") {
            part.pop();
        }
    }
    parts
}

#[allow(clippy::cast_precision_loss, reason = "counts of tools are small")]
fn count(tools: usize) -> f32 {
    tools as f32
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;
    use crate::tool::{ServerName, Tool};

    fn catalog() -> ToolCatalog {
        let tool = |name: &str, description: &str, argument: &str| {
            let mut schema = Map::new();
            schema.insert("properties".to_owned(), json!({argument: {"type": "string"}}));
            Tool::new(name, description, schema)
        };
        let files = vec![
            tool("readTextFile", "Read a file from the disk.", "path"),
            tool("write_file", "Write text to a file.", "path"),
            tool("list_directory", "What is in a folder.", "path"),
        ];
        let mail =
            vec![tool("send", "Send a message.", "email_address"), tool("search", "Find messages.", "words")];
        ToolCatalog::new([(ServerName::new("fs").unwrap(), files), (ServerName::new("mail").unwrap(), mail)])
    }

    #[test]
    fn the_tool_that_was_meant_comes_first() {
        let catalog = catalog();
        let found = |query: &str| -> Vec<String> {
            catalog.search(query, 2, |_| true).into_iter().map(|entry| entry.path()).collect()
        };
        assert_eq!(found("read a text file")[0], "fs.readTextFile");
        assert_eq!(found("READ_TEXT_FILES")[0], "fs.readTextFile");
        assert_eq!(found("directories of files, list")[0], "fs.list_directory");
        assert_eq!(found("email"), ["mail.send"], "by an argument alone");
        assert_eq!(found("message").len(), 2, "and no more than the limit");
        assert_eq!(found("quantum"), Vec::<String>::new());
        assert_eq!(found(" , "), Vec::<String>::new());
    }

    #[test]
    fn tools_that_are_not_admitted_are_not_found() {
        let catalog = catalog();
        let found = catalog.search("send a message", 9, |entry| entry.tool.name != "send");
        let names: Vec<&str> = found.iter().map(|entry| entry.tool.name.as_str()).collect();
        assert_eq!(names, ["search"]);
    }
}
