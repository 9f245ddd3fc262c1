//! One table of a configuration file, read key by key: unknown keys, wrong types and bad values become errors
//! that name file, line, dotted key and the expected form. Messages never quote a string value.

use std::{collections::BTreeMap, num::NonZeroUsize, time::Duration};

use regex::Regex;

use super::{
    foreign,
    node::{Entry, Node, Value, is_bare},
    source_location::{SourceLocation, Text},
};
use crate::{
    config::NamePattern,
    error::{ConfigError, Error, Result, nearest},
    tool::ServerName,
};

#[cfg(test)]
pub(in crate::config) mod recorded;
mod units;

pub(crate) use self::units::parse_duration;
pub use self::units::parse_size;

/// Notes in tests which kind of value the code reads for a key: the JSON Schema of the file is made of that.
macro_rules! noted {
    ($table:ident, $key:expr, $kind:expr) => {
        #[cfg(test)]
        recorded::note(&$table.path, $key, || $kind);
    };
}

/// A table under reading. Every key that is asked for must be in the list it was opened with.
#[derive(Debug)]
pub struct Section<'a> {
    pub origin: &'a SourceLocation,
    pub path: String,
    pub line: usize,
    pub server: Option<ServerName>,
    entries: &'a [Entry],
    keys: &'static [&'static str],
}

impl<'a> Section<'a> {
    /// Opens `node` as the table at `path`; keys outside `keys` are an error.
    pub fn open(
        origin: &'a SourceLocation,
        path: &str,
        line: usize,
        node: &'a Node,
        keys: &'static [&'static str],
        server: Option<&ServerName>,
    ) -> Result<Self> {
        let section = Self {
            origin,
            path: path.to_owned(),
            line,
            server: server.cloned(),
            entries: node.entries(),
            keys,
        };
        if !matches!(node.value, Value::Table(_)) {
            return Err(section.at(line, path.to_owned(), section.found("a table", node), None));
        }
        let strange = section.entries.iter().find(|entry| !keys.contains(&entry.key.as_str()));
        match strange {
            Some(entry) => Err(section.unknown(entry)),
            None => Ok(section),
        }
    }

    fn unknown(&self, entry: &Entry) -> Error {
        let elsewhere = foreign::key_help(&entry.key, self.keys);
        let help = match nearest(&entry.key, self.keys.iter().copied()) {
            _ if elsewhere.is_some() => elsewhere.unwrap_or_default().to_owned(),
            Some(key) => format!("did you mean `{key}`?"),
            None => format!("allowed here: {}", self.keys.join(", ")),
        };
        self.at(entry.line, self.dotted(&entry.key), "unknown key".to_owned(), Some(help))
    }

    /// The dotted path of a key of this table.
    pub(crate) fn dotted(&self, key: &str) -> String {
        let key = quoted(key);
        if self.path.is_empty() { key } else { format!("{}.{key}", self.path) }
    }

    fn at(&self, line: usize, key: String, message: String, help: Option<String>) -> Error {
        let server = self.server.clone();
        let key = Some(key).filter(|key| !key.is_empty());
        let file = self.origin.shown.clone();
        ConfigError { file, line: Some(line), key, server, message, help, ..ConfigError::default() }.into()
    }

    /// An error about the whole table.
    pub fn error(&self, message: &str, help: Option<&str>) -> Error {
        self.at(self.line, self.path.clone(), message.to_owned(), help.map(str::to_owned))
    }

    /// An error about one key of this table, at its line when it is there.
    pub fn key_error(&self, key: &str, message: impl Into<String>, help: Option<&str>) -> Error {
        let line = self.get(key).map_or(self.line, |entry| entry.line);
        self.at(line, self.dotted(key), message.into(), help.map(str::to_owned))
    }

    /// An error about one text of this table.
    pub fn text_error(&self, text: &Text, message: String, help: Option<String>) -> Error {
        self.at(text.line, text.key.clone(), message, help)
    }

    pub fn wrong(&self, entry: &Entry, expected: &str, example: &str) -> Error {
        let message = self.found(expected, &entry.node);
        self.at(entry.line, self.dotted(&entry.key), message, Some(self.write(&entry.key, example)))
    }

    fn found(&self, expected: &str, node: &Node) -> String {
        let message = format!("expected {expected}, found {}", node.kind());
        if self.origin.json {
            message.replace("a table", "an object").replace("of tables", "of objects")
        } else {
            message
        }
    }

    /// How a key is written.
    fn write(&self, key: &str, example: &str) -> String {
        if self.origin.json {
            format!("write \"{key}\": {example}")
        } else {
            format!("write {key} = {example}")
        }
    }

    /// The entry of a key, unless it is missing or null.
    pub fn get(&self, key: &str) -> Option<&'a Entry> {
        debug_assert!(self.keys.contains(&key), "{key} is not in the list of keys");
        // The last one counts where JSON repeats a key.
        self.entries.iter().rev().find(|entry| entry.key == key && entry.node.value != Value::Null)
    }

    /// Null stands for a key that is missing, but not for one of `keys`.
    pub fn no_null(&self, keys: &[&str]) -> Result<()> {
        let null = |entry: &&Entry| entry.node.value == Value::Null && keys.contains(&entry.key.as_str());
        match self.entries.iter().find(null) {
            Some(entry) => {
                let help = Some("leave it out".to_owned());
                Err(self.at(entry.line, self.dotted(&entry.key), "must not be null".to_owned(), help))
            }
            None => Ok(()),
        }
    }

    pub fn has(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// A table below this one.
    pub fn table(&self, key: &str, keys: &'static [&'static str]) -> Result<Option<Section<'a>>> {
        noted!(self, key, recorded::Kind::Table);
        let open = |entry: &'a Entry| {
            Section::open(self.origin, &self.dotted(key), entry.line, &entry.node, keys, self.server.as_ref())
        };
        self.get(key).map(open).transpose()
    }

    /// The tables of a list; none when the key is missing.
    pub fn tables(&self, key: &str, keys: &'static [&'static str]) -> Result<Vec<Section<'a>>> {
        noted!(self, key, recorded::Kind::Tables);
        let Some(entry) = self.get(key) else { return Ok(Vec::new()) };
        let Value::List(items) = &entry.node.value else {
            return Err(self.wrong(entry, "a list of tables", "[{ ... }]"));
        };
        let open = |(number, item): (usize, &'a Node)| {
            let path = format!("{}[{number}]", self.dotted(key));
            Section::open(self.origin, &path, item.line, item, keys, self.server.as_ref())
        };
        items.iter().enumerate().map(open).collect()
    }

    /// The entries of a table whose keys are free names.
    pub fn free_table(&self, key: &str, example: &str) -> Result<&'a [Entry]> {
        noted!(self, key, recorded::Kind::FreeTable);
        match self.get(key) {
            None => Ok(&[]),
            Some(entry) => match &entry.node.value {
                Value::Table(entries) => Ok(entries),
                _ => Err(self.wrong(entry, "a table", example)),
            },
        }
    }

    /// All keys of this table with their values.
    pub fn entries(&self) -> &'a [Entry] {
        self.entries
    }

    /// The names of a table whose keys are free names, with their places.
    pub(crate) fn free_names(&self, key: &str) -> Result<Vec<Text>> {
        let path = self.dotted(key);
        let name = |entry: &Entry| Text {
            value: entry.key.clone(),
            line: entry.line,
            key: format!("{path}.{}", quoted(&entry.key)),
        };
        Ok(self.free_table(key, "{ NAME = ... }")?.iter().map(name).collect())
    }

    pub fn text(&self, key: &str) -> Result<Option<Text>> {
        noted!(self, key, recorded::Kind::Text);
        let read = |entry: &Entry| match &entry.node.value {
            Value::Text(value) => {
                Ok(Text { value: value.clone(), line: entry.line, key: self.dotted(&entry.key) })
            }
            _ => Err(self.wrong(entry, "a string", "\"...\"")),
        };
        self.get(key).map(read).transpose()
    }

    /// A list of strings; empty when the key is missing.
    pub fn texts(&self, key: &str) -> Result<Vec<Text>> {
        noted!(self, key, recorded::Kind::Texts);
        let Some(entry) = self.get(key) else { return Ok(Vec::new()) };
        let Value::List(items) = &entry.node.value else {
            return Err(self.wrong(entry, "a list of strings", "[\"...\"]"));
        };
        let read = |(number, item): (usize, &Node)| {
            let key = format!("{}[{number}]", self.dotted(key));
            match item.as_text() {
                Some(value) => Ok(Text { value: value.to_owned(), line: item.line, key }),
                None => Err(self.at(
                    item.line,
                    key,
                    self.found("a string", item),
                    Some("put it in quotes".into()),
                )),
            }
        };
        items.iter().enumerate().map(read).collect()
    }

    /// One string, or a list of them; empty when the key is missing.
    pub(crate) fn one_or_more(&self, key: &str) -> Result<Vec<Text>> {
        noted!(self, key, recorded::Kind::OneOrMore);
        match self.get(key).map(|entry| &entry.node.value) {
            Some(Value::Text(_)) => Ok(self.text(key)?.into_iter().collect()),
            _ => self.texts(key),
        }
    }

    /// A table of free names to strings.
    pub(crate) fn text_map(&self, key: &str) -> Result<Vec<(String, Text)>> {
        noted!(self, key, recorded::Kind::TextMap);
        let read = |entry: &Entry| {
            let dotted = format!("{}.{}", self.dotted(key), entry.key);
            let Some(value) = entry.node.as_text() else {
                let help = Some("put it in quotes".to_owned());
                return Err(self.at(entry.line, dotted, self.found("a string", &entry.node), help));
            };
            Ok((entry.key.clone(), Text { value: value.to_owned(), line: entry.line, key: dotted }))
        };
        self.free_table(key, "{ NAME = \"value\" }")?.iter().map(read).collect()
    }

    /// The tables below `key` whose names are free, each with its name; all may have the same keys.
    pub fn named(
        &self,
        key: &str,
        keys: &'static [&'static str],
        example: &str,
    ) -> Result<Vec<(&'a str, Section<'a>)>> {
        noted!(self, key, recorded::Kind::Named);
        let open = |entry: &'a Entry| {
            let path = format!("{}.{}", self.dotted(key), entry.key);
            let section =
                Section::open(self.origin, &path, entry.line, &entry.node, keys, self.server.as_ref())?;
            Ok((entry.key.as_str(), section))
        };
        self.free_table(key, example)?.iter().map(open).collect()
    }

    /// A table of free names to lists of strings.
    pub fn lists(&self, key: &str) -> Result<BTreeMap<String, Vec<String>>> {
        noted!(self, key, recorded::Kind::Lists);
        let read = |entry: &Entry| {
            let text = |item: &Node| item.as_text().map(str::to_owned);
            let texts = match &entry.node.value {
                Value::List(items) => items.iter().map(text).collect::<Option<Vec<_>>>(),
                _ => None,
            };
            texts.map(|texts| (entry.key.clone(), texts)).ok_or_else(|| {
                let key = format!("{}.{}", self.dotted(key), entry.key);
                let help = Some("write NAME = [\"...\"]".to_owned());
                self.at(entry.line, key, "expected a list of strings".to_owned(), help)
            })
        };
        self.free_table(key, "{ NAME = [\"...\"] }")?.iter().map(read).collect()
    }

    pub fn flag(&self, key: &str) -> Result<Option<bool>> {
        noted!(self, key, recorded::Kind::Flag);
        let read = |entry: &Entry| match entry.node.value {
            Value::Bool(flag) => Ok(flag),
            _ => Err(self.wrong(entry, "a boolean", "true")),
        };
        self.get(key).map(read).transpose()
    }

    /// A duration that may be zero.
    pub fn grace(&self, key: &str) -> Result<Option<Duration>> {
        noted!(self, key, recorded::Kind::Grace);
        self.get(key).map(|entry| self.read_duration(entry)).transpose()
    }

    /// A duration longer than zero.
    pub fn duration(&self, key: &str) -> Result<Option<Duration>> {
        noted!(self, key, recorded::Kind::Duration);
        match self.grace(key)? {
            Some(Duration::ZERO) => Err(self.key_error(key, "must be longer than zero", None)),
            duration => Ok(duration),
        }
    }

    /// The durations of a table of free names, each longer than zero.
    pub(crate) fn durations(&self, key: &str) -> Result<Vec<(String, Duration)>> {
        noted!(self, key, recorded::Kind::Durations);
        let Some(entry) = self.get(key) else { return Ok(Vec::new()) };
        self.free_table(key, "{ NAME = \"30s\" }")?;
        let path = self.dotted(key);
        let names = Section { path, line: entry.line, entries: entry.node.entries(), ..self.copy() };
        let read = |entry: &Entry| match names.read_duration(entry)? {
            Duration::ZERO => {
                Err(self.at(entry.line, names.dotted(&entry.key), "must be longer than zero".into(), None))
            }
            duration => Ok((entry.key.clone(), duration)),
        };
        names.entries.iter().map(read).collect()
    }

    fn copy(&self) -> Self {
        Self { path: self.path.clone(), server: self.server.clone(), ..*self }
    }

    fn read_duration(&self, entry: &Entry) -> Result<Duration> {
        let fail = |message: String, help: &str| {
            Err(self.at(entry.line, self.dotted(&entry.key), message, Some(help.to_owned())))
        };
        match &entry.node.value {
            Value::Text(text) => match parse_duration(text) {
                Ok(duration) => Ok(duration),
                Err(problem) => {
                    fail(problem, "write a number with its unit, such as \"30s\", \"200ms\" or \"5m\"")
                }
            },
            Value::Int(number) => {
                fail("a duration needs a unit".to_owned(), &self.write(&entry.key, &format!("\"{number}s\"")))
            }
            _ => Err(self.wrong(entry, "a duration", "\"30s\"")),
        }
    }

    /// A number of bytes, more than none.
    pub fn size(&self, key: &str) -> Result<Option<usize>> {
        noted!(self, key, recorded::Kind::Size);
        const HELP: &str = "write a number with its unit, such as \"1MiB\" or \"200KB\"";
        let read = |entry: &Entry| match &entry.node.value {
            Value::Text(text) => parse_size(text).map_err(|problem| self.key_error(key, problem, Some(HELP))),
            Value::Int(_) => Err(self.key_error(key, "a size needs a unit", Some(HELP))),
            _ => Err(self.wrong(entry, "a size", "\"1MiB\"")),
        };
        self.get(key).map(read).transpose()
    }

    /// A whole number within `range`.
    pub fn number<T: TryFrom<i64>>(&self, key: &str, least: i64) -> Result<Option<T>> {
        noted!(self, key, recorded::Kind::number::<T>(least));
        let read = |entry: &Entry| match entry.node.value {
            Value::Int(number) if number < least => {
                Err(self.key_error(key, format!("must be at least {least}"), None))
            }
            Value::Int(number) => {
                T::try_from(number).map_err(|_| self.key_error(key, "the number is too large", None))
            }
            _ => Err(self.wrong(entry, "a whole number", &least.max(1).to_string())),
        };
        self.get(key).map(read).transpose()
    }

    /// A limit: a whole number from 1, one of `words`, or nothing.
    pub fn limit<T: Copy + From<NonZeroUsize>>(&self, key: &str, words: &[(&str, T)]) -> Result<Option<T>> {
        noted!(self, key, recorded::Kind::limit(words));
        let Some(entry) = self.get(key) else { return Ok(None) };
        match &entry.node.value {
            Value::Int(_) => Ok(self.number::<usize>(key, 1)?.and_then(NonZeroUsize::new).map(T::from)),
            Value::Text(text) => match words.iter().find(|(word, _)| word == text) {
                Some((_, limit)) => Ok(Some(*limit)),
                None => {
                    Err(self.not_one_of(key, text, words.iter().map(|(word, _)| *word), " or a whole number"))
                }
            },
            _ => Err(self.wrong(entry, "a whole number", "4")),
        }
    }

    pub fn float(&self, key: &str) -> Result<Option<f64>> {
        noted!(self, key, recorded::Kind::Float);
        let read = |entry: &Entry| match entry.node.value {
            Value::Float(number) if number.is_finite() => Ok(number),
            Value::Int(number) => Ok(number as f64),
            _ => Err(self.wrong(entry, "a number", "0.7")),
        };
        self.get(key).map(read).transpose()
    }

    /// One of a few words.
    pub fn choice<T: Copy>(&self, key: &str, words: &[(&str, T)]) -> Result<Option<T>> {
        self.choice_or(key, words, "")
    }

    /// Reads a word like [`Section::choice`]. `more` is what else can be written, for the message.
    pub(crate) fn choice_or<T: Copy>(&self, key: &str, words: &[(&str, T)], more: &str) -> Result<Option<T>> {
        noted!(self, key, recorded::Kind::words(words));
        let Some(text) = self.text(key)? else { return Ok(None) };
        match words.iter().find(|(word, _)| *word == text.value) {
            Some((_, choice)) => Ok(Some(*choice)),
            None => Err(self.not_one_of(key, &text.value, words.iter().map(|(word, _)| *word), more)),
        }
    }

    fn not_one_of<'w>(
        &self,
        key: &str,
        given: &str,
        words: impl Iterator<Item = &'w str>,
        more: &str,
    ) -> Error {
        let words: Vec<String> = words.map(|word| format!("\"{word}\"")).collect();
        self.key_error(
            key,
            format!("`{given}` is not allowed"),
            Some(&format!("use {}{more}", words.join(", "))),
        )
    }

    /// A list of glob patterns.
    pub fn patterns(&self, key: &str) -> Result<Vec<NamePattern>> {
        self.texts(key)?.into_iter().map(|text| self.glob(text)).collect()
    }

    /// A glob pattern.
    pub fn pattern(&self, key: &str) -> Result<Option<NamePattern>> {
        self.text(key)?.map(|text| self.glob(text)).transpose()
    }

    fn glob(&self, text: Text) -> Result<NamePattern> {
        NamePattern::parse(&text.value)
            .map_err(|error| self.at(text.line, text.key, format!("not a pattern: {error}"), None))
    }

    /// A list of regular expressions.
    pub(crate) fn regexes(&self, key: &str) -> Result<Vec<Regex>> {
        self.texts(key)?.into_iter().map(|text| self.compile(text)).collect()
    }

    /// A regular expression.
    pub fn regex(&self, key: &str) -> Result<Option<Regex>> {
        self.text(key)?.map(|text| self.compile(text)).transpose()
    }

    fn compile(&self, text: Text) -> Result<Regex> {
        Regex::new(&text.value).map_err(|error| {
            // The last line of the library's drawing says what is wrong.
            let told = error.to_string();
            let why = told.lines().last().unwrap_or_default().trim_start_matches("error: ");
            self.at(text.line, text.key, format!("not a regular expression: {why}"), None)
        })
    }
}

/// A key as it is written in a dotted path.
fn quoted(key: &str) -> String {
    if is_bare(key) { key.to_owned() } else { format!("{key:?}") }
}
