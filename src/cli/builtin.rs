//! `toolcrib builtin NAME`: a built-in tool server as a process of its own.

use std::process::ExitCode;

use clap::Args;

use super::{chaos, context::Context};

#[derive(Args)]
pub(super) struct Builtin {
    /// time (zones and dates), files (read-only, below one folder), calc (exact arithmetic), search (the web,
    /// through an engine), fetch (pages of the web as text), chaos (breaks in a chosen way, to see what a client
    /// does then), or floor (does next to nothing, to measure a client).
    name: String,
    /// Arguments of the server: for `files` the folder [default: the current one]; for `search` and `fetch`
    /// name=value as in servers.toml, for `search` after the engine's name and with the key better in a variable
    /// such as SERPER_API_KEY; for `chaos` what is to go wrong, and `toolcrib builtin chaos list` shows what can.
    args: Vec<String>,
}

impl Builtin {
    pub(super) async fn run(self, context: &Context<'_>) -> anyhow::Result<ExitCode> {
        if self.name == "chaos" {
            let running = tokio::task::spawn_blocking(move || chaos::run(&self.args));
            // A signal ends it at any moment.
            return match context.cancel.run_until_cancelled(running).await {
                Some(outcome) => outcome?,
                None => Ok(ExitCode::SUCCESS),
            };
        }
        let here = std::env::current_dir()?;
        toolcrib::serve_builtin(&self.name, &self.args, &here).await?;
        Ok(ExitCode::SUCCESS)
    }
}
