//! `toolcrib import`: the servers of another tool, as servers.toml.

use std::{io::Write, process::ExitCode};

use clap::Args;
use toolcrib::{Env, Error, import_toml};

use super::{context::Context, ui::Ui};

#[derive(Args)]
pub(super) struct Import {
    /// A file (.mcp.json, mcp.json of VS Code, config.toml of Codex) or `codex` or `claude-desktop`.
    source: String,
    /// Append to this file in place of printing.
    #[arg(long, value_name = "FILE")]
    write: Option<std::path::PathBuf>,
}

impl Import {
    pub(super) fn run(self, context: &Context<'_>) -> anyhow::Result<ExitCode> {
        let (text, notes) = import_toml(&self.source, &Env::process())?;
        for note in &notes {
            context.ui.warn(note);
        }
        let Some(file) = self.write else {
            Ui::data(text.trim_end());
            return Ok(ExitCode::SUCCESS);
        };
        std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(&file)
            .and_then(|mut open| open.write_all(text.as_bytes()))
            .map_err(|error| Error::io(format!("could not write {}", file.display()), error))?;
        context.ui.status("Wrote", file.display().to_string());
        Ok(ExitCode::SUCCESS)
    }
}
