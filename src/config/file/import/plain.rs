//! Finds literal secrets in the table of a server, where a variable should be.

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
pub(super) fn secrets(table: &Node) -> Vec<(String, usize)> {
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
                let mut option = "";
                for (index, item) in items.iter().enumerate() {
                    let text = item.as_text().unwrap_or_default();
                    // `--token VALUE` is two arguments.
                    let is_option = text.starts_with('-');
                    let (name, value) =
                        text.split_once('=').unwrap_or((if is_option { "" } else { option }, text));
                    if is_secret("args", name, value) {
                        found.push((format!("args[{index}]"), item.line));
                    }
                    option = if is_option { text } else { "" };
                }
            }
            (Value::Text(text), "url") if is_secret("url", "", text) => found.push((key.clone(), *line)),
            _ => {}
        }
    }
    found
}

/// Whether a value is a secret, by its name, its place or its look. One with a variable in it is none by its name.
fn is_secret(place: &str, name: &str, value: &str) -> bool {
    let is_token =
        |word: &str| word.len() >= TOKEN_LENGTH && TOKENS.iter().any(|token| word.starts_with(token));
    if value.split(|c: char| c.is_whitespace() || matches!(c, '=' | ',' | '"' | '\'')).any(is_token) {
        return true;
    }
    let is_path = value.starts_with(['/', '~', '.']) || value.starts_with("file:");
    if value.contains("${") || value.len() < Secrets::SHORTEST || is_path {
        return false;
    }
    let mut found = Vec::new();
    match place {
        "headers" => in_header(name, value, &mut found),
        _ if secret_name(name) => return true,
        _ if value.contains("://") => in_url(value, &mut found),
        _ => {}
    }
    !found.is_empty()
}
