//! Which tool is meant by a name that is none.

use std::sync::Arc;

use super::{Correction, CorrectionKind, folded};
use crate::{catalog::CatalogEntry, config::Aliases};

/// A tool as a model names it: by its visible name, or by server and tool.
#[derive(Clone, Copy, Debug)]
pub(in crate::agent) struct Wanted<'a> {
    pub server: Option<&'a str>,
    pub tool: &'a str,
}

/// What is found for a name.
#[derive(Debug)]
pub(in crate::agent) enum Found<'a> {
    /// The tool, and what was wrong with its name.
    One(&'a Arc<CatalogEntry>, Vec<Correction>),
    /// Several that may be meant.
    Many(Vec<&'a Arc<CatalogEntry>>),
    None,
}

/// Looks for `wanted` among `entries`, from the strictest rule on. The first rule that more than one tool meets ends
/// it: what is not plain is not guessed. Without `aliases` nothing is corrected. Whatever is no name of a tool counts as
/// corrected.
pub(in crate::agent) fn find<'a>(
    entries: &'a [Arc<CatalogEntry>],
    wanted: Wanted<'_>,
    aliases: Option<&Aliases>,
) -> Found<'a> {
    let rules = if wanted.server.is_some() { BY_SERVER } else { BY_NAME };
    let rules = if aliases.is_some() { rules } else { &rules[..1] };
    for rule in rules {
        let met: Vec<_> = entries.iter().filter(|entry| rule(entry, wanted)).collect();
        match met[..] {
            [] => {}
            [entry] => return Found::One(entry, corrections(entry, wanted)),
            _ => return Found::Many(met),
        }
    }
    let Some(alias) = aliases.and_then(|aliases| alias(aliases, wanted.tool)) else { return Found::None };
    let by_alias = |server| match find(entries, Wanted { server, tool: alias }, Some(&Aliases::default())) {
        Found::One(entry, _) => Some(Found::One(entry, corrections(entry, wanted))),
        Found::Many(all) => Some(Found::Many(all)),
        Found::None => None,
    };
    // An alias may name its server itself.
    by_alias(wanted.server).or_else(|| by_alias(None)).unwrap_or(Found::None)
}

fn alias<'a>(aliases: &'a Aliases, name: &str) -> Option<&'a str> {
    let alike = || aliases.tools.iter().find(|(from, _)| alike(from, name)).map(|(_, to)| to);
    aliases.tools.get(name).or_else(alike).map(String::as_str)
}

type Rule = fn(&CatalogEntry, Wanted<'_>) -> bool;

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
    let one = folded(one);
    !one.is_empty() && one == folded(other)
}

fn corrections(entry: &CatalogEntry, wanted: Wanted<'_>) -> Vec<Correction> {
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
