//! `toolcrib check`: does every server come up, and does everything go away again?

use std::process::ExitCode;

use clap::Args;

use super::{context::Context, events, up};

#[derive(Args)]
pub(super) struct Check {
    /// Only these servers (names or patterns).
    servers: Vec<String>,
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
        let report = context.stop(manager).await?;
        ui.torn_down(&report);
        Ok(ExitCode::SUCCESS)
    }
}
