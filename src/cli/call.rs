//! `toolcrib call`: one tool, arguments typed by its schema.

use std::{
    io::Read,
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::Args;
use serde_json::{Map, Value, json};
use toolcrib::{CallRequest, Config, Error, ServerName, ToolResult};

use super::{
    context::{Context, Locked},
    reach::Through,
    ui::{Ui, millis, seconds, some_time},
    up,
};

#[derive(Args)]
pub(super) struct Call {
    /// The tool, as SERVER.TOOL.
    #[arg(value_name = "SERVER.TOOL")]
    tool: String,
    /// key=value (typed by the tool's schema), key:=JSON, or key=@FILE.
    arguments: Vec<String>,
    /// All arguments as one JSON object; `-` reads it from stdin.
    #[arg(long, value_name = "JSON", conflicts_with = "arguments")]
    args: Option<String>,
    /// How long the tool may take, for instance 30s [default: the server's `call_timeout`].
    #[arg(long, value_parser = some_time, value_name = "DURATION")]
    timeout: Option<Duration>,
    /// Send the arguments without checking them against the tool's schema.
    #[arg(long)]
    no_check: bool,
    #[command(flatten)]
    locked: Locked,
    #[command(flatten)]
    through: Through,
}

impl Call {
    /// Calls through the daemon; nothing if that is not to be. It may run without the lockfile.
    pub(super) fn through_daemon(&self, context: &Context<'_>) -> anyhow::Result<Option<ExitCode>> {
        if self.locked.is_set() {
            return Ok(None);
        }
        let Some(mut daemon) = self.through.reach(context)? else { return Ok(None) };
        let mut call = CallRequest::default();
        call.tool.clone_from(&self.tool);
        (call.timeout, call.unchecked) = (self.timeout, self.no_check);
        for (key, argument) in self.arguments()? {
            match argument {
                Argument::Text(text) => call.texts.insert(key, text.into()),
                Argument::Value(value) => call.values.insert(key, value),
            };
        }
        let outcome = daemon.call(call);
        daemon.take_notes().iter().for_each(|note| context.ui.warn(note));
        let answer = outcome?;
        let answer =
            Answer { server: &answer.server, tool: &answer.tool, result: &answer.result, took: answer.took };
        // The daemon knows the secrets, and has hidden them.
        Ok(Some(answer.show(context.ui, ToOwned::to_owned)))
    }

    pub(super) async fn run(self, context: &Context<'_>) -> anyhow::Result<ExitCode> {
        let mut config = context.load()?;
        self.locked.apply(&mut config);
        let server = server_of(&config, &self.tool)?;
        config.servers.retain(|name, _| *name == server);
        for entry in config.servers.values_mut() {
            entry.required = true;
        }
        let ui = context.ui;
        let manager = match up::with_heartbeat(ui, context.start(&config, |_| {})).await {
            Err(Error::RequiredServers { failures }) => {
                // The one server that was asked for: its own failure says more than "not available".
                return Ok(ui.fail(&failures[0]));
            }
            outcome => outcome?,
        };
        let outcome = self.call(context, &config, &manager).await;
        context.stop(manager).await?;
        outcome
    }

    async fn call(
        &self,
        context: &Context<'_>,
        config: &Config,
        manager: &toolcrib::Manager,
    ) -> anyhow::Result<ExitCode> {
        let toolbox = manager.toolbox();
        let catalog = toolbox.catalog();
        let entry = catalog.find_path(&self.tool)?;
        let typed = |(key, argument): (String, Argument)| {
            let value = match argument {
                Argument::Text(text) => entry.typed(&key, &text),
                Argument::Value(value) => value,
            };
            (key, value)
        };
        let arguments: Map<String, Value> = self.arguments()?.into_iter().map(typed).collect();
        let began = Instant::now();
        let calling = async {
            match self.no_check {
                true => toolbox.call_unchecked(entry, &arguments, self.timeout).await,
                false => toolbox.call_entry(entry, &arguments, self.timeout).await,
            }
        };
        let result = context.cancel.run_until_cancelled(calling).await.unwrap_or(Err(Error::Cancelled))?;
        let answer =
            Answer { server: &entry.server, tool: &entry.tool.name, result: &result, took: began.elapsed() };
        Ok(answer.show(context.ui, |text| config.secrets.hide(text)))
    }

    /// The arguments as far as they are known without the schema.
    fn arguments(&self) -> Result<Vec<(String, Argument)>, Error> {
        let Some(text) = &self.args else {
            return self.arguments.iter().map(|argument| parse(argument)).collect();
        };
        let mut from_stdin = String::new();
        let text = match text.as_str() {
            "-" => {
                let read = std::io::stdin().read_to_string(&mut from_stdin);
                read.map_err(|error| Error::io("could not read the arguments from stdin", error))?;
                &from_stdin
            }
            _ => text,
        };
        let values: Map<String, Value> = serde_json::from_str(text)
            .map_err(|error| Error::input(format!("--args is not a JSON object: {error}"), None))?;
        Ok(values.into_iter().map(|(key, value)| (key, Argument::Value(value))).collect())
    }
}

/// One argument as it was typed.
#[derive(Debug, PartialEq)]
enum Argument {
    /// To be typed by the tool's schema.
    Text(String),
    Value(Value),
}

/// What a tool answered, wherever it was called from.
struct Answer<'a> {
    server: &'a ServerName,
    tool: &'a str,
    result: &'a ToolResult,
    took: Duration,
}

impl Answer<'_> {
    fn show(&self, ui: &Ui, hide: impl Fn(&str) -> String) -> ExitCode {
        let Self { server, tool, result, took } = self;
        if ui.json {
            let document = json!({"schema": 1, "server": server, "tool": tool,
                "is_error": result.is_error, "content": result.content,
                "structured_content": result.structured_content, "ms": millis(*took)});
            Ui::data(hide(&document.to_string()));
        } else {
            if result.is_error {
                ui.bad("error", format!("tool `{server}.{tool}` reported an error in {}", seconds(*took)));
            }
            Ui::data(hide(&result.text()));
        }
        if result.is_error { ExitCode::from(5) } else { ExitCode::SUCCESS }
    }
}

/// The configured server that a path begins with. The longest name counts, since names may hold dots.
pub(super) fn server_of(config: &Config, path: &str) -> Result<ServerName, Error> {
    let begins =
        |name: &&ServerName| path.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with('.'));
    config.servers.keys().filter(begins).max_by_key(|name| name.as_str().len()).cloned().ok_or_else(|| {
        let name = path.split('.').next().unwrap_or(path);
        if config.servers.contains_key(path) {
            let help = format!("write it as SERVER.TOOL; `toolcrib tools {path}` shows what there is");
            return Error::input(format!("`{path}` is a server, and its tool is missing"), Some(help));
        }
        let suggestion = toolcrib::nearest(name, config.servers.keys().map(ServerName::as_str));
        Error::ServerNotFound { name: name.to_owned(), suggestion }
    })
}

/// One `key=value`, `key:=json` or `key=@file`. A plain value is typed when the schema is known.
fn parse(argument: &str) -> Result<(String, Argument), Error> {
    let usage = "write key=value, key:=JSON or key=@FILE";
    let wrong = |what: String| Error::input(what, Some(usage.to_owned()));
    let (key, value) = argument.split_once('=').ok_or_else(|| wrong(format!("`{argument}` has no `=`")))?;
    if let Some(key) = key.strip_suffix(':') {
        let value = serde_json::from_str(value)
            .map_err(|error| wrong(format!("the value of `{key}` is not JSON: {error}")))?;
        return Ok((key.to_owned(), Argument::Value(value)));
    }
    let text = match value.strip_prefix('@') {
        Some(file) => std::fs::read_to_string(file)
            .map_err(|error| wrong(format!("cannot read {file} for `{key}`: {error}")))?,
        None => value.to_owned(),
    };
    Ok((key.to_owned(), Argument::Text(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_text_json_or_files() {
        assert_eq!(parse("id=007").unwrap(), ("id".to_owned(), Argument::Text("007".to_owned())));
        assert_eq!(parse("x:=[1,2]").unwrap(), ("x".to_owned(), Argument::Value(json!([1, 2]))));
        assert!(parse("novalue").is_err() && parse("x:=[").is_err() && parse("x=@/no/such/file").is_err());
    }
}
