//! `toolcrib cancel`: stops a run in a store.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::StoreArgs;
use crate::cli::{
    context::Context,
    terminal::ui::{Ui, counted},
};

#[derive(Args)]
pub(crate) struct Cancel {
    /// The name of the run.
    #[arg(value_name = "RUN")]
    name: String,
    /// Only this task of it; may be given several times.
    #[arg(long = "task", value_name = "ID")]
    tasks: Vec<String>,
    #[command(flatten)]
    store: StoreArgs,
}

impl Cancel {
    pub(crate) async fn run(self, context: &Context<'_>) -> anyhow::Result<ExitCode> {
        let queue = self.store.connect_existing().await?;
        let done = queue.cancel(&self.name, &self.tasks).await?;
        let ui = context.ui;
        let text = format!(
            "run {}: {} not to be begun, {} under way, {} had ended",
            self.name,
            counted(done.cancelled, "task"),
            done.under_way,
            done.ended
        );
        ui.status("Cancelled", text);
        if done.under_way > 0 {
            ui.status("Stopping", "what is under way: its workers do so within seconds");
        }
        if ui.json {
            Ui::json(
                json!({"schema": 1, "run": self.name, "cancelled": done.cancelled, "under_way": done.under_way,
                "ended": done.ended}),
            );
        }
        Ok(ExitCode::SUCCESS)
    }
}
