//! Compares the tool names in the configuration with the tools that exist: a rule that
//! matches no tool has no effect.

use std::{collections::HashMap, sync::Arc};

use crate::config::{
    AGENT_SERVER, NamePattern,
    file::source_location::{SourceLocation, Text},
};
use crate::{
    error::{ConfigError, nearest},
    tool::{ServerName, Tool},
};

/// The tools of servers with the names that are shown, those that are denied among them.
type Listed = HashMap<ServerName, Vec<Tool>>;

/// The most tool names of a server that a message lists.
const NAMES_SHOWN: usize = 8;

/// All rules of a configuration that name tools.
#[derive(Debug, Clone, Default)]
pub struct NamedTools(Arc<Rules>);

#[derive(Debug, Default)]
struct Rules {
    rules: Vec<Named>,
    /// All servers of the file: who is not asked for today is there nevertheless.
    servers: Vec<ServerName>,
    /// Agents that are tools of others.
    agents: Vec<String>,
}

/// A place that names tools.
#[derive(Debug, Clone)]
pub(in crate::config) struct Named {
    origin: SourceLocation,
    text: Text,
    wanted: NamedBy,
}

/// How they are named.
#[derive(Debug, Clone)]
enum NamedBy {
    /// By a pattern over the names of one server's tools; where one of their arguments is named too, that.
    Own(ServerName, NamePattern, Option<Text>),
    /// One server's tool by its name.
    OwnName(ServerName),
    /// By a pattern over `server.tool`.
    Paths(NamePattern),
    /// One by `server.tool`.
    Path,
    /// One by its own name, `server.tool` or the name that models call it by, as far as `exact` lets names differ.
    AnyName { exact: bool },
}

impl Named {
    /// Tools of `server`, by a pattern. One that is none is refused where the rule itself is read.
    pub(in crate::config) fn own(
        origin: &SourceLocation,
        server: &ServerName,
        text: Text,
        argument: Option<Text>,
    ) -> Option<Self> {
        let glob = NamePattern::parse(&text.value).ok()?;
        Some(Self { origin: origin.clone(), text, wanted: NamedBy::Own(server.clone(), glob, argument) })
    }

    /// A tool of `server`, by its name.
    pub(in crate::config) fn own_name(origin: &SourceLocation, server: &ServerName, text: Text) -> Self {
        Self { origin: origin.clone(), text, wanted: NamedBy::OwnName(server.clone()) }
    }

    /// Tools by a pattern over `server.tool`; as [`Named::own`].
    pub(in crate::config) fn paths(origin: &SourceLocation, text: Text) -> Option<Self> {
        let glob = NamePattern::parse(&text.value).ok()?;
        Some(Self { origin: origin.clone(), text, wanted: NamedBy::Paths(glob) })
    }

    /// A tool as `server.tool`.
    pub(in crate::config) fn path(origin: &SourceLocation, text: Text) -> Self {
        Self { origin: origin.clone(), text, wanted: NamedBy::Path }
    }

    /// A tool by any of its names, which may differ in case and separators unless they are to be `exact`.
    pub(in crate::config) fn any_name(origin: &SourceLocation, text: Text, exact: bool) -> Self {
        Self { origin: origin.clone(), text, wanted: NamedBy::AnyName { exact } }
    }
}

impl NamedTools {
    pub(in crate::config) fn new(
        rules: Vec<Named>,
        servers: impl Iterator<Item = ServerName>,
        agents: impl Iterator<Item = String>,
    ) -> Self {
        Self(Arc::new(Rules { rules, servers: servers.collect(), agents: agents.collect() }))
    }

    /// Whether there is nothing to judge.
    #[doc(hidden)]
    pub fn is_empty(&self) -> bool {
        self.0.rules.is_empty()
    }

    /// The rules that concern nothing. What may concern a server that is not in `listed` is not judged.
    #[doc(hidden)]
    pub fn unused(&self, listed: &HashMap<ServerName, Vec<Tool>>) -> Vec<ConfigError> {
        self.0.rules.iter().filter_map(|rule| self.0.judge(rule, listed)).collect()
    }
}

impl Rules {
    /// The error of a rule that concerns nothing. `None`: it concerns something.
    fn judge(&self, rule: &Named, listed: &Listed) -> Option<ConfigError> {
        let text = &rule.text.value;
        match &rule.wanted {
            NamedBy::Own(server, glob, argument) => {
                let tools = listed.get(server)?;
                let matched: Vec<&Tool> =
                    tools.iter().filter(|tool| glob.is_match(tool.own_name())).collect();
                match argument {
                    _ if matched.is_empty() => Some(rule.no_tool_of(server, tools)),
                    Some(argument) => rule.no_argument(argument, &matched),
                    None => None,
                }
            }
            NamedBy::OwnName(server) => {
                let tools = listed.get(server)?;
                let found = tools.iter().any(|tool| tool.own_name() == text);
                (!found).then(|| rule.no_tool_of(server, tools))
            }
            NamedBy::Paths(glob) => self.judge_path(rule, listed, |path| glob.is_match(path)),
            NamedBy::Path => self.judge_path(rule, listed, |path| path == text),
            NamedBy::AnyName { exact } => {
                if self.servers.iter().any(|server| !listed.contains_key(server)) {
                    return None;
                }
                let alike = |name: &String| name == text || (!exact && normalized(name) == normalized(text));
                let (paths, names): (Vec<_>, Vec<_>) = self.paths(rule, listed, |_| true).into_iter().unzip();
                let found = paths.iter().chain(&names).any(alike);
                let meant = || near(text, if text.contains('.') { &paths } else { &names });
                (!found).then(|| rule.error(&format!("there is no tool `{text}`"), meant()))
            }
        }
    }

    /// Judges a rule like [`Rules::judge`], for tools named as `server.tool`.
    fn judge_path(
        &self,
        rule: &Named,
        listed: &Listed,
        matches: impl Fn(&str) -> bool,
    ) -> Option<ConfigError> {
        let text = &rule.text.value;
        // What a pattern begins with says which servers it can mean.
        let literal = match rule.wanted {
            NamedBy::Paths(_) => text.split(['*', '?', '[', '{', '\\']).next().unwrap_or_default(),
            _ => text.as_str(),
        };
        let open = literal.len() < text.len();
        let meant = |server: &str| {
            let dotted = format!("{server}.");
            literal.starts_with(&dotted) || (open && dotted.starts_with(literal))
        };
        let may_mean: Vec<&ServerName> =
            self.servers.iter().filter(|server| meant(server.as_str())).collect();
        let paths = self.paths(rule, listed, meant);
        if paths.iter().any(|(path, _)| matches(path)) {
            return None;
        }
        if may_mean.is_empty() && paths.is_empty() {
            let named = literal.split('.').next().unwrap_or_default();
            let servers: Vec<String> = self.servers.iter().map(ToString::to_string).collect();
            return Some(rule.error(&format!("no server is named `{named}`"), near(named, &servers)));
        }
        if may_mean.iter().any(|server| !listed.contains_key(*server)) {
            return None;
        }
        let paths: Vec<String> = paths.into_iter().map(|(path, _)| path).collect();
        Some(rule.error(&format!("no tool is named `{text}`"), near(text, &paths)))
    }

    /// The tools of servers that are `meant`, as `server.tool` and by their own names. Agents are tools too, but never
    /// take a call over.
    fn paths(&self, rule: &Named, listed: &Listed, meant: impl Fn(&str) -> bool) -> Vec<(String, String)> {
        let agents = self.agents.iter().map(|agent| (AGENT_SERVER, agent.as_str()));
        let agents = agents.filter(|_| !matches!(rule.wanted, NamedBy::Path));
        let tools: Vec<(&ServerName, &Vec<Tool>)> =
            self.servers.iter().filter_map(|server| Some((server, listed.get(server)?))).collect();
        tools
            .iter()
            .flat_map(|(server, tools)| tools.iter().map(move |tool| (server.as_str(), tool.name.as_str())))
            .chain(agents)
            .filter(|(server, _)| meant(server))
            .map(|(server, tool)| (format!("{server}.{tool}"), tool.to_owned()))
            .collect()
    }
}

impl Named {
    fn error(&self, message: &str, help: Option<String>) -> ConfigError {
        ConfigError {
            file: self.origin.shown.clone(),
            line: Some(self.text.line),
            key: Some(self.text.key.clone()),
            message: format!("{message}: the rule has no effect"),
            help,
            ..ConfigError::default()
        }
    }

    fn no_tool_of(&self, server: &ServerName, tools: &[Tool]) -> ConfigError {
        let text = &self.text.value;
        let names: Vec<String> = tools.iter().map(|tool| tool.own_name().to_owned()).collect();
        let error = self.error(&format!("server `{server}` has no tool `{text}`"), near(text, &names));
        ConfigError { server: Some(server.clone()), ..error }
    }

    /// None of the tools has an argument of that name, as far as their schemas say which they have.
    fn no_argument(&self, argument: &Text, tools: &[&Tool]) -> Option<ConfigError> {
        let mut names = Vec::new();
        for tool in tools {
            let properties = tool.input_schema.get("properties")?.as_object()?;
            // What is not listed may be given nevertheless.
            let closed = tool.input_schema.get("additionalProperties") == Some(&false.into());
            if properties.contains_key(&argument.value) || (properties.is_empty() && !closed) {
                return None;
            }
            names.extend(properties.keys().cloned());
        }
        let at = Self { text: argument.clone(), ..self.clone() };
        let message =
            format!("no tool that `{}` means has an argument `{}`", self.text.value, argument.value);
        Some(at.error(&message, near(&argument.value, &names)))
    }
}

/// The nearest of `names`, or some of them.
fn near(text: &str, names: &[String]) -> Option<String> {
    if let Some(near) = nearest(text, names.iter().map(String::as_str)) {
        return Some(format!("did you mean `{near}`?"));
    }
    let more = if names.len() > NAMES_SHOWN { ", ..." } else { "" };
    let shown: Vec<&str> = names.iter().take(NAMES_SHOWN).map(String::as_str).collect();
    (!shown.is_empty()).then(|| format!("there are: {}{more}", shown.join(", ")))
}

/// Names match with any case and separators.
fn normalized(name: &str) -> String {
    name.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}
