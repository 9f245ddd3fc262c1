//! `toolcrib.lock`: the reviewed tools of each server, meant for the repository of a project.
//!
//! What a model reads of a tool is in it as a hash: a description or a schema that a server exchanges later is noticed
//! before a model reads it. The texts themselves are in it for those who review a change, and for the order of keys, in
//! which models are shown the schemas; older lockfiles are without them. Written in one form only: what has not changed
//! is the same to the byte. The lockfile contains the version of the package that a server is started from, if it is
//! known: a lockfile without it, as older ones are, says nothing about the package.

mod order;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs,
    path::Path,
    sync::Arc,
};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{ServerSoftware, ToolChanges, fingerprint::hex};
use crate::{
    bounded,
    config::{Config, Secrets},
    error::{Error, Result},
    launch::Package,
    tool::{ServerName, Tool, canonical, is_unseen},
};

/// Version of the format. The first had no texts, the second had them with sorted keys.
const SCHEMA: u32 = 3;

/// Longest lockfile that is read.
const MAX_FILE: u64 = 256 << 20;
/// Texts of a tool that are longer, in bytes, are not kept.
const MAX_TEXT: usize = 256 * 1024;

const HEAD: &str = "# The tools of each server as they were reviewed: `toolcrib lock` writes this file, `toolcrib lock --diff`
# compares, and `--locked` refuses servers that offer anything else or come from another version of their package.
";

/// The tools that servers are allowed to have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LockFile {
    servers: BTreeMap<String, LockedServer>,
    /// It is of a version whose texts do not have the servers' order of keys.
    sorted: bool,
}

/// One server of a lockfile.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct LockedServer {
    software: Option<ServerSoftware>,
    package: Option<Package>,
    #[serde(default)]
    tools: Vec<LockedTool>,
    /// By the name of the tool.
    #[serde(default)]
    texts: BTreeMap<String, ToolText>,
}

/// The texts of a tool that a model sees, in readable form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ToolText {
    /// In the server's words.
    pub description: String,
    /// Its schemas and hints, as JSON with the keys in the order that a model is shown. Sorted in older lockfiles.
    pub schemas: String,
}

/// What a tool's texts were, and what they are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ToolTextChange {
    /// The tool.
    pub name: String,
    /// `None`: it is new, or the lockfile does not have its texts.
    pub before: Option<ToolText>,
    /// `None`: it is gone, or its texts are too long for a lockfile.
    pub now: Option<ToolText>,
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
    /// The package that was locked. `None`: it was not known.
    pub package_before: Option<Package>,
    /// The installed package. `None`: unknown.
    pub package: Option<Package>,
    /// Its tools.
    pub tools: ToolChanges,
    /// The texts of those of its tools that are new, gone or changed.
    pub texts: Vec<ToolTextChange>,
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
    /// It comes from another package or version; its tools are the same.
    Package,
    /// Its tools come in another order.
    Reordered,
}

impl LockFile {
    /// # Errors
    /// The file cannot be read, or is not a lockfile.
    pub fn read(path: &Path) -> Result<Self> {
        let text = bounded::read_text(path, MAX_FILE).map_err(|error| {
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

    /// As [`LockFile::read`], without the descriptions: they are for people.
    pub(crate) fn read_to_check(path: &Path) -> Result<Self> {
        let mut lock = Self::read(path)?;
        let texts = lock.servers.values_mut().flat_map(|server| server.texts.values_mut());
        texts.for_each(|text| text.description = String::new());
        Ok(lock)
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
        if !(1..=SCHEMA).contains(&file.schema) {
            return Err(format!("is of version {} of its format (toolcrib: {SCHEMA})", file.schema));
        }
        Ok(Self { servers: file.servers, sorted: file.schema < 3 })
    }

    /// Says what the tools of a server, and the package it is started from, are from now on: those of before are
    /// forgotten, but for the order of keys of tools that have not changed: it stays as it was reviewed. Of two tools
    /// with one name the first counts, as in a [`ToolCatalog`](crate::ToolCatalog). Names are those that the server gives
    /// (`tools.rename` changes nothing). The package is that of
    /// [`Manager::package`](crate::Manager::package).
    pub fn put<'a>(
        &mut self,
        server: &ServerName,
        software: Option<&ServerSoftware>,
        package: Option<&Package>,
        tools: impl IntoIterator<Item = &'a Tool>,
    ) {
        let before = self.servers.remove(server.as_str()).filter(|_| !self.sorted);
        let known: HashMap<&str, &str> = before.iter().flat_map(LockedServer::hashes).collect();
        let reviewed = |tool: &LockedTool| {
            let same = known.get(tool.name.as_str()) == Some(&tool.sha256.as_str());
            before.as_ref().filter(|_| same)?.texts.get(&tool.name)
        };
        let (software, package) = (software.cloned(), package.cloned());
        let mut now = LockedServer { software, package, tools: Vec::new(), texts: BTreeMap::new() };
        let mut names = HashSet::new();
        for tool in tools.into_iter().filter(|tool| names.insert(tool.own_name())) {
            let locked = LockedTool::of(tool);
            let text = match reviewed(&locked) {
                before @ Some(_) => ToolText::of(&order::reviewed(tool, before)),
                None => ToolText::of(tool),
            };
            now.texts.extend(text.map(|text| (tool.own_name().to_owned(), text)));
            now.tools.push(locked);
        }
        self.servers.insert(server.to_string(), now);
    }

    /// Hides `secrets` that servers tell of themselves: the file is meant for others, too.
    pub fn hide(&mut self, secrets: &Secrets) {
        for server in self.servers.values_mut() {
            if let Some(ServerSoftware { name, version }) = &mut server.software {
                (*name, *version) = (secrets.hide(name), secrets.hide(version));
            }
            for tool in &mut server.tools {
                tool.name = secrets.hide(&tool.name);
            }
            for (name, mut text) in std::mem::take(&mut server.texts) {
                text.description = secrets.hide(&text.description);
                let mut schemas: Value = serde_json::from_str(&text.schemas).unwrap_or_default();
                secrets.hide_in(&mut schemas);
                text.schemas = format!("{schemas:#}");
                server.texts.insert(secrets.hide(&name), text);
            }
        }
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
            let package = |server: Option<&LockedServer>| server.and_then(|server| server.package.clone());
            let (package_before, package) = (package(before), package(after));
            // What a lockfile does not say cannot have changed.
            let repackaged = package_before.is_some() && package_before != package;
            let same = |(before, after): (&LockedServer, &LockedServer)| {
                (&before.software, &before.tools) == (&after.software, &after.tools)
            };
            if !repackaged && before.zip(after).is_some_and(same) {
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
                _ if !tools.is_empty() => LockChangeKind::Changed,
                _ if repackaged => LockChangeKind::Package,
                _ if software_before == software => LockChangeKind::Reordered,
                _ => LockChangeKind::Changed,
            };
            let mut texts = texts_of(&tools, before, after);
            if self.sorted {
                texts.iter_mut().filter_map(|text| text.now.as_mut()).for_each(ToolText::sort);
            }
            let server = name.clone();
            Some(LockChange {
                server,
                kind,
                software_before,
                software,
                package_before,
                package,
                tools,
                texts,
            })
        };
        names.into_iter().filter_map(change).collect()
    }

    /// The package that `server` is to be started from, if that was written down.
    pub(crate) fn package(&self, server: &ServerName) -> Option<&Package> {
        self.servers.get(server.as_str())?.package.as_ref()
    }

    /// `tools` of `server` as a model is to be shown them: they, and the keys of their schemas, in the order that was
    /// reviewed.
    pub(crate) fn in_reviewed_order(&self, server: &ServerName, tools: &[Tool]) -> Arc<[Tool]> {
        let locked = self.servers.get(server.as_str());
        let text = |tool: &Tool| locked.and_then(|locked| locked.texts.get(&tool.name));
        let mut shown: Vec<Tool> = tools.iter().map(|tool| order::reviewed(tool, text(tool))).collect();
        let names = locked.into_iter().flat_map(|locked| &locked.tools).map(|tool| tool.name.as_str());
        let places: HashMap<&str, usize> = names.zip(0..).collect();
        // Those that the configuration denies need not be in it: they come last.
        shown.sort_by_key(|tool| places.get(tool.name.as_str()).copied().unwrap_or(usize::MAX));
        shown.into()
    }

    /// Why `tools` of `server` must not be offered, one line each. Removed tools are no reason.
    pub(crate) fn lock_violations(&self, server: &ServerName, tools: &[&Tool]) -> Vec<String> {
        let Some(locked) = self.servers.get(server.as_str()) else {
            return vec![format!("the server is not in {}", Config::LOCK_NAME)];
        };
        let known: HashMap<&str, &str> = locked.hashes().collect();
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
        for (name, server) in &self.servers {
            writeln!(f, "\n[servers.{}]", quoted(name))?;
            if let Some(ServerSoftware { name, version }) = &server.software {
                writeln!(f, "software = {{ name = {}, version = {} }}", quoted(name), quoted(version))?;
            }
            if let Some(Package { ecosystem, name, version, .. }) = &server.package {
                let [ecosystem, name, version] =
                    [&ecosystem.to_string(), name, version].map(|text| quoted(text));
                writeln!(f, "package = {{ ecosystem = {ecosystem}, name = {name}, version = {version} }}")?;
            }
            f.write_str("tools = [\n")?;
            for LockedTool { name, sha256 } in &server.tools {
                writeln!(f, "    {{ name = {}, sha256 = {} }},", quoted(name), quoted(sha256))?;
            }
            f.write_str("]\n")?;
            for (tool, ToolText { description, schemas }) in &server.texts {
                writeln!(f, "\n[servers.{}.texts.{}]", quoted(name), quoted(tool))?;
                writeln!(f, "description = {}\nschemas = {}", of_lines(description), of_lines(schemas))?;
            }
        }
        Ok(())
    }
}

/// A text as TOML that is safe to read: control characters and invisible ones are escapes.
fn quoted(text: &str) -> String {
    let mut shown = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => shown.extend(['\\', letter]),
            '\n' => shown.push_str("\\n"),
            '\t' => shown.push_str("\\t"),
            letter if is_unseen(letter) => shown.push_str(&format!("\\U{:08X}", u32::from(letter))),
            letter => shown.push(letter),
        }
    }
    shown + "\""
}

/// The same, in several lines where the text has them, so that a change is one of lines.
fn of_lines(text: &str) -> String {
    let is_plain = !text.contains("'''") && !text.ends_with('\'') && !text.contains(is_unseen);
    match text.contains('\n') {
        true if is_plain => format!("'''\n{text}'''"),
        true => {
            let lines: Vec<String> = text.split('\n').map(quoted).collect();
            let lines: Vec<&str> = lines.iter().map(|line| &line[1..line.len() - 1]).collect();
            format!("\"\"\"\n{}\"\"\"", lines.join("\n"))
        }
        false => quoted(text),
    }
}

/// The texts of all tools in `changes`, in their order.
fn texts_of(
    changes: &ToolChanges,
    before: Option<&LockedServer>,
    after: Option<&LockedServer>,
) -> Vec<ToolTextChange> {
    let text = |server: Option<&LockedServer>, name: &str| server?.texts.get(name).cloned();
    let names = changes.added.iter().chain(&changes.removed).chain(&changes.changed);
    names
        .map(|name| ToolTextChange { name: name.clone(), before: text(before, name), now: text(after, name) })
        .collect()
}

impl LockedServer {
    /// By the names of the tools.
    fn hashes(&self) -> impl Iterator<Item = (&str, &str)> {
        self.tools.iter().map(|tool| (tool.name.as_str(), tool.sha256.as_str()))
    }
}

impl ToolText {
    /// With sorted keys, as in older lockfiles.
    fn sort(&mut self) {
        let mut schemas: Value = serde_json::from_str(&self.schemas).unwrap_or_default();
        schemas.sort_all_objects();
        self.schemas = format!("{schemas:#}");
    }

    /// `None` if it is too long.
    fn of(tool: &Tool) -> Option<Self> {
        let mut schemas = json!({"input_schema": tool.input_schema});
        if let Some(schema) = &tool.output_schema {
            schemas["output_schema"] = json!(schema);
        }
        if tool.annotations != crate::tool::ToolAnnotations::default() {
            schemas["annotations"] = json!(tool.annotations);
        }
        let text = Self { description: tool.description.clone(), schemas: format!("{schemas:#}") };
        (text.description.len() + text.schemas.len() <= MAX_TEXT).then_some(text)
    }
}

impl LockedTool {
    fn of(tool: &Tool) -> Self {
        Self { name: tool.own_name().to_owned(), sha256: hash_of(tool) }
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

/// The hash of a tool's texts for the model and of its hints. The order of keys does not count: a model is shown that
/// of the lockfile.
fn hash_of(tool: &Tool) -> String {
    let shown = json!({
        "description": tool.description,
        "input_schema": tool.input_schema,
        "output_schema": tool.output_schema,
        "annotations": tool.annotations,
    });
    hex(&Sha256::digest(canonical(shown)))
}

/// For the fuzz target `records`: a lockfile.
#[cfg(any(fuzzing, test))]
pub(crate) fn fuzz(text: &str) {
    if let Ok(file) = LockFile::parse(text) {
        // What was read is written so that it is read again.
        assert!(LockFile::parse(&file.to_string()).is_ok(), "{file}");
    }
}

#[cfg(test)]
mod tests;
