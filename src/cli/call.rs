//! `toolcrib call`: one tool, arguments typed by its schema.

use std::{
    io::Read,
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::Args;
use serde_json::{Map, Value, json};
use toolcrib::{CatalogEntry, Config, Error, ServerName};

use super::{
    context::{Context, Locked},
    ui::{Ui, millis, seconds},
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
    /// Limit of the call, for instance 30s [default: as configured].
    #[arg(long, value_parser = humantime::parse_duration, value_name = "DURATION")]
    timeout: Option<Duration>,
    /// Send the arguments without checking them against the tool's schema.
    #[arg(long)]
    no_check: bool,
    #[command(flatten)]
    locked: Locked,
}

impl Call {
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
        let arguments = self.arguments(entry)?;
        let began = Instant::now();
        let calling = async {
            match self.no_check {
                true => toolbox.call_unchecked(entry, &arguments, self.timeout).await,
                false => toolbox.call_entry(entry, &arguments, self.timeout).await,
            }
        };
        let result = context.cancel.run_until_cancelled(calling).await.unwrap_or(Err(Error::Cancelled))?;
        if context.ui.json {
            let document = json!({"schema": 1, "server": entry.server, "tool": entry.tool.name,
                "is_error": result.is_error, "content": result.content,
                "structured_content": result.structured_content, "ms": millis(began.elapsed())});
            Ui::data(config.secrets.hide(&document.to_string()));
        } else if result.is_error {
            let took = seconds(began.elapsed());
            context.ui.bad("error", format!("tool `{}` reported an error in {took}", entry.path()));
            Ui::data(config.secrets.hide(&result.text()));
        } else {
            Ui::data(config.secrets.hide(&result.text()));
        }
        Ok(if result.is_error { ExitCode::from(5) } else { ExitCode::SUCCESS })
    }

    fn arguments(&self, entry: &CatalogEntry) -> Result<Map<String, Value>, Error> {
        if let Some(text) = &self.args {
            let mut from_stdin = String::new();
            let text = match text.as_str() {
                "-" => {
                    let read = std::io::stdin().read_to_string(&mut from_stdin);
                    read.map_err(|error| Error::io("could not read the arguments from stdin", error))?;
                    &from_stdin
                }
                _ => text,
            };
            return serde_json::from_str(text)
                .map_err(|error| Error::input(format!("--args is not a JSON object: {error}"), None));
        }
        self.arguments.iter().map(|argument| parse(argument, &entry.tool.input_schema)).collect()
    }
}

/// The configured server that a path begins with. The longest name counts, since names may hold dots.
pub(super) fn server_of(config: &Config, path: &str) -> Result<ServerName, Error> {
    let begins =
        |name: &&ServerName| path.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with('.'));
    config.servers.keys().filter(begins).max_by_key(|name| name.as_str().len()).cloned().ok_or_else(|| {
        let name = path.split('.').next().unwrap_or(path);
        let suggestion = toolcrib::nearest(name, config.servers.keys().map(ServerName::as_str));
        Error::ServerNotFound { name: name.to_owned(), suggestion }
    })
}

/// One `key=value`, `key:=json` or `key=@file`.
fn parse(argument: &str, schema: &Map<String, Value>) -> Result<(String, Value), Error> {
    let usage = "write key=value, key:=JSON or key=@FILE";
    let wrong = |what: String| Error::input(what, Some(usage.to_owned()));
    let (key, value) = argument.split_once('=').ok_or_else(|| wrong(format!("`{argument}` has no `=`")))?;
    if let Some(key) = key.strip_suffix(':') {
        let value = serde_json::from_str(value)
            .map_err(|error| wrong(format!("the value of `{key}` is not JSON: {error}")))?;
        return Ok((key.to_owned(), value));
    }
    let text = match value.strip_prefix('@') {
        Some(file) => std::fs::read_to_string(file)
            .map_err(|error| Error::io(format!("could not read {file} for `{key}`"), error))?,
        None => value.to_owned(),
    };
    Ok((key.to_owned(), typed(text, schema.get("properties").and_then(|all| all.get(key)))))
}

/// Text as the schema wants it: `"007"` stays text where the schema says string, becomes a number where it
/// says number. What does not parse stays text, and the check says why it does not fit.
fn typed(text: String, schema: Option<&Value>) -> Value {
    let kinds = match schema.and_then(|schema| schema.get("type")) {
        Some(Value::String(kind)) => vec![kind.as_str()],
        Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => vec![],
    };
    if kinds.contains(&"string") || kinds.is_empty() {
        return Value::String(text);
    }
    serde_json::from_str(&text).unwrap_or(Value::String(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_types_the_values() {
        let schema = json!({"properties": {"id": {"type": "string"}, "n": {"type": ["integer", "null"]}}});
        let schema = schema.as_object().unwrap();
        assert_eq!(parse("id=007", schema).unwrap().1, json!("007"));
        assert_eq!(parse("n=7", schema).unwrap().1, json!(7));
        assert_eq!(parse("n=seven", schema).unwrap().1, json!("seven"));
        assert_eq!(parse("x:=[1,2]", schema).unwrap(), ("x".to_owned(), json!([1, 2])));
        assert!(parse("novalue", schema).is_err());
    }
}
