//! What a configuration starts and asks, in words for the person who looks at it: command lines and addresses.

use std::{collections::BTreeMap, path::Path};

use super::record::Key;
use crate::{
    config::{AsWritten, Config, Endpoint, Guard, HttpEndpoint, LlmConfig, StdioConfig, written_origin},
    text::counted,
};

/// Letters of a command line that are shown from its beginning and from its end, if it is longer than both.
const SHOWN: (usize, usize) = (3000, 1000);
/// The same of each remark.
const SHOWN_OF_REMARK: (usize, usize) = (1500, 500);
/// Names of variables and headers that are shown.
const NAMES: usize = 100;

/// One thing that a configuration starts or asks.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Started {
    /// The server, or the table of the model.
    pub name: String,
    /// Its command line or address in one line, as it is written: with `${NAME}` in place of values of variables.
    pub what: String,
    /// Whether it was not known before.
    pub is_new: bool,
    pub(super) digest: String,
}

/// What `config` starts and asks, in its order, each once. A server whose entry cannot be used is not among them.
pub(super) fn of(config: &Config, key: &Key) -> Vec<Started> {
    let mut all: Vec<(String, Line)> = Vec::new();
    if let Guard::Program(program) = &config.guard {
        let line = Line { text: program.display().to_string(), ..Line::default() };
        all.push(("[defaults] guard".to_owned(), line));
    }
    for (name, entry) in &config.servers {
        let Ok(server) = &entry.server else { continue };
        let folder = config.file.as_ref().and_then(|file| file.parent());
        // One that a program has made is in no file.
        let made = || made(&server.endpoint, config);
        let written = entry.written.as_deref().cloned().unwrap_or_else(made);
        let mut line = match &server.endpoint {
            Endpoint::Stdio(child) => command(child, &written, folder),
            Endpoint::Http(remote) => address(remote, &written),
            Endpoint::Builtin { .. } => {
                Line { text: format!("built in: {}", words(&written.words)), ..Line::default() }
            }
        };
        if let Some(file) = &written.env_file {
            let file = folder.and_then(|folder| file.strip_prefix(folder).ok()).unwrap_or(file);
            let word = format!("from {}:", file.display());
            line.remarks.extend(listed(&word, written.of_env_file.keys().map(String::as_str)));
        }
        line.rest = [&written.cwd, &written.url, &written.issuer].into_iter().flatten().cloned().collect();
        line.rest.extend(written.rest);
        line.values = written.of_env_file;
        all.push((name.to_string(), line));
    }
    let models = config.llm.iter().chain(config.models.values());
    for model in models.filter_map(|model| model.as_ref().ok()) {
        add_models(model, &mut all);
    }
    let mut started: Vec<Started> = Vec::new();
    for (name, line) in all {
        let digest = key.digest(format!("{name:?} {line:?}").as_bytes());
        if !started.iter().any(|known| known.digest == digest) {
            started.push(Started { name, what: line.shown(), is_new: true, digest });
        }
    }
    started
}

/// What is shown of one thing, and what counts with it. What it is in the words of `Debug` counts.
#[derive(Debug, Default)]
struct Line {
    text: String,
    remarks: Vec<String>,
    /// What is written of it besides.
    rest: Vec<String>,
    /// The variables of an `env_file` in it.
    values: BTreeMap<String, String>,
}

impl Line {
    fn shown(&self) -> String {
        let remarks: Vec<String> =
            self.remarks.iter().map(|remark| shortened(remark, SHOWN_OF_REMARK)).collect();
        let text = shortened(&self.text, SHOWN);
        if remarks.is_empty() { text } else { format!("{text} ({})", remarks.join("; ")) }
    }
}

/// A server as it is, without its secrets.
fn made(endpoint: &Endpoint, config: &Config) -> AsWritten {
    let hidden = |text: &String| config.secrets.hide(text);
    let (words, url) = match endpoint {
        Endpoint::Stdio(child) => {
            let program = child.command.display().to_string();
            (std::iter::once(&program).chain(&child.args).map(hidden).collect(), None)
        }
        Endpoint::Http(remote) => (Vec::new(), Some(remote.url.clone())),
        Endpoint::Builtin { name, args, .. } => {
            (std::iter::once(name).chain(args).map(hidden).collect(), None)
        }
    };
    AsWritten { words, url, ..AsWritten::default() }
}

/// `/w/server --port 1 (in /tmp; with NODE_OPTIONS)`.
fn command(child: &StdioConfig, written: &AsWritten, folder: Option<&Path>) -> Line {
    let mut line = written.words.clone();
    // The whole path, as far as the file says it.
    if let Some(program) = line.first_mut().filter(|program| !program.contains('$')) {
        *program = child.command.display().to_string();
    }
    let elsewhere = (folder != Some(&*child.cwd)).then(|| child.cwd.display().to_string());
    let elsewhere = written.cwd.clone().or(elsewhere).map(|cwd| format!("in {cwd}"));
    let own = child.env.iter().filter(|(name, value)| child.inherited.get(*name) != Some(*value));
    let names = listed("with", own.map(|(name, _)| name.as_str()));
    let remarks = elsewhere.into_iter().chain(names).collect();
    Line { text: words(&line), remarks, ..Line::default() }
}

/// Paths and queries may be secret: they are left out.
fn address(remote: &HttpEndpoint, written: &AsWritten) -> Line {
    let issuer = written.issuer.as_ref().map(|issuer| format!("login at {}", written_origin(issuer)));
    let names = listed("with", remote.headers.keys().map(String::as_str));
    let text = written_origin(written.url.as_deref().unwrap_or_default());
    Line { text, remarks: issuer.into_iter().chain(names).collect(), ..Line::default() }
}

/// A model, or all of those that are asked in its place.
fn add_models(model: &LlmConfig, all: &mut Vec<(String, Line)>) {
    if let Some(strategy) = &model.strategy {
        strategy.members.iter().for_each(|member| add_models(member, all));
        return;
    }
    // What an option or a variable says is no matter of the file.
    let Some(url) = model.base_url.as_ref().filter(|_| model.base_url_from.is_none()) else { return };
    let key = match (&model.api_keys_from, model.api_keys.is_empty()) {
        (_, true) => None,
        (Some(variable), false) => Some(format!("with {variable}")),
        (None, false) => Some("with a key".to_owned()),
    };
    let name = match model.name.as_deref() {
        None | Some("llm") => "[llm]".to_owned(),
        Some(name) => format!("[llm.clients.{name}]"),
    };
    let names = listed("with", model.headers.keys().map(String::as_str));
    let url = model.base_url_written.as_ref().unwrap_or(url);
    let remarks = key.into_iter().chain(names).collect();
    all.push((name, Line { text: written_origin(url), remarks, rest: vec![url.clone()], ..Line::default() }));
}

/// `with A, B and 3 more`.
fn listed<'a>(word: &str, names: impl Iterator<Item = &'a str>) -> Option<String> {
    let names: Vec<&str> = names.collect();
    let more = names.len().saturating_sub(NAMES);
    let shown = names[..names.len() - more].join(", ");
    match (names.is_empty(), more) {
        (true, _) => None,
        (_, 0) => Some(format!("{word} {shown}")),
        _ => Some(format!("{word} {shown} and {more} more")),
    }
}

/// Words with quotes where they need them, so that it is seen where one ends.
fn words(words: &[String]) -> String {
    let quoted = words.iter().map(|word| {
        let plain = !word.is_empty() && !word.contains(|c: char| c.is_whitespace() || c == '"' || c == '\'');
        if plain { word.clone() } else { format!("{word:?}") }
    });
    quoted.collect::<Vec<_>>().join(" ")
}

/// In one line, the middle of a long one left out.
fn shortened(text: &str, (first, last): (usize, usize)) -> String {
    let text = text.replace('\r', "\\r").replace('\n', "\\n");
    let letters = text.chars().count();
    if letters <= first + last {
        return text;
    }
    let beginning: String = text.chars().take(first).collect();
    let end: String = text.chars().skip(letters - last).collect();
    format!("{beginning} [{} left out] {end}", counted(letters - first - last, "letter"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_long_line_is_shown() {
        let line = format!("sh -c {}; ./evil\nx", "true;".repeat(2000));
        let shown = shortened(&line, SHOWN);
        assert!(shown.len() < 4040 && shown.ends_with("; ./evil\\nx"), "{shown}");
        assert!(shown.contains(" letters left out] "), "{shown}");
        assert_eq!(shortened("a b", SHOWN), "a b");
        assert_eq!(words(&["a".to_owned(), String::new(), "b c".to_owned()]), "a \"\" \"b c\"");
    }
}
