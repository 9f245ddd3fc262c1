//! `toolcrib schema`: prints the JSON Schema of servers.toml, or of a line of a task file, for editors.

use std::process::ExitCode;

use clap::{Args, ValueEnum};

use crate::cli::terminal::stdout;

#[derive(Args)]
pub(crate) struct Schema {
    /// The files that it describes: servers.toml, or task files.
    #[arg(value_enum, value_name = "FILES", default_value_t)]
    of: Files,
}

#[derive(Clone, Copy, Default, ValueEnum)]
enum Files {
    #[default]
    Servers,
    Tasks,
}

impl Files {
    /// The schema. Tests make it from the code that reads such a file, and keep it equal.
    fn schema(self) -> &'static str {
        match self {
            Self::Servers => include_str!("../../../docs/schema/servers.schema.json"),
            Self::Tasks => include_str!("../../../docs/schema/tasks.schema.json"),
        }
    }
}

impl Schema {
    pub(crate) fn run(&self) -> ExitCode {
        // It is JSON with and without --json.
        stdout::print_bytes(self.of.schema().as_bytes());
        ExitCode::SUCCESS
    }
}
