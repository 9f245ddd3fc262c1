//! `toolcrib.lock`: the reviewed tools of each server, meant for the repository of a project.
//!
//! The part of a tool that models read is in it as a hash: a description or a schema that a server exchanges later is noticed
//! before a model reads it. The texts themselves are in it for those who review a change, and for the order of keys, in which
//! models are shown the schemas; older lockfiles are without them. It is written in one form only, so that what has not changed
//! is the same to the byte. The lockfile contains the version of the package that a server is started from, if it is known: a
//! lockfile without it, as older ones are, says nothing about the package.

mod list;
mod order;
mod text;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs,
    path::Path,
    sync::Arc,
};

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{ServerSoftware, ToolChanges};
use crate::{
    bounded,
    config::{Config, Secrets},
    error::{Error, Result},
    package::Package,
    text::hex,
    tool::{ServerName, Tool, canonical},
};

/// Version of the format. The first had no texts, the second had them with sorted keys, the third knew nothing of clients
/// that can be asked.
const SCHEMA: u32 = 4;

/// Longest lockfile that is read.
const MAX_FILE: u64 = 256 << 20;
/// Texts of a tool that are longer, in bytes, are not kept.
const MAX_TEXT: usize = 256 * 1024;

/// The tools that servers are allowed to have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LockFile {
    servers: BTreeMap<String, LockedServer>,
    /// It is of a version whose texts do not have the servers' order of keys.
    sorted: bool,
}

/// One server of a lockfile.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "ServerTable")]
struct LockedServer {
    software: Option<ServerSoftware>,
    package: Option<Package>,
    /// Tools that it lists to a client that declares no capability.
    plain: LockedList,
    /// Tools that it lists besides, or in other words, to a client that it can ask.
    asked: LockedList,
}

/// Tools that a server lists.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct LockedList {
    #[serde(default)]
    tools: Vec<LockedTool>,
    /// Texts by the names of the tools.
    #[serde(default)]
    texts: BTreeMap<String, ToolText>,
}

/// A server as the file has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ServerTable {
    software: Option<ServerSoftware>,
    package: Option<Package>,
    #[serde(default)]
    tools: Vec<LockedTool>,
    #[serde(default)]
    texts: BTreeMap<String, ToolText>,
    #[serde(default)]
    asked: LockedList,
}

impl From<ServerTable> for LockedServer {
    fn from(ServerTable { software, package, tools, texts, asked }: ServerTable) -> Self {
        Self { software, package, plain: LockedList { tools, texts }, asked }
    }
}

/// The texts of a tool that a model sees, in readable form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ToolText {
    /// The description in the server's words.
    pub description: String,
    /// Its schemas and hints, as JSON with the keys in the order that a model is shown. Sorted in older lockfiles.
    pub schemas: String,
}

/// The texts of a tool as they were and as they are.
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
    /// The name of the server.
    pub server: String,
    /// The kind of change.
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
    /// Names of those of its tools that only a client sees which it can ask.
    pub asked: Vec<String>,
}

/// The change of a locked server.
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
                "restore it from the repository, or write it again with `toolcrib lock`".to_owned(),
            )
        })
    }

    /// Reads a file like [`LockFile::read`], without the descriptions: they are for people.
    pub(crate) fn read_to_check(path: &Path) -> Result<Self> {
        let mut lock = Self::read(path)?;
        let lists = lock.servers.values_mut().flat_map(LockedServer::lists_mut);
        let texts = lists.flat_map(|list| list.texts.values_mut());
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
    /// [`Manager::package`](crate::Manager::package). What it lists to clients that it can ask stays; see
    /// [`LockFile::put_asked`].
    pub fn put<'a>(
        &mut self,
        server: &ServerName,
        software: Option<&ServerSoftware>,
        package: Option<&Package>,
        tools: impl IntoIterator<Item = &'a Tool>,
    ) {
        let before = self.servers.remove(server.as_str()).unwrap_or_default();
        let plain = LockedList::of(tools, (!self.sorted).then_some(&before));
        let asked = before.asked.without(&plain);
        let (software, package) = (software.cloned(), package.cloned());
        self.servers.insert(server.to_string(), LockedServer { software, package, plain, asked });
    }

    /// Says what a server that was [put](LockFile::put) in lists to a client that it can ask, as those of a gateway: what
    /// it lists to every client is left out.
    pub fn put_asked<'a>(&mut self, server: &ServerName, tools: impl IntoIterator<Item = &'a Tool>) {
        let before = self.servers.entry(server.to_string()).or_default();
        before.asked = LockedList::of(tools, (!self.sorted).then_some(before)).without(&before.plain);
    }

    /// Hides `secrets` that servers tell of themselves: the file is meant for others, too.
    pub fn hide(&mut self, secrets: &Secrets) {
        for server in self.servers.values_mut() {
            if let Some(ServerSoftware { name, version }) = &mut server.software {
                (*name, *version) = (secrets.hide(name), secrets.hide(version));
            }
            server.lists_mut().into_iter().for_each(|list| list.hide(secrets));
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
                let listed = |server: &LockedServer| server.lists().map(|list| list.tools.clone());
                before.software == after.software && listed(before) == listed(after)
            };
            if !repackaged && before.zip(after).is_some_and(same) {
                return None;
            }
            let none = LockedServer::default();
            let (was, is) = (before.unwrap_or(&none), after.unwrap_or(&none));
            let tools = between(was, is);
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
            let mut texts = texts_of(&tools, was, is);
            if self.sorted {
                texts.iter_mut().filter_map(|text| text.now.as_mut()).for_each(ToolText::sort);
            }
            let server = name.clone();
            let only_asked = is.asked.tools.iter().filter(|tool| is.plain.hash(&tool.name).is_none());
            Some(LockChange {
                server,
                asked: only_asked.map(|tool| tool.name.clone()).collect(),
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
    #[doc(hidden)]
    pub fn package(&self, server: &ServerName) -> Option<&Package> {
        self.servers.get(server.as_str())?.package.as_ref()
    }

    /// `tools` of `server` as a model is to be shown them: they, and the keys of their schemas, in the order that was
    /// reviewed.
    pub(crate) fn in_reviewed_order(&self, server: &ServerName, tools: &[Tool]) -> Arc<[Tool]> {
        let locked = self.servers.get(server.as_str());
        let text = |tool: &Tool| locked.and_then(|locked| locked.text(tool));
        let mut shown: Vec<Tool> = tools.iter().map(|tool| order::reviewed(tool, text(tool))).collect();
        let mut places: HashMap<&str, usize> = HashMap::new();
        for (tool, place) in locked.into_iter().flat_map(LockedServer::tools).zip(0..) {
            places.entry(tool.name.as_str()).or_insert(place);
        }
        // Those that the configuration denies need not be in it: they come last.
        shown.sort_by_key(|tool| places.get(tool.name.as_str()).copied().unwrap_or(usize::MAX));
        shown.into()
    }

    /// Why `tools` of `server` must not be offered, one line each. Removed tools are no reason.
    pub(crate) fn lock_violations(&self, server: &ServerName, tools: &[&Tool]) -> Vec<String> {
        let Some(locked) = self.servers.get(server.as_str()) else {
            return vec![format!("the server is not in {}", Config::LOCK_NAME)];
        };
        let names: HashSet<&str> = locked.tools().map(|tool| tool.name.as_str()).collect();
        let known: HashSet<(&str, &str)> = locked.tools().map(LockedTool::parts).collect();
        let objection = |tool: &&Tool| match names.contains(tool.name.as_str()) {
            false => Some(format!("the tool `{}` is new", tool.name)),
            true if !known.contains(&(tool.name.as_str(), &*hash_of(tool))) => {
                Some(format!("the tool `{}` has another description or schema", tool.name))
            }
            true => None,
        };
        tools.iter().filter_map(objection).collect()
    }
}

/// The texts of all tools in `changes`, in their order: of a tool that is listed in two ways, those that differ.
fn texts_of(changes: &ToolChanges, before: &LockedServer, after: &LockedServer) -> Vec<ToolTextChange> {
    let names = changes.added.iter().chain(&changes.removed).chain(&changes.changed);
    let change = |name: &String| {
        let same = before.plain.hash(name) == after.plain.hash(name);
        let text = |LockedServer { plain, asked, .. }: &LockedServer| {
            let [one, other] = if same { [asked, plain] } else { [plain, asked] };
            one.texts.get(name).or_else(|| other.texts.get(name)).cloned()
        };
        ToolTextChange { name: name.clone(), before: text(before), now: text(after) }
    };
    names.map(change).collect()
}

impl LockedServer {
    fn lists(&self) -> [&LockedList; 2] {
        [&self.plain, &self.asked]
    }

    fn lists_mut(&mut self) -> [&mut LockedList; 2] {
        [&mut self.plain, &mut self.asked]
    }

    /// Tools of both lists; some names may be there twice.
    fn tools(&self) -> impl Iterator<Item = &LockedTool> {
        self.lists().into_iter().flat_map(|list| &list.tools)
    }

    /// The texts of a tool that were reviewed.
    fn text(&self, tool: &Tool) -> Option<&ToolText> {
        let name = tool.own_name();
        match (self.plain.hash(name), self.asked.hash(name)) {
            (Some(_), Some(asked)) if asked == hash_of(tool) => self.asked.texts.get(name),
            (None, Some(_)) => self.asked.texts.get(name),
            _ => self.plain.texts.get(name),
        }
    }
}

impl ToolText {
    /// Sorts the keys of the schemas, as in older lockfiles.
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

    fn parts(&self) -> (&str, &str) {
        (&self.name, &self.sha256)
    }
}

fn between(before: &LockedServer, after: &LockedServer) -> ToolChanges {
    let by_name = |server: &LockedServer| {
        let mut hashes: IndexMap<String, [Option<String>; 2]> = IndexMap::new();
        for (list, place) in server.lists().into_iter().zip(0..) {
            for tool in &list.tools {
                hashes.entry(tool.name.clone()).or_default()[place] = Some(tool.sha256.clone());
            }
        }
        hashes
    };
    let (old, new) = (by_name(before), by_name(after));
    let names = |wanted: &dyn Fn(&String, &[Option<String>; 2]) -> bool, of: &IndexMap<_, _>| {
        of.iter().filter(|(name, hashes)| wanted(name, hashes)).map(|(name, _)| String::clone(name)).collect()
    };
    ToolChanges {
        added: names(&|name, _| !old.contains_key(name), &new),
        removed: names(&|name, _| !new.contains_key(name), &old),
        changed: names(&|name, hashes| old.get(name).is_some_and(|old| old != hashes), &new),
        since: None,
    }
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

/// Checks for the fuzz target `records` that a lockfile that was read can be read again after it was written.
///
/// # Panics
/// It cannot.
pub fn fuzz(text: &str) {
    if let Ok(file) = LockFile::parse(text) {
        // What was read is written so that it is read again.
        assert!(LockFile::parse(&file.to_string()).is_ok(), "{file}");
    }
}

#[cfg(test)]
mod tests;
