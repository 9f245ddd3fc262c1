//! What a configuration starts and asks, in words for the person who looks at it: command lines and addresses.

use sha2::{Digest as _, Sha256};

use crate::{
    config::{Config, Endpoint, Guard, HttpEndpoint, LlmConfig, StdioConfig, origin_of},
    text::{counted, short_hex},
};

/// Letters of one line that are shown from its beginning and from its end, if it is longer than both.
const SHOWN: (usize, usize) = (300, 100);
/// Names of variables and headers that are shown.
const NAMES: usize = 12;

/// One thing that a configuration starts or asks.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Started {
    /// The server, or the table of the model.
    pub name: String,
    /// Its command line or address, in one line without secrets.
    pub what: String,
    /// Whether it was not known before.
    pub is_new: bool,
    pub(super) digest: String,
}

/// What `config` starts and asks, in its order, each once. A server whose entry cannot be used is not among them.
pub(super) fn of(config: &Config) -> Vec<Started> {
    let mut all: Vec<(String, String)> = Vec::new();
    if let Guard::Program(program) = &config.guard {
        all.push(("[defaults] guard".to_owned(), program.display().to_string()));
    }
    for (name, entry) in &config.servers {
        let Ok(server) = &entry.server else { continue };
        let what = match &server.endpoint {
            Endpoint::Stdio(child) => command(child, config),
            Endpoint::Http(remote) => address(remote),
            Endpoint::Builtin { name, args, .. } => {
                format!("built in: {}", words(std::iter::once(name).chain(args)))
            }
        };
        all.push((name.to_string(), what));
    }
    let models = config.llm.iter().chain(config.models.values());
    for model in models.filter_map(|model| model.as_ref().ok()) {
        add_models(model, &mut all);
    }
    let mut started: Vec<Started> = Vec::new();
    for (name, what) in all {
        let what = config.secrets.hide(&what);
        let digest = short_hex(Sha256::new_with_prefix(format!("{name}\0{what}")));
        if !started.iter().any(|known| known.digest == digest) {
            started.push(Started { name, what: shortened(&what), is_new: true, digest });
        }
    }
    started
}

/// `/w/server --port 1 (in /tmp; with NODE_OPTIONS)`.
fn command(child: &StdioConfig, config: &Config) -> String {
    let program = child.command.display().to_string();
    let line = words(std::iter::once(&program).chain(&child.args));
    let folder = config.file.as_ref().and_then(|file| file.parent());
    let elsewhere = (folder != Some(&*child.cwd)).then(|| format!("in {}", child.cwd.display()));
    let own = child.env.iter().filter(|(name, value)| child.inherited.get(*name) != Some(*value));
    let names = listed("with", own.map(|(name, _)| name.as_str()));
    with_remarks(line, [elsewhere, names])
}

/// Paths and queries may be secret: they are left out.
fn address(remote: &HttpEndpoint) -> String {
    let issuer = remote.oauth.issuer.as_ref().map(|issuer| format!("login at {}", origin_of(issuer)));
    let names = listed("with", remote.headers.keys().map(String::as_str));
    with_remarks(origin_of(&remote.url), [issuer, names])
}

/// A model, or all of those that are asked in its place.
fn add_models(model: &LlmConfig, all: &mut Vec<(String, String)>) {
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
    all.push((name, with_remarks(origin_of(url), [key, names])));
}

fn with_remarks(line: String, remarks: impl IntoIterator<Item = Option<String>>) -> String {
    let remarks: Vec<String> = remarks.into_iter().flatten().collect();
    if remarks.is_empty() { line } else { format!("{line} ({})", remarks.join("; ")) }
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
fn words<'a>(words: impl Iterator<Item = &'a String>) -> String {
    let quoted = words.map(|word| {
        let plain = !word.is_empty() && !word.contains(|c: char| c.is_whitespace() || c == '"' || c == '\'');
        if plain { word.clone() } else { format!("{word:?}") }
    });
    quoted.collect::<Vec<_>>().join(" ")
}

/// In one line, the middle of a long one left out.
fn shortened(text: &str) -> String {
    let text = text.replace('\r', "\\r").replace('\n', "\\n");
    let letters = text.chars().count();
    let (first, last) = SHOWN;
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
        let line = format!("sh -c {}; ./evil\nx", "true;".repeat(200));
        let shown = shortened(&line);
        assert!(shown.len() < 440 && shown.ends_with("; ./evil\\nx"), "{shown}");
        assert!(shown.contains(" letters left out] "), "{shown}");
        assert_eq!(shortened("a b"), "a b");
        assert_eq!(words(["a".to_owned(), String::new(), "b c".to_owned()].iter()), "a \"\" \"b c\"");
    }
}
