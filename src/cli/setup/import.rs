//! `toolcrib import`: prints the servers of another tool's configuration as servers.toml.

use std::{
    fs::OpenOptions,
    io::{Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    process::ExitCode,
};

use clap::Args;
use serde_json::json;
use toolcrib::{Env, Error, cli_support::foreign_files, config::import_toml};

use crate::cli::{context::Context, terminal::ui::Ui};

#[derive(Args)]
pub(crate) struct Import {
    /// A file (.mcp.json, mcp.json of VS Code, config.toml of Codex), or the name of a client that `toolcrib install` lists.
    #[arg(required = false)]
    source: Option<String>,
    /// Append to this file instead of printing. It must not contain any of these servers yet.
    #[arg(long, value_name = "FILE")]
    write: Option<std::path::PathBuf>,
}

impl Import {
    pub(crate) fn run(self, context: &Context<'_>) -> anyhow::Result<ExitCode> {
        let Some(source) = &self.source else { return Err(without_source().into()) };
        let (text, notes) = import_toml(source, &Env::process())?;
        if context.ui.json && self.write.is_none() {
            Ui::json(json!({"schema": 1, "toml": text, "notes": notes}));
            return Ok(ExitCode::SUCCESS);
        }
        for note in &notes {
            context.ui.warn(note);
        }
        let Some(file) = self.write else {
            Ui::words(text.trim_end());
            return Ok(ExitCode::SUCCESS);
        };
        append(&file, &text)?;
        context.ui.status("Wrote", file.display().to_string());
        Ok(ExitCode::SUCCESS)
    }
}

/// The error for a missing SOURCE, which names the files of this folder that can be read.
fn without_source() -> Error {
    let found = foreign_files(Env::process().folder());
    let mut commands = found.iter().map(|file| format!("toolcrib import {} > servers.toml", file.display()));
    let help = match commands.next() {
        Some(first) => std::iter::once(first).chain(commands).collect::<Vec<_>>().join(", or "),
        None => "name a file, such as .mcp.json, or a client: toolcrib import claude-desktop > servers.toml"
            .to_owned(),
    };
    Error::input("`import` reads the file of another program, and none is named", Some(help))
}

/// Appends the servers to a file, or fails if it already has one of them.
fn append(file: &Path, text: &str) -> Result<(), Error> {
    let written = |error| Error::io(format!("could not write {}", file.display()), error);
    // A new file is for its owner alone: the source may have keys written out.
    let mut open =
        OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(file).map_err(written)?;
    let mut before = String::new();
    open.read_to_string(&mut before).map_err(written)?;
    let servers = |text: &str| -> Result<Vec<String>, Error> {
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
            let why = error.message().lines().next().unwrap_or_default();
            Error::input(format!("cannot add servers to {}: {why}", file.display()), None)
        })?;
        let servers = table.get("servers").and_then(toml::Value::as_table);
        Ok(servers.map(|servers| servers.keys().cloned().collect()).unwrap_or_default())
    };
    let known = servers(&before)?;
    let twice: Vec<String> = servers(text)?.into_iter().filter(|name| known.contains(name)).collect();
    if !twice.is_empty() {
        let what = format!("{} has these servers already: {}", file.display(), twice.join(", "));
        let help = "nothing was written: take them out of one of the files".to_owned();
        return Err(Error::input(what, Some(help)));
    }
    let gap = if before.is_empty() || before.ends_with('\n') { "" } else { "\n" };
    open.write_all(format!("{gap}{text}").as_bytes()).map_err(written)
}
