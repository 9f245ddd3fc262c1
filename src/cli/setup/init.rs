//! `toolcrib init`: writes a first servers.toml.

use std::{path::PathBuf, process::ExitCode};

use clap::Args;
use serde_json::{Value, json};
use toolcrib::{
    Env, Error,
    edit::{ConfigFile, FirstConfig, FoundSource},
};

use crate::cli::{
    context::Context,
    terminal::{
        output,
        ui::{Ui, counted},
    },
};

#[derive(Args)]
pub(crate) struct Init {
    /// The file to write, or its folder [default: servers.toml in this folder].
    path: Option<PathBuf>,
    /// Import the servers of this client (`toolcrib install` lists them) or file, in place of all that are found.
    #[arg(long, value_name = "CLIENT|FILE")]
    from: Vec<String>,
    /// Look for no other programs: write a file with built-in servers.
    #[arg(long, conflicts_with = "from")]
    builtin: bool,
}

impl Init {
    pub(crate) fn run(&self, context: &Context<'_>) -> anyhow::Result<ExitCode> {
        let env = Env::process();
        if self.path.is_some() && context.config.is_some() {
            let help = "leave out --config, or PATH".to_owned();
            return Err(Error::input("the file to write is named twice", Some(help)).into());
        }
        let file = ConfigFile::to_create(self.path.as_deref().or(context.config.as_deref()), &env)?;
        let chosen = (!self.builtin).then_some(&self.from[..]);
        let first = FirstConfig::of(&file, chosen, &env)?;
        let report = file.create(&first.text, &env)?;
        output::learn(&report.config.secrets);
        let names: Vec<&str> = report.config.servers.keys().map(toolcrib::ServerName::as_str).collect();
        if context.ui.json {
            let found: Vec<Value> = first.found.iter().map(document).collect();
            Ui::json(json!({"schema": 1, "file": file.path(), "found": found, "servers": names}));
            return Ok(ExitCode::SUCCESS);
        }
        for source in &first.found {
            match &source.problem {
                Some(problem) => context.ui.warn(format!("{} is left out: {problem}", source.title)),
                None => context.ui.status("Found", told(source)),
            }
        }
        if first.found.is_empty() && !self.builtin {
            context.ui.status("Found", "no servers of other programs, on this machine or in this folder");
        }
        let imported = first.found.iter().any(|source| source.is_taken);
        context
            .ui
            .status("Wrote", format!("{} with {}", file.path().display(), counted(names.len(), "server")));
        if imported {
            context
                .ui
                .status("Secrets", "none was copied: the servers are read in the files above (`import`)");
        }
        let named = self.path.is_some() || context.config.is_some();
        let option = if named { format!(" --config {}", file.path().display()) } else { String::new() };
        context.ui.status("Next", format!("toolcrib check{option}"));
        Ok(ExitCode::SUCCESS)
    }
}

fn told(source: &FoundSource) -> String {
    let FoundSource { title, file, servers, is_taken, .. } = source;
    let known = if *is_taken { "" } else { "; not imported, since all of them are known by now" };
    let place = file.display().to_string();
    let title = if *title == place || place.ends_with(title) { place } else { format!("{title}, {place}") };
    format!("{}: {}{known} ({title})", counted(servers.len(), "server"), servers.join(", "))
}

fn document(source: &FoundSource) -> Value {
    json!({"source": source.source, "file": source.file, "servers": source.servers, "imported": source.is_taken,
        "problem": source.problem})
}
