//! All tools of all servers: visible names, their mapping to servers and tools, argument checks, stable order.
//!
//! [`Manager::catalog`](crate::Manager::catalog) gives the [`ToolCatalog`] of the moment, whose entries are called with
//! [`Toolbox::call_entry`](crate::Toolbox::call_entry). A [`LockFile`] has the tools that were reviewed.
//!
//! A visible name is made once and looked up; it is never taken apart, since server names and tool names may
//! hold the separator themselves. The order is that of the configuration and of each server's own list, so
//! that the tools in a prompt stay byte-identical and caches of model servers keep working.
//!
//! # Example
//! ```
//! use toolcrib::{ServerName, Tool, ToolCatalog};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let now = Tool::new("now", "The time.", Default::default());
//! let catalog = ToolCatalog::new([(ServerName::new("time")?, vec![now])]);
//! assert_eq!(catalog.find("time", "now")?.visible_name, "time__now");
//! assert!(catalog.find_path("time.new").unwrap_err().help().is_some()); // it names `now`
//! # Ok(())
//! # }
//! ```

mod arguments;
mod cache;
mod changes;
#[cfg_attr(not(feature = "schema"), path = "catalog/check_off.rs")]
mod check;
mod fingerprint;
mod lock;
#[cfg(feature = "schema")]
mod mismatch;
mod search;
mod tokens;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, OnceLock},
};

use futures_util::future::BoxFuture;
use globset::Glob;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

#[cfg(feature = "daemon")]
pub(crate) use self::tokens::shown_tokens;
pub use self::{
    cache::ServerSoftware,
    changes::ToolChanges,
    lock::{LockChange, LockChangeKind, LockFile, ToolText, ToolTextChange},
    tokens::{TOKEN_RULE, estimated_tokens},
};
pub(crate) use self::{
    cache::{CatalogCache, Listing, Remembered},
    check::CheckThreads,
    fingerprint::Fingerprint,
};
use self::{
    check::{SchemaCheck, Verdict},
    search::SearchIndex,
};
pub use crate::launch::{Ecosystem, Package};
use crate::{
    error::{Error, ErrorCode, RemoteError, Result, nearest},
    tool::{MAX_TOOL_NAME as MAX_VISIBLE, ServerName, Tool},
};

#[cfg(all(any(fuzzing, test), feature = "schema"))]
pub(crate) use self::check::fuzz as fuzz_schema;
#[cfg(any(fuzzing, test))]
pub(crate) use self::{cache::fuzz as fuzz_list, lock::fuzz as fuzz_lock};

/// One tool of one server.
#[derive(Debug)]
pub struct CatalogEntry {
    /// Unique among all servers; `[A-Za-z0-9_-]{1,64}`.
    pub visible_name: String,
    /// The server that has it.
    pub server: ServerName,
    /// The tool as the server describes it.
    pub tool: Tool,
    check: Arc<SchemaCheck>,
    /// Known once it was asked for.
    tokens: OnceLock<usize>,
}

impl CatalogEntry {
    /// `server.tool`, as people write it.
    pub fn path(&self) -> String {
        format!("{}.{}", self.server, self.tool.name)
    }

    /// Checks `arguments` against the tool's JSON Schema, as far as that is done in a moment. References to other
    /// documents are never followed. A schema that may need long, with these arguments, lets them pass here: a call
    /// checks them once more, on a thread for that.
    ///
    /// # Errors
    /// [`Error::ArgumentsInvalid`] with one line for each mismatch.
    pub fn check(&self, arguments: &Map<String, Value>) -> Result<()> {
        let verdict = self.check.at_once(&Value::Object(arguments.clone())).unwrap_or(Ok(()));
        self.checked(verdict, arguments)
    }

    /// As [`CatalogEntry::check`], with the time that it takes: what is not done in a moment is returned, to be
    /// awaited. What takes too long passes: the server will check for itself.
    ///
    /// # Errors
    /// [`Error::ArgumentsInvalid`] with one line for each mismatch.
    // No future of its own: nearly every check is done at once, and is on the path of every call.
    pub(crate) fn begin_check<'a>(
        &'a self,
        arguments: &'a Map<String, Value>,
        threads: &'a CheckThreads,
    ) -> Result<Option<BoxFuture<'a, Result<()>>>> {
        let value = Value::Object(arguments.clone());
        if let Some(verdict) = self.check.at_once(&value) {
            return self.checked(verdict, arguments).map(|()| None);
        }
        let check = Arc::clone(&self.check);
        Ok(Some(Box::pin(async move {
            let verdict = check.on_thread(value, threads).await;
            self.checked(verdict, arguments)
        })))
    }

    fn checked(&self, verdict: Verdict, arguments: &Map<String, Value>) -> Result<()> {
        let Err(mut problems) = verdict else { return Ok(()) };
        problems.extend(self.meant(arguments));
        Err(Error::ArgumentsInvalid { server: self.server.clone(), tool: self.tool.name.clone(), problems })
    }

    fn new(visible_name: String, server: ServerName, tool: Tool) -> Self {
        let path = format!("{server}.{}", tool.name);
        let check = Arc::new(SchemaCheck::new(path, tool.input_schema.clone()));
        Self { visible_name, server, tool, check, tokens: OnceLock::new() }
    }
}

/// The tools of all servers at one moment.
#[derive(Debug, Default)]
pub struct ToolCatalog {
    entries: Vec<Arc<CatalogEntry>>,
    by_visible: HashMap<String, usize>,
    by_path: BTreeMap<ServerName, HashMap<String, usize>>,
    denied: Vec<Arc<CatalogEntry>>,
    /// Made by the first search.
    search_index: OnceLock<SearchIndex>,
}

impl ToolCatalog {
    /// Gathers the tools of `servers`, in order. Of two tools with one name on one server the first counts.
    pub fn new(servers: impl IntoIterator<Item = (ServerName, Vec<Tool>)>) -> Self {
        let mut catalog = Self::default();
        for (server, tools) in servers {
            catalog.by_path.entry(server.clone()).or_default();
            for tool in tools {
                catalog.push(&server, tool);
            }
        }
        catalog
    }

    fn push(&mut self, server: &ServerName, tool: Tool) {
        let index = self.entries.len();
        let names = self.by_path.entry(server.clone()).or_default();
        if names.contains_key(&tool.name) {
            tracing::warn!(%server, tool = tool.name, "listed twice");
            return;
        }
        names.insert(tool.name.clone(), index);
        let visible_name = visible_name(server, &tool.name, |name| self.by_visible.contains_key(name));
        self.by_visible.insert(visible_name.clone(), index);
        self.entries.push(Arc::new(CatalogEntry::new(visible_name, server.clone(), tool)));
    }

    /// The same catalog, knowing of tools that the configuration denies. They are none of its tools.
    #[must_use]
    pub fn with_denied(mut self, servers: impl IntoIterator<Item = (ServerName, Vec<Tool>)>) -> Self {
        for (server, tools) in servers {
            for tool in tools {
                // Tools that may be called have the first choice of names.
                let visible_name = visible_name(&server, &tool.name, |name| {
                    self.by_visible.contains_key(name)
                        || self.denied.iter().any(|other| other.visible_name == name)
                });
                self.denied.push(Arc::new(CatalogEntry::new(visible_name, server.clone(), tool)));
            }
        }
        self
    }

    /// The tools that servers have and the configuration denies, with the names that they would have.
    pub fn denied(&self) -> &[Arc<CatalogEntry>] {
        &self.denied
    }

    /// All tools in stable order.
    pub fn entries(&self) -> &[Arc<CatalogEntry>] {
        &self.entries
    }

    /// The tool that a model calls by `visible_name`.
    pub fn by_visible_name(&self, visible_name: &str) -> Option<&Arc<CatalogEntry>> {
        self.by_visible.get(visible_name).map(|index| &self.entries[*index])
    }

    /// The tool `tool` of `server`.
    ///
    /// # Errors
    /// [`Error::ToolDenied`], [`Error::ServerNotFound`] or [`Error::ToolNotFound`], with the nearest name.
    pub fn find(&self, server: &str, tool: &str) -> Result<&Arc<CatalogEntry>> {
        let Some((name, tools)) = self.by_path.get_key_value(server) else {
            let suggestion = nearest(server, self.by_path.keys().map(ServerName::as_str));
            return Err(Error::ServerNotFound { name: server.to_owned(), suggestion, known: vec![] });
        };
        tools.get(tool).map(|index| &self.entries[*index]).ok_or_else(|| {
            let denied = self.denied.iter().filter(|entry| entry.server == *name);
            let denied: Vec<&str> = denied.map(|entry| entry.tool.name.as_str()).collect();
            Error::no_tool(name, tool, tools.keys().map(String::as_str), &denied)
        })
    }

    /// The tool written as `server.tool`. Both names may hold dots: the longest server name that fits counts.
    ///
    /// # Errors
    /// As [`ToolCatalog::find`].
    pub fn find_path(&self, path: &str) -> Result<&Arc<CatalogEntry>> {
        let server = self
            .by_path
            .keys()
            .map(ServerName::as_str)
            .filter(|name| path.strip_prefix(name).is_some_and(|rest| rest.starts_with('.')))
            .max_by_key(|name| name.len());
        match server {
            Some(server) => self.find(server, &path[server.len() + 1..]),
            None => {
                let (server, tool) = path.split_once('.').unwrap_or((path, ""));
                self.find(server, tool)
            }
        }
    }

    /// The tool written without its server, if one server alone has it.
    ///
    /// # Errors
    /// [`Error::Remote`] with `tool_not_found`: no server has it (with the nearest name), or several (with their
    /// names).
    pub fn find_unqualified(&self, tool: &str) -> Result<&Arc<CatalogEntry>> {
        let mut found: Vec<&Arc<CatalogEntry>> =
            self.entries.iter().filter(|entry| entry.tool.name == tool).collect();
        let (message, help) = match (found.pop(), &found[..]) {
            (Some(entry), []) => return Ok(entry),
            (Some(last), others) => {
                let paths: Vec<String> = others.iter().chain([&last]).map(|entry| entry.path()).collect();
                let message = format!("{} servers have a tool `{tool}`", paths.len());
                (message, format!("say which: {}", paths.join(", ")))
            }
            (None, _) => {
                let like = nearest(tool, self.entries.iter().map(|entry| entry.tool.name.as_str()));
                let like = self.entries.iter().find(|entry| Some(&entry.tool.name) == like.as_ref());
                let help = like.map(|entry| format!("did you mean `{}`?", entry.path()));
                let message = format!("no server has a tool `{tool}`");
                (message, help.unwrap_or_else(|| "toolcrib tools lists them".to_owned()))
            }
        };
        Err(RemoteError::error(ErrorCode::ToolNotFound, message, Some(help)))
    }

    /// The tools whose `server.tool` one of `patterns` matches, in catalog order.
    ///
    /// # Errors
    /// [`Error::Input`] for a pattern that is none.
    pub fn select(&self, patterns: &[String]) -> Result<Vec<Arc<CatalogEntry>>> {
        select(&self.entries, patterns)
    }
}

/// Those of `entries` whose `server.tool` one of `patterns` matches, in order.
///
/// # Errors
/// [`Error::Input`] for a pattern that is none.
pub(crate) fn select<'a>(
    entries: impl IntoIterator<Item = &'a Arc<CatalogEntry>>,
    patterns: &[String],
) -> Result<Vec<Arc<CatalogEntry>>> {
    let patterns = patterns
        .iter()
        .map(|pattern| Glob::new(pattern).map(|glob| glob.compile_matcher()))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| Error::input(format!("tool pattern: {error}"), None))?;
    let chosen = |entry: &&Arc<CatalogEntry>| patterns.iter().any(|pattern| pattern.is_match(entry.path()));
    Ok(entries.into_iter().filter(chosen).cloned().collect())
}

/// `server__tool` in the letters that model servers accept; a hash takes the end where that clashes or is too
/// long. The hash depends on the names alone, so that the name stays the same in every run.
pub(crate) fn visible_name(server: &ServerName, tool: &str, taken: impl Fn(&str) -> bool) -> String {
    let legal = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') { c } else { '_' };
    // A name of another script, or of pictures, would be nothing but underscores.
    let readable = tool.chars().any(|c| c.is_ascii_alphanumeric());
    let own = if readable { tool } else { "tool" };
    let plain: String = format!("{server}__{own}").chars().map(legal).collect();
    if readable && plain.len() <= MAX_VISIBLE && !taken(&plain) {
        return plain;
    }
    let mut digest = Sha256::digest(format!("{server}\0{tool}").as_bytes());
    loop {
        let [a, b, c, d, ..] = digest[..] else { unreachable!("a SHA-256 digest has 32 bytes") };
        let hash = format!("{:08x}", u32::from_be_bytes([a, b, c, d]));
        let cut = plain.len().min(MAX_VISIBLE - hash.len() - 1);
        let name = format!("{}_{hash}", &plain[..cut]);
        if !taken(&name) {
            return name;
        }
        // A server may have given one of its tools this very name.
        digest = Sha256::digest(digest);
    }
}

/// For the fuzz target `arguments`: those of a person, typed and checked by a schema.
#[cfg(any(fuzzing, test))]
pub(crate) fn fuzz_arguments(schema: Map<String, Value>, arguments: &Map<String, Value>) {
    let Ok(server) = ServerName::new("s") else { return };
    let entry = CatalogEntry::new("s__t".to_owned(), server, Tool::new("t", "", schema));
    for (key, value) in arguments {
        let text = value.to_string();
        let _ = (entry.typed(key, &text), entry.typed_list(key, &[&text, key]));
    }
    let _ = entry.check_named(arguments);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn server(name: &str) -> ServerName {
        ServerName::new(name).unwrap()
    }

    #[test]
    fn names_of_other_scripts_are_callable_and_unique() {
        let names: Vec<String> =
            ["\u{8bfb}\u{53d6}", "\u{5199}\u{5165}", "\u{1f50d}", "\u{0447}", "__", "caf\u{e9}"]
                .map(|tool| visible_name(&server("s"), tool, |_| false))
                .to_vec();
        let mut unique = names.clone();
        unique.sort_unstable();
        unique.dedup();
        assert_eq!(unique.len(), names.len(), "{names:?}");
        assert!(names[..5].iter().all(|name| name.starts_with("s__tool_")), "{names:?}");
        assert_eq!(names[5], "s__caf_");
        assert!(names.iter().all(|name| name.len() <= MAX_VISIBLE), "{names:?}");
    }

    fn tool(name: &str) -> Tool {
        let Value::Object(schema) = json!({
            "type": "object",
            "properties": {"zone": {"type": "string"}, "n": {"type": "integer"}},
            "required": ["zone"],
            "additionalProperties": false,
        }) else {
            unreachable!()
        };
        Tool::new(name, "", schema)
    }

    #[test]
    fn names_are_unique_legal_and_stable() {
        let long = "x".repeat(80);
        let catalog = ToolCatalog::new([
            (server("a"), vec![tool("b__c"), tool(&long), tool("now")]),
            (server("a__b"), vec![tool("c")]),
            (server("a.x"), vec![tool("b/c"), tool("now")]),
        ]);
        let names: Vec<&str> = catalog.entries().iter().map(|entry| entry.visible_name.as_str()).collect();
        assert_eq!(names[0], "a__b__c");
        assert_eq!((names[1].len(), &names[1][..8]), (64, "a__xxxxx"));
        assert!(names[3].starts_with("a__b__c_"), "{}", names[3]);
        assert_eq!(&names[4..], ["a_x__b_c", "a_x__now"]);
        for (index, name) in names.iter().enumerate() {
            assert_eq!(catalog.by_visible_name(name).unwrap().path(), catalog.entries()[index].path());
        }
    }

    #[test]
    fn a_tool_named_like_a_hashed_name_takes_no_calls() {
        let twice = [(server("a"), vec![tool("b__c")]), (server("a__b"), vec![tool("c")])];
        let hashed = ToolCatalog::new(twice.clone()).entries()[1].visible_name.clone();
        let squatter = (server("a"), vec![tool(hashed.strip_prefix("a__").unwrap()), tool("b__c")]);
        let catalog = ToolCatalog::new([squatter, twice[1].clone()]);
        let paths: Vec<String> = catalog
            .entries()
            .iter()
            .map(|entry| catalog.by_visible_name(&entry.visible_name).unwrap().path())
            .collect();
        assert_eq!(paths, [format!("a.{}", &hashed[3..]), "a.b__c".to_owned(), "a__b.c".to_owned()]);
    }

    #[test]
    fn paths_find_servers_with_dots() {
        let catalog =
            ToolCatalog::new([(server("a"), vec![tool("x.now")]), (server("a.x"), vec![tool("now")])]);
        assert_eq!(catalog.find_path("a.x.now").unwrap().server.as_str(), "a.x");
        let missing = catalog.find_path("a.nw").unwrap_err();
        assert_eq!(missing.to_string(), "server `a` has no tool `nw`");
        let missing = catalog.find_path("b.now").unwrap_err();
        assert_eq!(missing.to_string(), "no server is named `b`");
    }

    #[test]
    fn denied_tools_are_known_but_not_listed() {
        let catalog = ToolCatalog::new([(server("a"), vec![tool("read")]), (server("b"), vec![])])
            .with_denied([(server("a"), vec![tool("debug_dump"), tool("reed")])]);
        assert_eq!(catalog.entries().len(), 1);
        assert!(catalog.by_visible_name("a__debug_dump").is_none());
        let told = |path: &str| {
            let error = catalog.find_path(path).unwrap_err();
            (error.to_string(), error.help().unwrap_or_default())
        };
        let (message, help) = told("a.debug_dump");
        assert_eq!(message, "`a.debug_dump` is denied by the configuration");
        assert_eq!(help, "the rule is in `servers.a.tools`");
        // One that may be called is suggested first.
        assert_eq!(told("a.reat").1, "did you mean `read`?");
        assert_eq!(told("a.debug_dmp").1, "did you mean `debug_dump`? The configuration denies it");
        assert_eq!(told("b.debug_dump").0, "server `b` has no tool `debug_dump`");
    }

    #[test]
    fn a_unique_tool_is_found_without_its_server() {
        let catalog = ToolCatalog::new([
            (server("a"), vec![tool("now"), tool("echo")]),
            (server("b"), vec![tool("now")]),
        ]);
        assert_eq!(catalog.find_unqualified("echo").unwrap().path(), "a.echo");
        let error = |name: &str| {
            let error = catalog.find_unqualified(name).unwrap_err();
            (error.code(), format!("{error}; {}", error.help().unwrap()))
        };
        let several = "2 servers have a tool `now`; say which: a.now, b.now".to_owned();
        assert_eq!(error("now"), (ErrorCode::ToolNotFound, several));
        assert_eq!(error("ecko").1, "no server has a tool `ecko`; did you mean `a.echo`?");
    }

    #[test]
    fn argument_checks_report_all_problems() {
        let catalog = ToolCatalog::new([(server("time"), vec![tool("now")])]);
        let entry = &catalog.entries()[0];
        let check = |value: Value| match value {
            Value::Object(arguments) => entry.check(&arguments),
            _ => unreachable!(),
        };
        check(json!({"zone": "UTC", "n": 3})).unwrap();
        let causes = check(json!({"n": "3", "tz": 1})).unwrap_err().causes();
        assert_eq!(causes.len(), 3, "{causes:?}");
        assert!(causes.iter().any(|cause| cause.contains("zone")), "{causes:?}");
    }

    #[test]
    fn patterns_match_tool_paths() {
        let catalog = ToolCatalog::new([
            (server("time"), vec![tool("now"), tool("convert")]),
            (server("x"), vec![tool("now")]),
        ]);
        let chosen = |patterns: &[&str]| {
            let patterns: Vec<String> = patterns.iter().map(ToString::to_string).collect();
            let entries = catalog.select(&patterns).unwrap();
            entries.iter().map(|entry| entry.path()).collect::<Vec<_>>()
        };
        assert_eq!(chosen(&["time.*"]), ["time.now", "time.convert"]);
        assert_eq!(chosen(&["*.now"]), ["time.now", "x.now"]);
    }
}
