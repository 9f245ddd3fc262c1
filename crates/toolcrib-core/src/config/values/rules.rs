//! Rules on the arguments of calls: they refuse a call or redirect it to another tool.

use std::time::{Duration, Instant};

use regex::Regex;
use serde_json::{Map, Value};

use crate::{address, config::NamePattern};

/// Bytes that all rules together may look at in one call. Each text counts for [`OF_TEXT`] besides its own bytes, each number
/// for [`OF_NUMBER`]. The bytes of a text that may be an address count [`OF_FORMS`] times more, because it is read in all its
/// forms.
const MOST_LOOKED_AT: usize = 256 << 20;
const OF_TEXT: usize = 256;
const OF_NUMBER: usize = 64;
const OF_FORMS: usize = 16;
/// Time that all rules together may take for one call.
const LONGEST_LOOK: Duration = Duration::from_secs(2);

/// A call that is not made: one rule of `result_filter.deny_args` of a server.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DenyRule {
    /// The tools, by their names on the server.
    pub tool: NamePattern,
    /// The argument that is looked at.
    pub arg: String,
    /// The pattern that its value must not match.
    pub pattern: Regex,
}

impl DenyRule {
    /// Whether the call is not to be made. It is not if its argument is too large to find that out.
    pub fn denies(&self, tool: &str, arguments: &Map<String, Value>) -> bool {
        self.looks(tool, arguments, &mut Look::begin()).unwrap_or(true)
    }

    /// Decides like [`DenyRule::denies`], within the bytes and the time that are left for all rules.
    ///
    /// # Errors
    /// The limits did not suffice to find it out.
    #[doc(hidden)]
    pub fn looks(
        &self,
        tool: &str,
        arguments: &Map<String, Value>,
        look: &mut Look,
    ) -> Result<bool, TooLarge> {
        match arguments.get(&self.arg) {
            Some(value) if self.tool.is_match(tool) => look.finds(&self.pattern, value),
            _ => Ok(false),
        }
    }
}

/// The bytes and the time that are left for rules to look at one call.
pub struct Look {
    left: usize,
    until: Instant,
}

/// An argument has too much in it to be looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLarge;

impl PartialEq for DenyRule {
    /// Compares the patterns as they were written.
    fn eq(&self, other: &Self) -> bool {
        self.tool == other.tool && self.arg == other.arg && self.pattern.as_str() == other.pattern.as_str()
    }
}

impl Look {
    #[doc(hidden)]
    pub fn begin() -> Self {
        Self { left: MOST_LOOKED_AT, until: Instant::now() + LONGEST_LOOK }
    }

    fn take(&mut self, bytes: usize) -> Result<(), TooLarge> {
        self.left = self.left.checked_sub(bytes).ok_or(TooLarge)?;
        if Instant::now() > self.until { Err(TooLarge) } else { Ok(()) }
    }

    /// Whether a value matches, or one within it. An address counts in each of its normal forms too: spelled in another way
    /// it leads to the same place.
    fn finds(&mut self, pattern: &Regex, value: &Value) -> Result<bool, TooLarge> {
        match value {
            Value::String(text) => {
                self.take(OF_TEXT + text.len())?;
                if pattern.is_match(text) {
                    return Ok(true);
                }
                self.take(OF_FORMS * text.len())?;
                for form in address::forms(text) {
                    self.take(form.len())?;
                    if pattern.is_match(&form) {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            Value::Array(items) => self.any(pattern, items),
            Value::Object(fields) => {
                Ok(self.finds_written(pattern, value)? || self.any_within(pattern, fields.values())?)
            }
            Value::Number(number) => {
                let written = number.to_string();
                self.take(OF_NUMBER + written.len())?;
                Ok(pattern.is_match(&written) || plain(&written).is_some_and(|form| pattern.is_match(&form)))
            }
            other => {
                self.take(OF_NUMBER)?;
                Ok(pattern.is_match(&other.to_string()))
            }
        }
    }

    /// Whether an object matches as it is written.
    fn finds_written(&mut self, pattern: &Regex, object: &Value) -> Result<bool, TooLarge> {
        let written = object.to_string();
        self.take(OF_TEXT + written.len())?;
        Ok(pattern.is_match(&written))
    }

    fn any(&mut self, pattern: &Regex, items: &[Value]) -> Result<bool, TooLarge> {
        for item in items {
            if self.finds(pattern, item)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether a value within an object matches that does not. What is written of one within it is a part of what is written of the
    /// outer one: it is looked at again only for a pattern that asks what stands beside it.
    fn any_within<'v>(
        &mut self,
        pattern: &Regex,
        values: impl IntoIterator<Item = &'v Value>,
    ) -> Result<bool, TooLarge> {
        let again = has_assertions(pattern);
        let mut open: Vec<&Value> = values.into_iter().collect();
        while let Some(value) = open.pop() {
            let found = match value {
                Value::Object(fields) => {
                    open.extend(fields.values());
                    again && self.finds_written(pattern, value)?
                }
                Value::Array(items) => {
                    open.extend(items);
                    false
                }
                other => self.finds(pattern, other)?,
            };
            if found {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// A number without an exponent, and without a fraction of zeros, as servers may read it: `5` for 5.0 and 50e-1.
fn plain(written: &str) -> Option<String> {
    let number = written.parse::<f64>().ok().filter(|number| number.is_finite())?;
    // Not `-0`.
    Some((number + 0.0).to_string())
}

/// Whether a pattern may ask for the begin or the end of a text, a line or a word.
fn has_assertions(pattern: &Regex) -> bool {
    const ASSERTIONS: [&str; 9] = ["^", "$", r"\b", r"\B", r"\A", r"\z", r"\Z", r"\<", r"\>"];
    ASSERTIONS.iter().any(|assertion| pattern.as_str().contains(assertion))
}

/// A call that another tool takes over: one rule of `fallback` of an agent.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Fallback {
    /// The tools, as patterns over `server.tool`.
    pub tool: NamePattern,
    /// When.
    pub when: FallbackWhen,
    /// The tool that takes over, as `server.tool`. It is given the arguments that it knows.
    pub to: String,
}

/// When another tool takes a call over.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum FallbackWhen {
    /// Before it is made: an argument matches; one that is missing counts as empty.
    Argument(String, Regex),
    /// When it has failed with words that match. If the other tool fails too, the first failure counts.
    Error(Regex),
}

impl Fallback {
    /// Whether a call of the tool `path` with these arguments goes to the other tool instead. It does if the argument is too large to
    /// find that out.
    pub fn replaces(&self, path: &str, arguments: &Map<String, Value>) -> bool {
        let FallbackWhen::Argument(arg, pattern) = &self.when else { return false };
        let empty = Value::String(String::new());
        let value = arguments.get(arg).filter(|value| !value.is_null()).unwrap_or(&empty);
        self.tool.is_match(path) && Look::begin().finds(pattern, value).unwrap_or(true)
    }

    /// Whether the other tool is asked after a call of the tool `path` failed with `words`.
    pub fn follows(&self, path: &str, words: &str) -> bool {
        matches!(&self.when, FallbackWhen::Error(pattern) if self.tool.is_match(path) && pattern.is_match(words))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn addresses_are_denied_in_every_notation() {
        let tool = NamePattern::new("scrape*").unwrap();
        let pattern = Regex::new("huggingface.co/(datasets|spaces)").unwrap();
        let rule = DenyRule { tool, arg: "url".to_owned(), pattern };
        let denies = |tool: &str, url: Value| match json!({"url": url}) {
            Value::Object(arguments) => rule.denies(tool, &arguments),
            _ => unreachable!(),
        };
        let host = "https://huggingface.co";
        for url in [
            "https://huggingface.co/datasets/x".to_owned(),
            // Case, ports, a dot at the end, a user, blanks, slashes of another kind.
            "HTTPS://HuggingFace.co/spaces".to_owned(),
            "https://huggingface.co:443/datasets".to_owned(),
            "http://huggingface.co:443/datasets".to_owned(),
            "https://huggingface.co./datasets".to_owned(),
            "https://huggingface.co../datasets".to_owned(),
            "https://huggingface.co.:443/datasets".to_owned(),
            "https://me:pass@huggingface.co:443/datasets".to_owned(),
            " \t https://hugging\tface.co/data\nsets/x ".to_owned(),
            "https:\\\\huggingface.co\\datasets".to_owned(),
            "https:huggingface.co:443/datasets".to_owned(),
            "https:////huggingface.co./datasets".to_owned(),
            // Written as numbers, once and more often, in the host and in the path.
            "https://huggingface%2eco/datasets".to_owned(),
            "https://%68uggingface.co/datasets".to_owned(),
            format!("{host}/%64atasets/x"),
            format!("{host}/%64%61%74%61%73%65%74%73"),
            format!("{host}/%2564atasets/x"),
            format!("{host}/%252564atasets/x"),
            format!("{host}%2fdatasets"),
            format!("{host}%2Fdatasets%2Fx"),
            format!("{host}/.%2fdatasets"),
            format!("{host}%5cdatasets"),
            "https%3A%2F%2Fhuggingface.co%2Fdatasets%2Fx".to_owned(),
            // Slashes in pairs, and dots.
            format!("{host}//datasets/../datasets/x"),
            format!("{host}//datasets/x"),
            format!("{host}///./datasets"),
            format!("{host}/a/../datasets"),
            format!("{host}/a//../datasets"),
            format!("{host}/a/\n/../datasets"),
            format!("{host}/a//../../datasets"),
            format!("{host}/a/%2e%2e/datasets"),
            format!("{host}/a/.%2E/datasets"),
            format!("{host}/a/%252e%252e/datasets"),
            format!("{host}/a%2f..%2fdatasets"),
            format!("{host}/a\\..\\datasets"),
            format!("{host}/%3fx/../datasets"),
            format!("{host}/../../datasets"),
            // Other letters that mean these.
            "https://\u{ff48}uggingface.co/datasets".to_owned(),
            "https://huggingface\u{3002}co/datasets".to_owned(),
            "https://hugging\u{ad}face.co/datasets".to_owned(),
            // In quotes and brackets, as models write them, and behind marks that are not seen.
            "\u{feff}https://huggingface.co/%64atasets".to_owned(),
            "\"https://huggingface.co/%64atasets\"".to_owned(),
            "'https://huggingface.co/%64atasets'".to_owned(),
            "`https://huggingface.co/%64atasets`".to_owned(),
            "<https://huggingface.co/%64atasets>".to_owned(),
            "\u{201c}https://huggingface.co/%64atasets\u{201d}".to_owned(),
            " \u{200b}<\u{1}\"https://huggingface.co/%64atasets\">".to_owned(),
            "%22https://huggingface.co/%2564atasets%22".to_owned(),
            // Without a scheme, and behind another address.
            "HuggingFace.co//datasets".to_owned(),
            "//huggingface.co/%64atasets".to_owned(),
            "huggingface.co\\datasets".to_owned(),
            "https://proxy.example/?u=https%3A%2F%2Fhuggingface.co%2Fdatasets".to_owned(),
            "https://proxy.example/https://huggingface.co//datasets".to_owned(),
        ] {
            assert!(denies("scrape_website", json!(url)), "{url}");
        }
        for url in [
            format!("{host}/models"),
            format!("{host}/models/datasets"),
            format!("{host}/%6dodels"),
            format!("{host}:8443/datasets"),
            "https://huggingface.co.example/datasets".to_owned(),
            "https://huggingface.co@example.org/datasets".to_owned(),
            "https://example.org/#%64".to_owned(),
            "datasets of huggingface.co".to_owned(),
            "100%".to_owned(),
            String::new(),
        ] {
            assert!(!denies("scrape_website", json!(url)), "{url}");
        }
        assert!(denies("scrape", json!({"to": [{"url": "https://huggingface.co/%64atasets"}]})));
        assert!(denies("scrape", json!(["https://a.b", "https://huggingface.co/datasets/x"])));
        assert!(!denies("scrape", json!("https://huggingface.co/models")));
        assert!(!denies("search", json!("https://huggingface.co/datasets/x")));
        assert!(!rule.denies("scrape", &Map::new()));
    }

    #[test]
    fn numbers_are_denied_in_every_notation() {
        let denies = |pattern: &str, number: &str| {
            let rule = DenyRule {
                tool: NamePattern::new("*").unwrap(),
                arg: "n".to_owned(),
                pattern: Regex::new(pattern).unwrap(),
            };
            rule.denies("t", &serde_json::from_str(&format!("{{\"n\": {number}}}")).unwrap())
        };
        for number in [
            "5",
            "5.0",
            "5e0",
            "0.5e1",
            "50e-1",
            "5.00000000000000000000001",
            "[5.0]",
            "{\"a\": 5.0}",
            "0.00005E+5",
        ] {
            assert!(denies("^5$", number), "{number}");
        }
        for number in ["50", "5.5", "0.5", "-5", "5e1", "5e-1", "5e-400", "9007199254740993"] {
            assert!(!denies("^5$", number), "{number}");
        }
        assert!(denies("^0$", "-0.0") && denies("^-7$", "-70e-1") && denies("^5.5$", "55e-1"));
        assert!(denies("^100000000000000000000000$", "1e23") && denies("^5.0$", "5.0"));
    }

    #[test]
    fn arguments_too_large_to_look_at_are_denied() {
        let rule = |pattern: &str| DenyRule {
            tool: NamePattern::new("*").unwrap(),
            arg: "url".to_owned(),
            pattern: Regex::new(pattern).unwrap(),
        };
        let began = Instant::now();
        let deep = |inner: Value| {
            let nested =
                (0..120).fold(inner, |value, _| Value::Object(Map::from_iter([("a".to_owned(), value)])));
            Map::from_iter([("url".to_owned(), nested)])
        };
        let ones = |count: usize| Value::from(vec![1; count]);
        let look =
            |rule: &DenyRule, arguments: Map<String, Value>| rule.looks("t", &arguments, &mut Look::begin());
        // Written once, it has room; once for each object it has not.
        assert_eq!(look(&rule("evil"), deep(ones(1 << 16))), Ok(false));
        assert_eq!(look(&rule("^evil"), deep(ones(2 << 20))), Err(TooLarge));
        assert!(rule("^evil").denies("t", &deep(ones(2 << 20))));
        let many = Value::from(vec!["https://a.example/%41"; 200_000]);
        assert_eq!(look(&rule("evil"), deep(many)), Err(TooLarge));
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
        // Each object that is small is looked at, as its ends are.
        assert_eq!(look(&rule(r#"^\{"b":1\}$"#), deep(json!([{"b": 1}]))), Ok(true));
        assert_eq!(look(&rule(r#""b":1"#), deep(json!([{"b": 1}]))), Ok(true));
    }
}
