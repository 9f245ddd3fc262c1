//! The formats of task files that are read as a whole: JSON, CSV, YAML. JSON lines are read line by line (`task_set.rs`).

mod csv;
mod json;
mod yaml;

use std::path::Path;

use serde_json::Value;

use super::synonyms;

/// How the tasks of a file are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TaskFormat {
    /// A JSON object in each line.
    JsonLines,
    /// A list of objects, or an object with one list.
    Json,
    /// A table with commas, whose first line names the columns. Where these have other separators, it is one with those.
    Csv,
    /// A table with tabs.
    Tsv,
    /// A list of objects, or an object with one list.
    Yaml,
}

/// A task as a file has it.
#[derive(Debug)]
pub(super) struct Record {
    /// The line at which it begins.
    pub line: usize,
    /// Its number, where lines alone do not tell.
    pub number: Option<usize>,
    /// Its id, where it has none itself.
    pub id: Option<String>,
    /// The task, or why there is none.
    pub value: Result<Value, String>,
}

/// A mistake in a file, and its line.
#[derive(Debug)]
pub(super) struct FormatError {
    pub line: usize,
    pub reason: String,
}

impl TaskFormat {
    /// All of them, by the names that a user writes.
    pub const ALL: [(&'static str, Self); 5] = [
        ("jsonl", Self::JsonLines),
        ("json", Self::Json),
        ("csv", Self::Csv),
        ("tsv", Self::Tsv),
        ("yaml", Self::Yaml),
    ];

    /// The format that the extension of a file says. That of `.json` may be JSON lines, too: its content decides.
    pub(in crate::run) fn of_extension(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "jsonl" | "ndjson" => Some(Self::JsonLines),
            "csv" => Some(Self::Csv),
            "tsv" => Some(Self::Tsv),
            "yaml" | "yml" => Some(Self::Yaml),
            _ => None,
        }
    }

    /// The format that the content shows; JSON lines where nothing does.
    pub(in crate::run) fn of_content(text: &str) -> Self {
        let text = text.trim_start_matches('\u{feff}').trim_start();
        let first = text.lines().next().unwrap_or_default();
        let is_json = |text: &str| serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok();
        let names_columns = |separator| {
            let mut names = first.split(separator).map(|name| name.trim().trim_matches('"'));
            first.contains(separator) && names.any(synonyms::is_known)
        };
        match text.as_bytes().first() {
            Some(b'[') => Self::Json,
            Some(b'{') if !is_json(first) && is_json(text) => Self::Json,
            // An object in one line may be a task, or have a list of tasks.
            Some(b'{')
                if text.lines().filter(|line| !line.trim().is_empty()).count() == 1 && is_json(text) =>
            {
                Self::Json
            }
            Some(b'{') | None => Self::JsonLines,
            _ if first.starts_with("- ") || first.starts_with("---") => Self::Yaml,
            _ if first.ends_with(':') && !first.contains(' ') => Self::Yaml,
            _ if names_columns('\t') => Self::Tsv,
            _ if [',', ';', '|'].into_iter().any(names_columns) => Self::Csv,
            _ if first.trim_matches('"').to_ascii_lowercase().starts_with("sep=") => Self::Csv,
            _ => Self::JsonLines,
        }
    }

    /// Reads all tasks. JSON lines are not read here.
    pub(super) fn read(self, text: &str) -> Result<Vec<Record>, FormatError> {
        let text = text.trim_start_matches('\u{feff}');
        match self {
            Self::JsonLines => Ok(Vec::new()),
            Self::Json => json::read(text),
            Self::Csv => csv::read(text, b','),
            Self::Tsv => csv::read(text, b'\t'),
            Self::Yaml => yaml::read(text),
        }
    }

    /// Whether all values are texts.
    pub(super) fn is_table(self) -> bool {
        matches!(self, Self::Csv | Self::Tsv)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_known_by_their_content() {
        for (text, format) in [
            ("{\"input\": \"a\"}\n{\"input\": \"b\"}", TaskFormat::JsonLines),
            ("{\"input\": \"a\"}\n{", TaskFormat::JsonLines),
            ("\n[{\"input\": \"a\"}]", TaskFormat::Json),
            ("{\n \"tasks\": [{\"input\": \"a\"}]\n}", TaskFormat::Json),
            ("{\"tasks\": [{\"input\": \"a\"}]}\n", TaskFormat::Json),
            ("- input: a", TaskFormat::Yaml),
            ("tasks:\n  - input: a", TaskFormat::Yaml),
            ("id,input,target\n1,a,b", TaskFormat::Csv),
            ("Question;Answer\na;b", TaskFormat::Csv),
            ("sep=;\nx;y\na;b", TaskFormat::Csv),
            ("\u{feff}id\t\"input\"\n1\ta", TaskFormat::Tsv),
            ("what is this", TaskFormat::JsonLines),
            ("", TaskFormat::JsonLines),
        ] {
            assert_eq!(TaskFormat::of_content(text), format, "{text}");
        }
    }
}
