//! Finds the tool that a wrong name means.

use std::sync::Arc;

use super::{Correction, CorrectionKind, normalized};
use crate::{catalog::CatalogEntry, config::Aliases};

/// A tool as a model names it: by its visible name, or by server and tool.
#[derive(Clone, Copy, Debug)]
pub(in crate::agent) struct WantedTool<'a> {
    pub server: Option<&'a str>,
    pub tool: &'a str,
}

/// Result of the search for a name.
#[derive(Debug)]
pub(in crate::agent) enum FoundTool<'a> {
    /// The tool, and what was wrong with its name.
    One(&'a Arc<CatalogEntry>, Vec<Correction>),
    /// Several that may be meant.
    Many(Vec<&'a Arc<CatalogEntry>>),
    None,
}

/// Looks for `wanted` among `entries`, from the strictest rule on. The first rule that more than one tool meets ends
/// it: what is not plain is not guessed. Without `aliases` nothing is corrected. A name that no tool has counts as
/// corrected.
pub(in crate::agent) fn find<'a>(
    entries: &'a [Arc<CatalogEntry>],
    wanted: WantedTool<'_>,
    aliases: Option<&Aliases>,
) -> FoundTool<'a> {
    let rules = if wanted.server.is_some() { BY_SERVER } else { BY_NAME };
    let rules = if aliases.is_some() { rules } else { &rules[..1] };
    for rule in rules {
        let met: Vec<_> = entries.iter().filter(|entry| rule(entry, wanted)).collect();
        match met[..] {
            [] => {}
            [entry] => return FoundTool::One(entry, corrections(entry, wanted)),
            _ => return FoundTool::Many(met),
        }
    }
    let Some((server, tool)) = aliases.and_then(|aliases| by_alias(entries, aliases, wanted)) else {
        return FoundTool::None;
    };
    let aliased = |server| match find(entries, WantedTool { server, tool }, Some(&Aliases::default())) {
        FoundTool::One(entry, _) => Some(FoundTool::One(entry, corrections(entry, wanted))),
        FoundTool::Many(all) => Some(FoundTool::Many(all)),
        FoundTool::None => None,
    };
    // An alias may name its server itself.
    aliased(server).or_else(|| aliased(None)).unwrap_or(FoundTool::None)
}

/// The server and the tool that an alias stands for: the whole of the name, or what follows the name of a server.
/// `None` where more than one alias could be meant.
fn by_alias<'a>(
    entries: &'a [Arc<CatalogEntry>],
    aliases: &'a Aliases,
    wanted: WantedTool<'a>,
) -> Option<(Option<&'a str>, &'a str)> {
    if let Some(tool) = alias(aliases, wanted.tool) {
        return Some((wanted.server, tool));
    }
    let mut found = Vec::new();
    let mut servers: Vec<&str> = entries.iter().map(|entry| entry.server.as_str()).collect();
    servers.dedup();
    for (from, to) in &aliases.tools {
        let here = |server: &&str| alike(&format!("{server}__{from}"), wanted.tool);
        found.extend(servers.iter().copied().filter(here).map(|server| (Some(server), to.as_str())));
    }
    found.dedup();
    match found[..] {
        [] => {}
        [one] => return Some(one),
        _ => return None,
    }
    // Behind the name of a server that there is not.
    let mut behind: Vec<(&String, &String)> =
        aliases.tools.iter().filter(|(from, _)| after_a_server(from, wanted.tool)).collect();
    behind.sort_by_key(|(from, _)| from.len());
    behind.pop().map(|(_, to)| (wanted.server, to.as_str()))
}

/// The tools that have aliases, with each alias.
pub(in crate::agent) fn aliased<'a, 'b>(
    entries: &'a [Arc<CatalogEntry>],
    aliases: &'b Aliases,
) -> Vec<(&'b str, &'a Arc<CatalogEntry>)> {
    let tools_of = |(from, to): (&'b String, &'b String)| {
        let tools = match find(entries, WantedTool { server: None, tool: to }, Some(&Aliases::default())) {
            FoundTool::One(entry, _) => vec![entry],
            FoundTool::Many(all) => all,
            FoundTool::None => Vec::new(),
        };
        tools.into_iter().map(|entry| (from.as_str(), entry))
    };
    aliases.tools.iter().flat_map(tools_of).collect()
}

fn alias<'a>(aliases: &'a Aliases, name: &str) -> Option<&'a str> {
    let alike = || aliases.tools.iter().find(|(from, _)| alike(from, name)).map(|(_, to)| to);
    aliases.tools.get(name).or_else(alike).map(String::as_str)
}

type Rule = fn(&CatalogEntry, WantedTool<'_>) -> bool;

const BY_SERVER: &[Rule] = &[
    |entry, wanted| entry.tool.name == wanted.tool && wanted.server == Some(entry.server.as_str()),
    |entry, wanted| {
        let server = wanted.server.unwrap_or_default();
        alike(&entry.tool.name, wanted.tool) && alike(entry.server.as_str(), server)
    },
    |entry, wanted| entry.tool.name == wanted.tool,
    |entry, wanted| alike(&entry.tool.name, wanted.tool),
    |entry, wanted| entry.visible_name == wanted.tool || entry.path() == wanted.tool,
];

const BY_NAME: &[Rule] = &[
    // Both are its names: configuration and messages say `server.tool`. No visible name has a dot.
    |entry, wanted| entry.visible_name == wanted.tool || entry.path() == wanted.tool,
    |entry, wanted| alike(&entry.visible_name, wanted.tool) || alike(&entry.path(), wanted.tool),
    |entry, wanted| entry.tool.name == wanted.tool,
    |entry, wanted| alike(&entry.tool.name, wanted.tool),
    |entry, wanted| after_a_server(&entry.tool.name, wanted.tool),
];

/// Whether `name` is `tool` behind the name of some server.
fn after_a_server(tool: &str, name: &str) -> bool {
    // What stands between the two, in the habits of models.
    const SEPARATORS: [&str; 5] = ["__", ".", "-", "/", ":"];
    let Some(before) = name.strip_suffix(tool) else { return false };
    SEPARATORS.iter().any(|mark| before.strip_suffix(mark).is_some_and(|server| !server.is_empty()))
}

/// Whether two names are equal but for case and separators.
fn alike(one: &str, other: &str) -> bool {
    let one = normalized(one);
    !one.is_empty() && one == normalized(other)
}

fn corrections(entry: &CatalogEntry, wanted: WantedTool<'_>) -> Vec<Correction> {
    use CorrectionKind::{Server, Tool};
    let name = &entry.tool.name;
    let mut done = Vec::new();
    match wanted.server {
        Some(server) => {
            if server != entry.server.as_str() {
                done.push(Correction::new(Server, server, entry.server.as_str()));
            }
            if wanted.tool != name {
                done.push(Correction::new(Tool, wanted.tool, name));
            }
        }
        None if wanted.tool == entry.visible_name || wanted.tool == entry.path() => {}
        None => {
            let kind = if wanted.tool.ends_with(name.as_str()) { Server } else { Tool };
            done.push(Correction::new(kind, wanted.tool, &entry.visible_name));
        }
    }
    done
}
