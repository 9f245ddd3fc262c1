//! Codex: `[mcp_servers.NAME]` tables of `config.toml`. Its strings are literal; variables are named by keys.

use std::time::Duration;

use super::{
    Foreign, legal_name,
    translate::{Table, literal},
};
use crate::{
    config::file::{
        node::{Entry, Node, Value},
        source_location::SourceLocation,
    },
    error::Result,
};

pub(super) fn servers(root: &Node, origin: &SourceLocation, notes: &mut Vec<String>) -> Vec<Foreign> {
    let mut servers = Vec::new();
    for entry in root.get("mcp_servers").map_or(&[][..], Node::entries) {
        let Some(name) = legal_name(&entry.key, &servers, origin, notes) else { continue };
        let key = format!("mcp_servers.{}", entry.key);
        let table = translate(entry, &key, Table::new(origin, &name, notes));
        servers.push(Foreign { name, key, line: entry.line, table, unit: None });
    }
    servers
}

fn translate(server: &Entry, key: &str, mut table: Table<'_>) -> Result<Node> {
    if !matches!(server.node.value, Value::Table(_)) {
        return Err(table.error(server.line, key.to_owned(), "expected a table", "look at the file"));
    }
    for entry in server.node.entries() {
        let node = &entry.node;
        match entry.key.as_str() {
            "command" | "args" | "env" | "cwd" | "url" => table.put(&entry.key, literal(node)),
            "enabled" | "required" => table.put(&entry.key, node.clone()),
            "http_headers" => table.put_in("headers", entry.line, literal(node).entries().to_vec()),
            "env_http_headers" => table.put_in("headers", entry.line, from_variables(node)),
            "bearer_token_env_var" => match node.as_text() {
                Some(variable) => {
                    let value = Node::text(entry.line, format!("Bearer ${{{variable}}}"));
                    let header = Entry { key: "Authorization".to_owned(), line: entry.line, node: value };
                    table.put_in("headers", entry.line, vec![header]);
                }
                None => table.not_understood(entry),
            },
            "env_vars" => inherited(entry, &mut table),
            "startup_timeout_sec" => {
                table.put_duration("startup_timeout", entry, Duration::from_secs(1));
            }
            "startup_timeout_ms" => {
                table.put_duration("startup_timeout", entry, Duration::from_millis(1));
            }
            "tool_timeout_sec" => {
                table.put_duration("call_timeout", entry, Duration::from_secs(1));
            }
            "enabled_tools" => table.put_tools("allow", entry),
            "disabled_tools" => table.put_tools("deny", entry),
            _ => table.not_understood(entry),
        }
    }
    Ok(table.finish(server.line))
}

/// Headers whose values are names of variables.
fn from_variables(node: &Node) -> Vec<Entry> {
    let header = |entry: &Entry| {
        let value = entry.node.as_text().map(|variable| Node::text(entry.line, format!("${{{variable}}}")));
        Entry { node: value.unwrap_or_else(|| entry.node.clone()), ..entry.clone() }
    };
    node.entries().iter().map(header).collect()
}

/// `env_vars`: names, or tables with a name and the machine it comes from.
fn inherited(from: &Entry, table: &mut Table<'_>) {
    let Value::List(items) = &from.node.value else { return table.not_understood(from) };
    let mut names = Vec::new();
    for item in items {
        let remote = item.get("source").and_then(Node::as_text) == Some("remote");
        match item.as_text().or_else(|| item.get("name").and_then(Node::as_text)) {
            Some(name) if !remote => names.push(Node::text(item.line, globset::escape(name))),
            _ => table.not_understood(from),
        }
    }
    table.put("inherit_env", Node { line: from.line, value: Value::List(names) });
}
