//! `toolcrib prompt`: gets a prompt with its arguments filled in, or lists what there is.

use std::process::ExitCode;

use clap::Args;
use serde_json::{Map, Value, json};
use toolcrib::{
    Error,
    cli_support::{nearest, unknown_name},
};

use super::ask::{AskedServers, one_or_all};
use crate::cli::{
    context::Context,
    terminal::{columns, output, ui::Ui},
};

#[derive(Args)]
pub(crate) struct Prompt {
    /// The prompt, as SERVER.NAME or as it is listed, or as NAME with --server [default: list all prompts].
    name: Option<String>,
    /// key=value for each argument.
    #[arg(requires = "name")]
    arguments: Vec<String>,
    #[command(flatten)]
    servers: AskedServers,
}

impl Prompt {
    pub(crate) fn run(mut self, context: &Context<'_>) -> anyhow::Result<ExitCode> {
        let Some(mut name) = self.name.take() else {
            let prompts = self.servers.ask(context, |asking| asking.list("prompts/list", "prompts"))?;
            show_list(context.ui, &prompts);
            return Ok(ExitCode::SUCCESS);
        };
        let arguments = arguments(&self.arguments)?;
        if self.servers.server.is_none()
            && let Some((server, own)) =
                name.split_once('.').map(|(server, own)| (server.to_owned(), own.to_owned()))
            && context.look()?.servers.contains_key(&*server)
        {
            (self.servers.server, name) = (Some(server), own);
        }
        let (server, shown) = (self.servers.server.clone(), name.clone());
        let params = json!({"name": name, "arguments": arguments});
        let prompt = self.servers.ask(context, move |asking| {
            asking.ask("prompts/get", params).map_err(|error| {
                let Ok(prompts) = asking.list("prompts/list", "prompts") else { return error };
                let known = prompts.iter().filter_map(|prompt| prompt["name"].as_str());
                if known.clone().any(|known| known == name) {
                    error
                } else {
                    unknown(&name, server.as_deref(), known)
                }
            })
        })?;
        if context.ui.json {
            let (description, messages) = (&prompt["description"], &prompt["messages"]);
            Ui::json(json!({"schema": 1, "name": shown, "description": description, "messages": messages}));
            return Ok(ExitCode::SUCCESS);
        }
        for message in one_or_all(&prompt["messages"]) {
            let content = message.get("content").unwrap_or(message);
            let text: Vec<String> = one_or_all(content).iter().map(block_text).collect();
            let role = message["role"].as_str().unwrap_or("unknown role");
            Ui::words(format!("{}: {}", output::one_line(role), text.join("\n")));
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// One block of a message.
fn block_text(content: &Value) -> String {
    match content.as_str().or(content["text"].as_str()).or(content["resource"]["text"].as_str()) {
        Some(text) => text.to_owned(),
        None => match content["type"].as_str() {
            Some(kind) => format!("[{kind}]"),
            None => content.to_string(),
        },
    }
}

fn unknown<'a>(name: &str, server: Option<&str>, known: impl Iterator<Item = &'a str>) -> Error {
    let (of, list) = match server {
        Some(server) => (format!("server `{server}` has"), format!("toolcrib prompt -s {server}")),
        None => ("there is".to_owned(), "toolcrib prompt".to_owned()),
    };
    let near = nearest(name, known).map_or_else(String::new, |near| format!("did you mean `{near}`? "));
    unknown_name(format!("{of} no prompt `{name}`"), format!("{near}`{list}` lists them"))
}

/// The protocol has texts as arguments, and nothing else.
fn arguments(typed: &[String]) -> Result<Map<String, Value>, Error> {
    let mut arguments = Map::new();
    for argument in typed {
        let Some((key, value)) = argument.split_once('=') else {
            let help = Some("write key=value".to_owned());
            return Err(Error::input(format!("`{argument}` has no `=`"), help));
        };
        if arguments.insert(key.to_owned(), value.into()).is_some() {
            return Err(Error::input(format!("`{key}` is given twice"), None));
        }
    }
    Ok(arguments)
}

fn show_list(ui: &Ui, prompts: &[Value]) {
    if ui.json {
        Ui::json(json!({"schema": 1, "prompts": prompts}));
        return;
    }
    if prompts.is_empty() {
        ui.status("Found", "no prompts");
    }
    let row = |prompt: &Value| {
        let name = prompt["name"].as_str().unwrap_or_default();
        let arguments = prompt["arguments"].as_array().into_iter().flatten().map(|argument| {
            let optional = if argument["required"] == true { "" } else { "?" };
            format!("{}{optional}", argument["name"].as_str().unwrap_or_default())
        });
        let signature = format!("{name}({})", arguments.collect::<Vec<_>>().join(", "));
        let about = prompt["description"].as_str().or(prompt["title"].as_str()).unwrap_or_default();
        [output::one_line(&signature), output::one_line(about)]
    };
    let rows: Vec<[String; 2]> = prompts.iter().map(row).collect();
    columns::lines(&rows, &[]).iter().for_each(Ui::data);
}
