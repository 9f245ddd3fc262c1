//! JSON files of editors and assistants: `mcpServers` (Claude Code and Desktop, Cursor and others) and
//! `servers` with `inputs` (VS Code).

use std::path::Path;

use super::{
    Foreign, legal_name,
    timeout::Unit,
    translate::{Table, number, strings},
};
use crate::{
    config::file::{
        node::{Entry, Node, Value},
        source_location::SourceLocation,
        vars::input_variable,
    },
    error::Result,
};

pub(super) fn servers(root: &Node, origin: &SourceLocation, notes: &mut Vec<String>) -> Vec<Foreign> {
    let inputs = Inputs(match root.get("inputs").map(|inputs| &inputs.value) {
        Some(Value::List(inputs)) => inputs,
        _ => &[],
    });
    let entries =
        || ["mcpServers", "servers"].iter().flat_map(|table| root.get(table).map_or(&[][..], Node::entries));
    // A file has one unit: a single small number tells that all of them are seconds.
    let timeouts = entries().filter_map(|entry| entry.node.get("timeout").and_then(number));
    let file = File { inputs, least_timeout: timeouts.reduce(f64::min) };
    let mut servers = Vec::new();
    for table in ["mcpServers", "servers"] {
        for entry in root.get(table).map_or(&[][..], Node::entries) {
            let Some(name) = legal_name(&entry.key, &servers, origin, notes) else { continue };
            let key = format!("{table}.{}", entry.key);
            let mut unit = None;
            let table = translate(entry, &key, Table::new(origin, &name, notes), &file, &mut unit);
            servers.push(Foreign { name, key, line: entry.line, table, unit });
        }
    }
    servers
}

/// What all servers of a file have in common.
struct File<'a> {
    inputs: Inputs<'a>,
    least_timeout: Option<f64>,
}

/// `unit` gets how the unit of a timeout was understood.
fn translate(
    server: &Entry,
    key: &str,
    mut table: Table<'_>,
    file: &File<'_>,
    unit: &mut Option<String>,
) -> Result<Node> {
    if !matches!(server.node.value, Value::Table(_)) {
        return Err(table.error(server.line, key.to_owned(), "expected an object", "look at the file"));
    }
    let folder = table.origin.folder.clone();
    let base = folder.file_name().unwrap_or_default().to_string_lossy();
    let adopt = |node: &Node| strings(node, &|text| adopt(text, &file.inputs, &base));
    for entry in server.node.entries() {
        let node = &entry.node;
        match entry.key.as_str() {
            _ if node.value == Value::Null => {}
            "command" | "args" | "env" | "cwd" | "url" | "headers" => table.put(&entry.key, adopt(node)),
            "serverUrl" | "httpUrl" => table.put("url", adopt(node)),
            "envFile" => table.put("env_file", adopt(node)),
            "type" | "transport" => transport(entry, key, &mut table)?,
            "disabled" | "enabled" => match node.value {
                Value::Bool(flag) => {
                    let enabled = Value::Bool(flag == (entry.key == "enabled"));
                    table.put("enabled", Node { line: entry.line, value: enabled });
                }
                _ => table.not_understood(entry),
            },
            "timeout" => *unit = timeout(entry, file.least_timeout, &mut table),
            "includeTools" => table.put_tools("allow", entry),
            "excludeTools" | "disabledTools" => table.put_tools("deny", entry),
            _ => table.not_understood(entry),
        }
    }
    Ok(table.finish(server.line))
}

/// Reads `timeout` in the unit of the tool whose file this is, `least` being the smallest one of the file. A unit that
/// was only guessed is noted at once; otherwise returns the note.
fn timeout(entry: &Entry, least: Option<f64>, table: &mut Table<'_>) -> Option<String> {
    let number = number(&entry.node);
    let unit = Unit::of(least, table.origin.file.as_deref().unwrap_or(Path::new("")));
    let read = table.put_duration("call_timeout", entry, unit.length)?;
    let note = unit.note(number?, &read);
    if unit.is_guess() {
        table.note("timeout", &note);
        return None;
    }
    Some(format!("{}: {}.timeout: {note}", table.origin.name(), table.name))
}

fn transport(entry: &Entry, key: &str, table: &mut Table<'_>) -> Result<()> {
    let fail = |message: &str, help: &str| {
        Err(table.error(entry.line, format!("{key}.{}", entry.key), message, help))
    };
    match entry.node.as_text() {
        Some("stdio" | "http" | "streamable-http" | "streamableHttp" | "streamable_http") => Ok(()),
        Some("sse") => {
            table.put("transport", entry.node.clone());
            Ok(())
        }
        _ => fail("this transport is not supported", "supported are \"stdio\", \"http\" and \"sse\""),
    }
}

/// The `inputs` list of VS Code: what the editor would ask for.
struct Inputs<'a>(&'a [Node]);

impl Inputs<'_> {
    fn default_of(&self, id: &str) -> Option<&str> {
        let input = self.0.iter().find(|input| input.get("id").and_then(Node::as_text) == Some(id));
        input.and_then(|input| input.get("default")).and_then(Node::as_text)
    }
}

/// `text` with the predefined variables of editors in our own words. Variables of the environment are written
/// alike; `base` is the name of the workspace's folder.
fn adopt(text: &str, inputs: &Inputs<'_>, base: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let braced = rest.strip_prefix('{').and_then(|inner| inner.split_once('}'));
        let Some((inner, after)) = braced else {
            // A doubled `$` means nothing to these tools and one `$` to us.
            out.push_str(if rest.starts_with('$') { "$$" } else { "$" });
            continue;
        };
        rest = after;
        let default = inner.strip_prefix("input:").and_then(|id| Some((id, inputs.default_of(id)?)));
        match (inner, default) {
            ("userHome", _) => out.push_str("${HOME}"),
            ("workspaceFolderBasename", _) => out.push_str(base),
            ("pathSeparator" | "/", _) => out.push('/'),
            (_, Some((id, default))) => {
                out.extend(["${", &input_variable(id), ":-", default, "}"]);
            }
            _ => {
                out.extend(["${", inner, "}"]);
            }
        }
    }
    out.push_str(rest);
    out
}
