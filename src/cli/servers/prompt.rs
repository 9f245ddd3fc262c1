//! `toolcrib prompt`: gets a prompt with its arguments filled in, or lists what there is.

use std::process::ExitCode;

use clap::Args;
use serde_json::{Map, Value, json};
use toolcrib::Error;

use super::ask::AskedServers;
use crate::cli::{
    context::Context,
    terminal::{columns, output, ui::Ui},
};

#[derive(Args)]
pub(crate) struct Prompt {
    /// The prompt, as SERVER__NAME, or as NAME with --server [default: list all prompts].
    name: Option<String>,
    /// key=value for each argument.
    #[arg(requires = "name")]
    arguments: Vec<String>,
    #[command(flatten)]
    servers: AskedServers,
}

impl Prompt {
    pub(crate) fn run(self, context: &Context<'_>) -> anyhow::Result<ExitCode> {
        let Some(name) = self.name else {
            let prompts = self.servers.ask(context, |asking| asking.list("prompts/list", "prompts"))?;
            show_list(context.ui, &prompts);
            return Ok(ExitCode::SUCCESS);
        };
        let arguments = arguments(&self.arguments)?;
        let params = json!({"name": name, "arguments": arguments});
        let prompt = self.servers.ask(context, move |asking| asking.ask("prompts/get", params))?;
        if context.ui.json {
            let (description, messages) = (&prompt["description"], &prompt["messages"]);
            Ui::json(json!({"schema": 1, "name": name, "description": description, "messages": messages}));
            return Ok(ExitCode::SUCCESS);
        }
        for message in prompt["messages"].as_array().into_iter().flatten() {
            let content = &message["content"];
            let text = match content["text"].as_str().or(content["resource"]["text"].as_str()) {
                Some(text) => text.to_owned(),
                None => format!("[{}]", content["type"].as_str().unwrap_or("unknown content")),
            };
            let role = message["role"].as_str().unwrap_or("unknown role");
            Ui::words(format!("{}: {text}", output::one_line(role)));
        }
        Ok(ExitCode::SUCCESS)
    }
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
