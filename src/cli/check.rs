//! `toolcrib check`: does every server come up, and does everything go away again?

use std::process::ExitCode;

use clap::Args;

use super::{context::Context, events, up};

#[derive(Args)]
pub(super) struct Check {
    /// Only these servers (names or patterns).
    servers: Vec<String>,
    /// Exit with 4 if any server fails, required or not.
    #[arg(long)]
    strict: bool,
}

impl Check {
    pub(super) async fn run(self, context: &Context<'_>) -> anyhow::Result<ExitCode> {
        let mut config = context.load()?;
        Context::narrow(&mut config, &self.servers)?;
        config.start_all();
        let ui = context.ui;
        up::announce(ui, &config);
        if let Some(Err(error)) = &config.llm {
            ui.warn(format!("no model can be used: {error}"));
        }
        let manager = up::with_heartbeat(ui, context.start(&config, events::observer(ui))).await?;
        up::summary(ui, manager.report());
        let incomplete = manager.report().ready() < manager.report().servers.len();
        let report = context.stop(manager).await?;
        ui.torn_down(&report);
        Ok(if self.strict && incomplete { ExitCode::from(4) } else { ExitCode::SUCCESS })
    }
}
