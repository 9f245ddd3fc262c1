//! Finds the tables of servers in the files of MCP clients: `mcpServers`, `servers`, `context_servers`, `mcp`, and
//! others, also deep inside, as lists, or without a table around them.

use std::path::Path;

use crate::config::file::node::{Entry, Node, Value};

/// Keys of tables of servers, wherever they are.
const TABLES: [&str; 5] =
    ["mcpServers", "mcp_servers", "mcp-servers", "context_servers", "modelContextProtocolServers"];
/// The keys, one of which a server has.
const OF_SERVERS: [&str; 8] =
    ["command", "cmd", "url", "httpUrl", "serverUrl", "uri", "baseUrl", "transport"];
/// How deep tables of servers are looked for.
const MAX_DEPTH: usize = 5;

/// A server as its file has it.
pub(super) struct Found<'a> {
    pub(super) name: &'a str,
    /// Its dotted path in the file.
    pub(super) key: String,
    pub(super) line: usize,
    pub(super) node: &'a Node,
    /// Whether it is of a table `mcp`.
    in_mcp: bool,
}

/// All servers of a file.
#[derive(Default)]
pub(super) struct Tables<'a> {
    pub(super) servers: Vec<Found<'a>>,
    /// Tables that are no servers, and why, one line each.
    pub(super) notes: Vec<String>,
}

/// The servers of `root`. `folders` are those whose projects count; `stem` names a server without a name.
pub(super) fn find<'a>(root: &'a Node, folders: [&Path; 2], stem: &'a str) -> Tables<'a> {
    let mut tables = Tables::default();
    if let Some(projects) = root.get("projects") {
        tables.projects(projects, folders);
    }
    match &root.value {
        Value::List(_) => tables.table(root, "", false),
        _ => tables.walk(root, "", 0),
    }
    tables.switches(root);
    if tables.servers.is_empty() && tables.notes.is_empty() {
        if is_server(root) {
            let name = root.get("name").and_then(Node::as_text).unwrap_or(stem);
            let found = Found { name, key: name.to_owned(), line: root.line, node: root, in_mcp: false };
            tables.servers.push(found);
        }
        let servers = root.entries().iter().filter(|entry| is_server(&entry.node));
        tables.servers.extend(servers.map(|entry| Found::of(entry, entry.key.clone(), false)));
    }
    tables
}

impl<'a> Found<'a> {
    /// Whether it is one of OpenCode, whose variables are `{env:NAME}`.
    pub(super) fn is_of_opencode(&self) -> bool {
        let kind = self.node.get("type").and_then(Node::as_text);
        self.in_mcp && matches!(kind, Some("local" | "remote"))
    }

    /// Whether its key has its name: in a list it may have none.
    pub(super) fn is_named(&self) -> bool {
        !self.key.ends_with(']')
    }

    fn of(entry: &'a Entry, key: String, in_mcp: bool) -> Self {
        Found { name: &entry.key, key, line: entry.line, node: &entry.node, in_mcp }
    }
}

impl<'a> Tables<'a> {
    fn walk(&mut self, node: &'a Node, path: &str, depth: usize) {
        let parent = path.rsplit('.').next().unwrap_or_default();
        for entry in node.entries() {
            let key = entry.key.as_str();
            let whole = if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
            let any_server = || entry.node.entries().iter().any(|entry| is_server(&entry.node));
            let is_table = match key {
                "projects" if depth == 0 => continue,
                "servers" => depth == 0 || parent == "mcp",
                "mcp" => any_server(),
                // Goose; editors have other things there.
                "extensions" => depth == 0 && any_server(),
                "mcp.servers" => true,
                _ => TABLES.contains(&key) || key.ends_with(".mcpServers"),
            };
            if is_table {
                self.table(&entry.node, &whole, key == "mcp");
            } else if depth < MAX_DEPTH {
                self.walk(&entry.node, &whole, depth + 1);
            }
        }
    }

    fn table(&mut self, node: &'a Node, path: &str, in_mcp: bool) {
        match &node.value {
            Value::Null => {}
            // Beside servers `mcp` has settings.
            Value::Table(entries) => {
                for entry in entries.iter().filter(|entry| in_mcp && !is_server(&entry.node)) {
                    // OpenCode changes an entry of another file so.
                    if entry.node.get("enabled").is_some() {
                        let why = "has neither a command nor an address; it may belong to another file";
                        self.notes.push(format!("`{path}.{}` is left out: it {why}", entry.key));
                    }
                }
                let servers = entries.iter().filter(|entry| !in_mcp || is_server(&entry.node));
                let found = servers.map(|entry| Found::of(entry, format!("{path}.{}", entry.key), in_mcp));
                self.servers.extend(found);
            }
            Value::List(items) => self.servers.extend(items.iter().enumerate().map(|(at, item)| {
                let name = ["name", "id"].iter().find_map(|key| item.get(key).and_then(Node::as_text));
                let key = format!("{path}[{at}]");
                Found { name: name.unwrap_or("server"), key, line: item.line, node: item, in_mcp: false }
            })),
            _ => self.notes.push(format!("`{path}`: expected a table of servers, found {}", node.kind())),
        }
    }

    /// Lists that switch servers on and off beside their tables (Gemini CLI, Claude Code): they are told.
    fn switches(&mut self, root: &Node) {
        let of_mcp = root
            .get("mcp")
            .into_iter()
            .flat_map(|mcp| ["allowed", "excluded"].map(|key| (format!("mcp.{key}"), mcp.get(key))));
        let of_root =
            ["disabledMcpServers", "disabledMcpjsonServers", "enabledMcpjsonServers", "allowMCPServers"]
                .map(|key| (key.to_owned(), root.get(key)));
        for (key, list) in of_mcp.chain(of_root) {
            let Some(Node { value: Value::List(names), .. }) = list else { continue };
            let names: Vec<&str> = names.iter().filter_map(Node::as_text).collect();
            if !names.is_empty() {
                let told = "switches servers on or off there, not here: set `enabled = false` for those that are off";
                self.notes.push(format!("`{key}` ({}): ignored: it {told}", names.join(", ")));
            }
        }
    }

    /// The projects of Claude Code: one table of servers for each folder.
    fn projects(&mut self, projects: &'a Node, folders: [&Path; 2]) {
        for project in projects.entries() {
            let Some(servers) = project.node.get("mcpServers") else { continue };
            let count = servers.entries().len();
            if folders.iter().any(|folder| Path::new(&project.key) == *folder) {
                self.table(servers, &format!("projects.{}.mcpServers", project.key), false);
            } else if count > 0 {
                let servers: Vec<&str> = servers.entries().iter().map(|entry| entry.key.as_str()).collect();
                self.notes.push(format!(
                    "left out: {}, which belong to the project {}; import them in that folder",
                    servers.join(", "),
                    project.key
                ));
            }
        }
    }
}

/// Whether a table has a key of a server.
fn is_server(node: &Node) -> bool {
    OF_SERVERS.iter().any(|key| node.get(key).is_some_and(|value| value.value != Value::Null))
        // Such as `type: builtin` of Goose: it is told that these are left out.
        || (node.get("type").and_then(Node::as_text).is_some() && node.get("enabled").is_some())
}
