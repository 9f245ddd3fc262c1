//! Rules on the arguments of calls: those that are not made at all, and those that another tool takes over.

use globset::GlobMatcher;
use regex::Regex;
use serde_json::{Map, Value};

/// A call that is not made: one rule of `result_filter.deny_args` of a server.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DenyRule {
    /// The tools, by their names on the server.
    pub tool: GlobMatcher,
    /// The argument that is looked at.
    pub arg: String,
    /// What its value must not match.
    pub pattern: Regex,
}

impl DenyRule {
    /// Whether the call is not to be made.
    pub fn denies(&self, tool: &str, arguments: &Map<String, Value>) -> bool {
        self.tool.is_match(tool)
            && arguments.get(&self.arg).is_some_and(|value| matches(&self.pattern, value))
    }
}

impl PartialEq for DenyRule {
    /// By the patterns as they were written.
    fn eq(&self, other: &Self) -> bool {
        self.tool.glob() == other.tool.glob()
            && self.arg == other.arg
            && self.pattern.as_str() == other.pattern.as_str()
    }
}

/// Whether a value, or one in a list, matches. An address counts in its normal form too: with another case of
/// letters, or with characters written as `%2E`, it leads to the same place.
fn matches(pattern: &Regex, value: &Value) -> bool {
    match value {
        Value::String(text) => {
            let normal = || reqwest::Url::parse(text.trim()).is_ok_and(|url| pattern.is_match(url.as_str()));
            pattern.is_match(text) || normal()
        }
        Value::Array(items) => items.iter().any(|item| matches(pattern, item)),
        other => pattern.is_match(&other.to_string()),
    }
}

/// A call that another tool takes over: one rule of `fallback` of an agent.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Fallback {
    /// The tools, as patterns over `server.tool`.
    pub tool: GlobMatcher,
    /// When.
    pub when: FallbackWhen,
    /// The tool that takes over, as `server.tool`. It is given the arguments that it knows.
    pub to: String,
}

/// When another tool takes a call over.
#[derive(Debug, Clone)]
pub enum FallbackWhen {
    /// Before it is made: an argument matches; one that is missing counts as empty.
    Argument(String, Regex),
    /// When it has failed with words that match. If the other tool fails too, the first failure counts.
    Error(Regex),
}

impl Fallback {
    /// Whether a call of the tool `path` with these arguments goes to the other tool instead.
    pub fn replaces(&self, path: &str, arguments: &Map<String, Value>) -> bool {
        let FallbackWhen::Argument(arg, pattern) = &self.when else { return false };
        let empty = Value::String(String::new());
        let value = arguments.get(arg).filter(|value| !value.is_null()).unwrap_or(&empty);
        self.tool.is_match(path) && matches(pattern, value)
    }

    /// Whether the other tool is asked after a call of the tool `path` failed with `words`.
    pub fn follows(&self, path: &str, words: &str) -> bool {
        matches!(&self.when, FallbackWhen::Error(pattern) if self.tool.is_match(path) && pattern.is_match(words))
    }
}

#[cfg(test)]
mod tests {
    use globset::Glob;
    use serde_json::json;

    use super::*;

    #[test]
    fn addresses_are_denied_however_they_are_written() {
        let tool = Glob::new("scrape*").unwrap().compile_matcher();
        let pattern = Regex::new("huggingface.co/(datasets|spaces)").unwrap();
        let rule = DenyRule { tool, arg: "url".to_owned(), pattern };
        let denies = |tool: &str, url: Value| match json!({"url": url}) {
            Value::Object(arguments) => rule.denies(tool, &arguments),
            _ => unreachable!(),
        };
        for url in [
            "https://huggingface.co/datasets/x",
            "HTTPS://HuggingFace.co/spaces",
            "https://huggingface%2eco/datasets",
        ] {
            assert!(denies("scrape_website", json!(url)), "{url}");
        }
        assert!(denies("scrape", json!(["https://a.b", "https://huggingface.co/datasets/x"])));
        assert!(!denies("scrape", json!("https://huggingface.co/models")));
        assert!(!denies("search", json!("https://huggingface.co/datasets/x")));
        assert!(!rule.denies("scrape", &Map::new()));
    }
}
