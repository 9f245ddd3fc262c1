//! Finds literal secrets in the table of a server, where a variable should be.

use serde_json::Value as Json;

use super::variables::bare_variable;
use crate::config::secrets::origin_of;
use crate::config::{
    Secrets,
    file::node::{Entry, Node, Value},
    secrets::{in_header, in_url, secret_name},
};

/// How access tokens of well-known services begin.
const TOKENS: [&str; 14] = [
    "sk-",
    "sk_live_",
    "ghp_",
    "gho_",
    "ghs_",
    "github_pat_",
    "glpat-",
    "xoxb-",
    "xoxp-",
    "hf_",
    "AKIA",
    "AIza",
    "tvly-",
    "npm_",
];
/// Shortest text that counts as such a token, in bytes.
const TOKEN_LENGTH: usize = 16;

/// The keys of `table`, in the words of `servers.toml`, that hold a secret in plain text, each with its line.
pub fn secrets(table: &Node) -> Vec<(String, usize)> {
    let mut found = Vec::new();
    for Entry { key, line, node } in table.entries() {
        match (&node.value, key.as_str()) {
            (Value::Table(entries), "env" | "headers") => {
                for entry in entries {
                    if is_secret(key, &entry.key, entry.node.as_text().unwrap_or_default()) {
                        found.push((format!("{key}.{}", entry.key), entry.line));
                    }
                }
            }
            (Value::List(items), "args") => {
                let words = items.iter().map(|item| item.as_text().unwrap_or_default());
                for (index, _) in arguments(words).filter(|(_, secret)| *secret) {
                    found.push((format!("args[{index}]"), items[index].line));
                }
            }
            (Value::Text(text), "url") if is_secret("url", "", text) => found.push((key.clone(), *line)),
            _ => {}
        }
    }
    found
}

/// The arguments of a command by their places, and whether each is a secret, or has one behind its name.
fn arguments<'a>(words: impl Iterator<Item = &'a str>) -> impl Iterator<Item = (usize, bool)> {
    let mut option = "";
    words.enumerate().map(move |(index, text)| {
        // `--token VALUE` is two arguments.
        let is_option = text.starts_with('-');
        let (name, value) = named(text).unwrap_or((if is_option { "" } else { option }, text));
        option = if is_option { text } else { "" };
        (index, is_secret("args", name, value))
    })
}

/// `NAME=VALUE` in its parts.
fn named(text: &str) -> Option<(&str, &str)> {
    let is_name = |name: &str| {
        name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
    };
    text.split_once('=').filter(|(name, _)| is_name(name))
}

/// An entry of a client's file without the values that may be secret, to be shown.
pub fn without_secrets(mut entry: Json) -> Json {
    const HIDDEN: &str = "****";
    for (_, values) in entry.as_object_mut().into_iter().flatten() {
        match values {
            // Headers and variables.
            Json::Object(members) => members.values_mut().for_each(|value| *value = HIDDEN.into()),
            Json::Array(items) => {
                let words = items.iter().map(|item| item.as_str().unwrap_or_default());
                let secret: Vec<bool> = arguments(words).map(|(_, secret)| secret).collect();
                for (item, _) in items.iter_mut().zip(secret).filter(|(_, secret)| *secret) {
                    let name = item.as_str().and_then(named).map(|(name, _)| format!("{name}="));
                    *item = format!("{}{HIDDEN}", name.unwrap_or_default()).into();
                }
            }
            Json::String(text) if is_secret("url", "", text) => {
                *text = match text.contains("://") {
                    true => format!("{}/{HIDDEN}", origin_of(text)),
                    false => HIDDEN.to_owned(),
                };
            }
            _ => {}
        }
    }
    entry
}

/// Whether a value is a secret, by its name, its place or its look. One with a variable in it is none by its name.
fn is_secret(place: &str, name: &str, value: &str) -> bool {
    let is_token =
        |word: &str| word.len() >= TOKEN_LENGTH && TOKENS.iter().any(|token| word.starts_with(token));
    if value.split(|c: char| c.is_whitespace() || matches!(c, '=' | ',' | '"' | '\'')).any(is_token) {
        return true;
    }
    let is_path = value.starts_with(['/', '~', '.']) || value.starts_with("file:");
    let is_variable = |word: &str| word.starts_with('$') && bare_variable(word).is_some();
    if value.contains("${")
        || value.split_whitespace().any(is_variable)
        || value.len() < Secrets::SHORTEST
        || is_path
    {
        return false;
    }
    let mut found = Vec::new();
    match place {
        "headers" => in_header(name, value, &mut found),
        _ if secret_name(name) => return true,
        _ if value.contains("://") => in_url(value, &mut found),
        // `--header 'Authorization: Bearer VALUE'`
        _ => {
            if let Some((header, value)) = value.split_once(':') {
                in_header(header.trim(), value.trim(), &mut found);
            }
        }
    }
    !found.is_empty()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn entries_are_shown_without_secrets() {
        let entry = json!({
            "command": "npx",
            "args": ["-y", "pkg", "--key", "planted-1", "TOKEN=planted-2", "--pass=planted-3", "--port", "8080",
                "--header", "Authorization: Basic planted8==", "https://h.example/?token=planted-9"],
            "env": {"ANY": "planted-4"},
            "url": "https://u:planted-5@host.example:1/mcp?api_key=planted-6",
            "serverUrl": "https://host.example/mcp?page=2",
            "args2": ["sk-planted-7-0123456789"],
        });
        let shown = without_secrets(entry);
        assert!(!shown.to_string().contains("planted"), "{shown}");
        let args = json!([
            "-y",
            "pkg",
            "--key",
            "****",
            "TOKEN=****",
            "--pass=****",
            "--port",
            "8080",
            "--header",
            "****",
            "****"
        ]);
        assert_eq!((&shown["args"], &shown["url"]), (&args, &json!("https://host.example:1/****")));
        assert_eq!(
            (&shown["serverUrl"], &shown["command"]),
            (&json!("https://host.example/mcp?page=2"), &json!("npx"))
        );
    }
}
