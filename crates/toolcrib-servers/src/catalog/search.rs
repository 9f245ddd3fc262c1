//! Finds tools by words: BM25 over their names, descriptions and arguments.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use super::{CatalogEntry, ToolCatalog};

/// How many words of one tool, and of one query, count.
const MAX_WORDS: usize = 2000;
const MAX_QUERY: usize = 64;
/// How many words of all tools together count: with very many tools fewer of each, but its names always.
const ALL_WORDS: usize = 1_000_000;
const LEAST_WORDS: usize = 20;
/// Bytes of a query, and of each text of a tool, that are looked at; and of the longest word.
const LONGEST_TEXT: usize = 16 << 10;
const LONGEST_WORD: usize = 64;
/// How often a word of a name counts, beside one of a description.
const NAME_WEIGHT: f32 = 3.0;
/// Words that say nothing about a tool.
const FILLERS: &[&str] = &["a", "an", "and", "for", "in", "of", "on", "or", "the", "to", "with"];
/// The usual constants of BM25: how soon more of a word stops to matter, and how much long texts are held back.
const K1: f32 = 1.2;
const B: f32 = 0.75;

/// The words of all tools of a catalog.
#[derive(Debug)]
pub(super) struct SearchIndex {
    /// The tools that have a word, by their places in the catalog, and how often.
    words: HashMap<String, Vec<(usize, f32)>>,
    /// How many words each tool has.
    lengths: Vec<f32>,
    mean_length: f32,
}

impl SearchIndex {
    pub(super) fn of(entries: &[Arc<CatalogEntry>]) -> Self {
        let most = (ALL_WORDS / entries.len().max(1)).clamp(LEAST_WORDS, MAX_WORDS);
        let mut words: HashMap<String, Vec<(usize, f32)>> = HashMap::new();
        let mut lengths = Vec::with_capacity(entries.len());
        for (place, entry) in entries.iter().enumerate() {
            let mut length = 0.0;
            for (word, weight) in weighted_words(entry).take(most) {
                let tools = words.entry(word).or_default();
                match tools.last_mut() {
                    Some((last, times)) if *last == place => *times += weight,
                    _ => tools.push((place, weight)),
                }
                length += weight;
            }
            lengths.push(length);
        }
        let mean_length = (lengths.iter().sum::<f32>() / count(lengths.len())).max(1.0);
        Self { words, lengths, mean_length }
    }

    /// The tools that have a word of a query, by their places in the catalog, each with its score.
    fn scored(&self, query: &HashSet<String>) -> BTreeMap<usize, f32> {
        let mut scores = BTreeMap::new();
        for tools in query.iter().filter_map(|word| self.words.get(word)) {
            let spread = count(tools.len());
            let rarity = (1.0 + (count(self.lengths.len()) - spread + 0.5) / (spread + 0.5)).ln();
            for (place, times) in tools {
                let held_back = K1 * (1.0 - B + B * self.lengths[*place] / self.mean_length);
                *scores.entry(*place).or_default() += rarity * times * (K1 + 1.0) / (times + held_back);
            }
        }
        scores
    }
}

/// The words of a tool, those of its names first, and how much each counts.
fn weighted_words(entry: &CatalogEntry) -> impl Iterator<Item = (String, f32)> {
    let tool = &entry.tool;
    let properties = tool.input_schema.get("properties").and_then(|properties| properties.as_object());
    let arguments = properties.into_iter().flatten().flat_map(|(name, schema)| {
        let description = schema.get("description").and_then(|text| text.as_str()).unwrap_or_default();
        words_of(name).chain(words_of(description))
    });
    let names = words_of(entry.server.as_str()).chain(words_of(&tool.name));
    let texts = words_of(&tool.description).chain(arguments);
    names.map(|word| (word, NAME_WEIGHT)).chain(texts.map(|word| (word, 1.0)))
}

impl ToolCatalog {
    /// Finds tools that `admit` lets through and that have a word of `query` in their names, descriptions or arguments, the
    /// best first (by BM25), at most `limit`.
    pub fn search(
        &self,
        query: &str,
        limit: usize,
        admit: impl Fn(&CatalogEntry) -> bool,
    ) -> Vec<&Arc<CatalogEntry>> {
        let query: HashSet<String> = words_of(query).take(MAX_QUERY).collect();
        let index = self.search_index.get_or_init(|| SearchIndex::of(&self.entries));
        let scored = index.scored(&query).into_iter().map(|(place, score)| (score, &self.entries[place]));
        let mut found: Vec<_> = scored.filter(|(score, entry)| *score > 0.0 && admit(entry)).collect();
        // Stable: of two with one score, the first in the catalog is first.
        found.sort_by(|(one, _), (other, _)| other.total_cmp(one));
        found.into_iter().take(limit).map(|(_, entry)| entry).collect()
    }
}

/// The words of a text in lower case and the singular: `readTextFiles` and `read_text_file` have the same.
fn words_of(text: &str) -> impl Iterator<Item = String> {
    let end = (0..=LONGEST_TEXT.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    let words = text[..end.unwrap_or_default()].split(|c: char| !c.is_alphanumeric()).flat_map(parts);
    words.filter(|word| !word.is_empty() && word.len() <= LONGEST_WORD && !FILLERS.contains(&&**word))
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
    fn long_words_and_long_queries_are_not_searched() {
        let catalog = |tools: usize, description: &str| {
            let name = |n: usize| format!("send_{n}_{}", "x".repeat(100));
            let tools = (0..tools).map(|n| Tool::new(name(n), description, Map::new()));
            ToolCatalog::new([(ServerName::new("mail").unwrap(), tools.collect::<Vec<_>>())])
        };
        let many = catalog(60_000, "");
        let catalog = catalog(300, &"Send it. ".repeat(5000));
        let index = SearchIndex::of(&catalog.entries);
        assert!(index.words.keys().all(|word| word.len() <= LONGEST_WORD), "{:?}", index.words.keys());
        assert!(index.lengths.iter().all(|length| *length <= NAME_WEIGHT * count(MAX_WORDS)));
        assert_eq!(catalog.search("send", 5, |_| true).len(), 5);
        assert!(catalog.search(&"x".repeat(4_000_000), 5, |_| true).is_empty());
        let far = format!("{} send", "y ".repeat(LONGEST_TEXT));
        assert!(catalog.search(&far, 5, |_| true).is_empty(), "what is that far behind does not count");
        // Of very many tools the names are found all the same.
        let found = many.search("59999", 5, |_| true);
        assert!(found.len() == 1 && found[0].tool.name.starts_with("send_59999_"));
    }

    #[test]
    fn tools_that_are_not_admitted_are_not_found() {
        let catalog = catalog();
        let found = catalog.search("send a message", 9, |entry| entry.tool.name != "send");
        let names: Vec<&str> = found.iter().map(|entry| entry.tool.name.as_str()).collect();
        assert_eq!(names, ["search"]);
    }
}
