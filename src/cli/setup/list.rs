//! `toolcrib servers`: the servers of the configuration, as it is written.

use std::{path::Path, process::ExitCode};

use serde_json::{Value, json};
use toolcrib::{
    Endpoint, Env,
    cli_support::without_secrets,
    config::{Lifecycle, Scope, ServerConfig, ServerEntry, written_origin},
};

use crate::cli::{
    context::Context,
    terminal::{columns, ui::Ui},
};

/// A server as its entry has it.
struct Listed {
    name: String,
    /// `command`, `url` or `builtin`; nothing if the entry cannot be used.
    kind: Option<&'static str>,
    /// The words of its command, without secrets.
    words: Vec<String>,
    /// The origin of its address.
    origin: Option<String>,
    file: Option<String>,
    required: bool,
    start: Option<String>,
    scope: Option<&'static str>,
    error: Option<String>,
}

pub(crate) fn run(context: &Context<'_>) -> anyhow::Result<ExitCode> {
    let config = context.look()?;
    let env = Env::process();
    let listed: Vec<Listed> =
        config.servers.iter().map(|(name, entry)| Listed::of(name.as_str(), entry, env.folder())).collect();
    if context.ui.json {
        let servers: Vec<Value> = listed.iter().map(Listed::json).collect();
        Ui::json(json!({"schema": 1, "file": config.file, "servers": servers}));
        return Ok(ExitCode::SUCCESS);
    }
    if listed.is_empty() {
        return Err(config.without_servers().into());
    }
    let head = ["NAME", "KIND", "FILE", "", "WHAT"].map(str::to_owned);
    let rows: Vec<_> = std::iter::once(head).chain(listed.iter().map(Listed::row)).collect();
    for line in columns::lines(&rows, &[]) {
        Ui::data(line);
    }
    Ok(ExitCode::SUCCESS)
}

impl Listed {
    fn of(name: &str, entry: &ServerEntry, current: &Path) -> Self {
        let server = entry.server.as_ref();
        let written = entry.written.as_deref();
        let shown = |file: &Path| file.strip_prefix(current).unwrap_or(file).display().to_string();
        Self {
            name: name.to_owned(),
            kind: server.ok().map(kind),
            words: words(written.map(|written| &written.words[..]).unwrap_or_default()),
            origin: written.and_then(|written| written.url.as_deref()).map(written_origin),
            file: entry.source.as_deref().map(shown),
            required: entry.required,
            start: server.ok().and_then(|server| start(server.lifecycle)),
            scope: server.ok().and_then(|server| match server.scope {
                Scope::Shared => None,
                Scope::Task => Some("task"),
                Scope::Client => Some("client"),
            }),
            error: server.err().map(ToString::to_string),
        }
    }

    fn what(&self) -> String {
        match (&self.error, &self.origin) {
            (Some(error), _) => format!("cannot be used: {error}"),
            (None, Some(origin)) => origin.clone(),
            (None, None) => {
                let quoted = self.words.iter().map(|word| match word.contains(char::is_whitespace) {
                    true => format!("{word:?}"),
                    false => word.clone(),
                });
                quoted.collect::<Vec<_>>().join(" ")
            }
        }
    }

    fn row(&self) -> [String; 5] {
        let required = self.required.then(|| "required".to_owned());
        let scope = self.scope.map(|scope| format!("for each {scope}"));
        let marks: Vec<String> = required.into_iter().chain(self.start.clone()).chain(scope).collect();
        let file = self.file.clone().unwrap_or_default();
        [self.name.clone(), self.kind.unwrap_or("-").to_owned(), file, marks.join(", "), self.what()]
    }

    fn json(&self) -> Value {
        let command = (self.kind == Some("command")).then_some(&self.words);
        let builtin = (self.kind == Some("builtin")).then_some(&self.words);
        json!({"name": self.name, "kind": self.kind, "command": command, "builtin": builtin, "url": self.origin,
            "file": self.file, "required": self.required, "lifecycle": self.start.as_deref().unwrap_or("eager"),
            "scope": self.scope.unwrap_or("shared"), "error": self.error})
    }
}

/// The words of a command, where an argument that looks like a secret is `****`.
fn words(words: &[String]) -> Vec<String> {
    let Value::Object(mut entry) = without_secrets(json!({"args": words})) else { return Vec::new() };
    let words = entry.remove("args").and_then(|words| serde_json::from_value(words).ok());
    words.unwrap_or_default()
}

fn kind(server: &ServerConfig) -> &'static str {
    match server.endpoint {
        Endpoint::Stdio(_) => "command",
        Endpoint::Http(_) => "url",
        Endpoint::Builtin { .. } | Endpoint::Local(_) => "builtin",
    }
}

/// When it is started, unless that is with all others.
fn start(lifecycle: Lifecycle) -> Option<String> {
    match lifecycle {
        Lifecycle::Eager => None,
        Lifecycle::Lazy => Some("lazy".to_owned()),
        Lifecycle::Background => Some("background".to_owned()),
        Lifecycle::Idle(time) => Some(format!("idle {}", humantime::format_duration(time))),
        _ => Some("other".to_owned()),
    }
}
