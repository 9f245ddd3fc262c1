//! `toolcrib.lock`: the tools of each server as somebody has reviewed them, meant for the repository of a project.
//!
//! What a model reads of a tool is in it as a hash: a description or a schema that a server exchanges later is
//! noticed before a model reads it. Written in one form only, one line for each tool, so that a change of one tool is
//! a change of one line.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    path::Path,
};

use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest, Sha256};

use super::{ServerSoftware, ToolChanges, fingerprint::hex};
use crate::{
    config::Config,
    error::{Error, Result},
    tool::{ServerName, Tool, canonical},
};

/// Version of the format.
const SCHEMA: u32 = 1;

const HEAD: &str = "# The tools of each server as they were reviewed: `toolcrib lock` writes this file, `toolcrib lock --diff`
# compares, and `--locked` refuses servers that offer anything else.
";

/// The tools that servers are allowed to have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LockFile {
    servers: BTreeMap<String, LockedServer>,
}

/// One server of a lockfile.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct LockedServer {
    software: Option<ServerSoftware>,
    #[serde(default)]
    tools: Vec<LockedTool>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct LockedTool {
    name: String,
    sha256: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    schema: u32,
    #[serde(default)]
    servers: BTreeMap<String, LockedServer>,
}

/// How one server differs from what the lockfile says of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LockChange {
    /// Which.
    pub server: String,
    /// What of it changed.
    pub kind: LockChangeKind,
    /// The software that was locked, as it called itself.
    pub software_before: Option<ServerSoftware>,
    /// The software now.
    pub software: Option<ServerSoftware>,
    /// Its tools.
    pub tools: ToolChanges,
}

/// What became of a locked server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LockChangeKind {
    /// It is not locked yet.
    New,
    /// It is locked, and no longer there.
    Gone,
    /// Its tools or its software are others.
    Changed,
    /// Its tools come in another order.
    Reordered,
}

impl LockFile {
    /// # Errors
    /// The file cannot be read, or is not a lockfile.
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).map_err(|error| {
            let help = "write it with `toolcrib lock`".to_owned();
            Error::lock(path, format!("cannot be read: {error}"), help)
        })?;
        Self::parse(&text).map_err(|why| {
            Error::lock(
                path,
                why,
                "restore it from the repository, or write it anew with `toolcrib lock`".to_owned(),
            )
        })
    }

    /// Replaces the file as a whole.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let draft = path.with_extension("lock.new");
        fs::write(&draft, self.to_string())
            .and_then(|()| fs::rename(&draft, path))
            .map_err(|error| Error::io(format!("could not write {}", path.display()), error))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let file: File = toml::from_str(text).map_err(|error| error.message().to_owned())?;
        if file.schema != SCHEMA {
            return Err(format!("is of version {} of its format (toolcrib: {SCHEMA})", file.schema));
        }
        Ok(Self { servers: file.servers })
    }

    /// Says what the tools of a server are from now on: those of before are forgotten.
    pub fn put<'a>(
        &mut self,
        server: &ServerName,
        software: Option<&ServerSoftware>,
        tools: impl IntoIterator<Item = &'a Tool>,
    ) {
        let tools = tools.into_iter().map(LockedTool::of).collect();
        self.servers.insert(server.to_string(), LockedServer { software: software.cloned(), tools });
    }

    /// Keeps those servers only that `wanted` names.
    pub fn retain(&mut self, wanted: impl Fn(&str) -> bool) {
        self.servers.retain(|name, _| wanted(name));
    }

    /// How `now` differs from this file, server by server. Nothing: not at all.
    pub fn diff(&self, now: &Self) -> Vec<LockChange> {
        let names: std::collections::BTreeSet<&String> =
            self.servers.keys().chain(now.servers.keys()).collect();
        let change = |name: &String| {
            let (before, after) = (self.servers.get(name), now.servers.get(name));
            if before == after {
                return None;
            }
            let tools = between(
                before.map_or(&[], |server| &server.tools),
                after.map_or(&[], |server| &server.tools),
            );
            let software = |server: Option<&LockedServer>| server.and_then(|server| server.software.clone());
            let (software_before, software) = (software(before), software(after));
            let kind = match (before, after) {
                (None, _) => LockChangeKind::New,
                (_, None) => LockChangeKind::Gone,
                _ if tools.is_empty() && software_before == software => LockChangeKind::Reordered,
                _ => LockChangeKind::Changed,
            };
            Some(LockChange { server: name.clone(), kind, software_before, software, tools })
        };
        names.into_iter().filter_map(change).collect()
    }

    /// Why `tools` of `server` are not to be offered, one line each. Tools that are gone harm nobody.
    pub(crate) fn objections(&self, server: &ServerName, tools: &[&Tool]) -> Vec<String> {
        let Some(locked) = self.servers.get(server.as_str()) else {
            return vec![format!("the server is not in {}", Config::LOCK_NAME)];
        };
        let known: HashMap<&str, &str> =
            locked.tools.iter().map(|tool| (tool.name.as_str(), tool.sha256.as_str())).collect();
        let objection = |tool: &&Tool| match known.get(tool.name.as_str()) {
            None => Some(format!("the tool `{}` is new", tool.name)),
            Some(hash) if *hash != hash_of(tool) => {
                Some(format!("the tool `{}` has another description or schema", tool.name))
            }
            Some(_) => None,
        };
        tools.iter().filter_map(objection).collect()
    }
}

impl std::fmt::Display for LockFile {
    /// The text of the file.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{HEAD}schema = {SCHEMA}")?;
        let quoted = |text: &str| toml::Value::from(text).to_string();
        for (name, server) in &self.servers {
            writeln!(f, "\n[servers.{}]", quoted(name))?;
            if let Some(ServerSoftware { name, version }) = &server.software {
                writeln!(f, "software = {{ name = {}, version = {} }}", quoted(name), quoted(version))?;
            }
            f.write_str("tools = [\n")?;
            for LockedTool { name, sha256 } in &server.tools {
                writeln!(f, "    {{ name = {}, sha256 = {} }},", quoted(name), quoted(sha256))?;
            }
            f.write_str("]\n")?;
        }
        Ok(())
    }
}

impl LockedTool {
    fn of(tool: &Tool) -> Self {
        Self { name: tool.name.clone(), sha256: hash_of(tool) }
    }
}

fn between(before: &[LockedTool], after: &[LockedTool]) -> ToolChanges {
    let mut changes = ToolChanges::default();
    for tool in after {
        match before.iter().find(|known| known.name == tool.name) {
            None => changes.added.push(tool.name.clone()),
            Some(known) if known != tool => changes.changed.push(tool.name.clone()),
            Some(_) => {}
        }
    }
    let gone = before.iter().filter(|known| !after.iter().any(|tool| tool.name == known.name));
    changes.removed = gone.map(|tool| tool.name.clone()).collect();
    changes
}

/// Of all that a model is told of a tool, and of its hints. The order of keys does not count: no schema means
/// anything by it, and some servers make it anew each time.
fn hash_of(tool: &Tool) -> String {
    let shown = json!({
        "description": tool.description,
        "input_schema": tool.input_schema,
        "output_schema": tool.output_schema,
        "annotations": tool.annotations,
    });
    hex(&Sha256::digest(canonical(shown)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::Map;

    use super::*;

    fn tool(name: &str, description: &str, schema: &str) -> Tool {
        Tool::new(name, description, serde_json::from_str(schema).unwrap())
    }

    fn lock(tools: &[Tool]) -> LockFile {
        let mut lock = LockFile::default();
        let software = ServerSoftware { name: "a \"quoted\" name".into(), version: "1".into() };
        lock.put(&ServerName::new("one.x").unwrap(), Some(&software), tools);
        lock
    }

    const SCHEMA_A: &str = r#"{"type": "object", "properties": {"a": {"enum": [1, 2]}}}"#;

    #[test]
    fn its_text_comes_back_the_same() {
        let locked = lock(&[tool("b", "", SCHEMA_A), tool("a", "", SCHEMA_A)]);
        let text = locked.to_string();
        let back = LockFile::parse(&text).unwrap();
        assert_eq!((back.to_string(), back), (text.clone(), locked));
        assert_eq!(text.lines().filter(|line| line.contains("sha256")).count(), 2, "{text}");
        assert!(LockFile::parse(&text.replace("schema = 1", "schema = 2")).is_err());
        assert!(LockFile::parse(&text.replace("sha256", "sha255")).is_err());
    }

    #[test]
    fn the_order_of_keys_does_not_count_and_everything_else_does() {
        let before = tool("a", "words", SCHEMA_A);
        let reordered = r#"{"properties": {"a": {"enum": [1, 2]}}, "type": "object"}"#;
        assert_eq!(hash_of(&before), hash_of(&tool("a", "words", reordered)));
        let mut hinted = before.clone();
        hinted.annotations.read_only_hint = Some(true);
        let mut result = before.clone();
        result.output_schema = Some(Arc::new(Map::new()));
        for other in [
            tool("a", "Words", SCHEMA_A),
            tool("a", "words", &SCHEMA_A.replace("1, 2", "2, 1")),
            hinted,
            result,
        ] {
            assert_ne!(hash_of(&before), hash_of(&other), "{other:?}");
        }
    }

    #[test]
    fn differences_are_named() {
        let before = lock(&[tool("a", "", SCHEMA_A), tool("b", "", SCHEMA_A), tool("c", "", SCHEMA_A)]);
        assert!(before.diff(&before.clone()).is_empty());
        let after = lock(&[tool("c", "", SCHEMA_A), tool("b", "new", SCHEMA_A), tool("d", "", SCHEMA_A)]);
        let changes = before.diff(&after);
        assert_eq!(
            (changes[0].kind, changes[0].tools.signed().join(" ")),
            (LockChangeKind::Changed, "+d -a ~b".into())
        );
        let turned = lock(&[tool("b", "", SCHEMA_A), tool("a", "", SCHEMA_A), tool("c", "", SCHEMA_A)]);
        assert_eq!(before.diff(&turned)[0].kind, LockChangeKind::Reordered);
        assert_eq!(before.diff(&LockFile::default())[0].kind, LockChangeKind::Gone);
        assert_eq!(LockFile::default().diff(&before)[0].kind, LockChangeKind::New);
    }

    #[test]
    fn new_and_changed_tools_are_objected_to() {
        let locked = lock(&[tool("a", "", SCHEMA_A), tool("b", "", SCHEMA_A)]);
        let name = ServerName::new("one.x").unwrap();
        let (a, other_a, new) = (tool("a", "", SCHEMA_A), tool("a", "x", SCHEMA_A), tool("n", "", SCHEMA_A));
        assert!(locked.objections(&name, &[&a]).is_empty(), "one tool less harms nobody");
        assert_eq!(locked.objections(&name, &[&a, &new]), ["the tool `n` is new"]);
        assert_eq!(locked.objections(&name, &[&a, &other_a]).len(), 1, "nor by a second tool of the name");
        assert_eq!(locked.objections(&ServerName::new("two").unwrap(), &[]).len(), 1);
    }
}
