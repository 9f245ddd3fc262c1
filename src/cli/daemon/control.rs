//! `toolcrib start`, `stop`, `restart` and `wait`: single servers of the daemon.

use std::{process::ExitCode, time::Duration};

use clap::Args;
use serde_json::json;
use toolcrib::{Error, ServerStatus, daemon::DaemonClient, session::ServerState};

use super::args;
use crate::cli::{
    context::Context,
    terminal::ui::{Ui, some_time},
};

#[derive(Args)]
pub(crate) struct Servers {
    /// Names or patterns.
    #[arg(required = true, value_name = "SERVER")]
    servers: Vec<String>,
}

#[derive(Args)]
pub(crate) struct Wait {
    /// Only these servers (names or patterns) [default: all that are not stopped].
    #[arg(value_name = "SERVER")]
    servers: Vec<String>,
    /// Give up after this time, such as 30s [default: never].
    #[arg(long, value_parser = some_time, value_name = "DURATION")]
    timeout: Option<Duration>,
}

impl Servers {
    pub(crate) fn start(&self, context: &Context<'_>) -> anyhow::Result<ExitCode> {
        self.ask(context, args::required_by_hand(context)?, DaemonClient::start, ServerStatus::is_there)
    }

    pub(crate) fn stop(&self, context: &Context<'_>) -> anyhow::Result<ExitCode> {
        // It starts nothing, and is no use of an edited file.
        self.ask(context, args::required(context)?, DaemonClient::stop, |row| {
            row.state == ServerState::Stopped
        })
    }

    pub(crate) fn restart(&self, context: &Context<'_>) -> anyhow::Result<ExitCode> {
        self.ask(context, args::required_by_hand(context)?, DaemonClient::restart, ServerStatus::is_there)
    }

    fn ask(
        &self,
        context: &Context<'_>,
        mut daemon: DaemonClient,
        ask: impl Fn(&mut DaemonClient, Vec<String>) -> Result<Vec<ServerStatus>, Error>,
        good: impl Fn(&ServerStatus) -> bool,
    ) -> anyhow::Result<ExitCode> {
        let rows = ask(&mut daemon, self.servers.clone());
        daemon.take_notes().iter().for_each(|note| context.ui.warn(note));
        Ok(show(context.ui, &rows?, good))
    }
}

impl Wait {
    pub(crate) fn run(&self, context: &Context<'_>) -> anyhow::Result<ExitCode> {
        let rows = args::required(context)?.wait(self.servers.clone(), self.timeout)?;
        Ok(show(context.ui, &rows, ServerStatus::is_there))
    }
}

/// How the servers are now. The code says whether all are as they should be.
fn show(ui: &Ui, rows: &[ServerStatus], good: impl Fn(&ServerStatus) -> bool) -> ExitCode {
    if ui.json {
        Ui::json(json!({"schema": 1, "servers": rows}));
    }
    for row in rows {
        match &row.error {
            _ if row.state == ServerState::Stopped => ui.status("Stopped", row.name.as_str()),
            Some(error) => ui.failure("Failed", error, true),
            None => {
                let pid = row.pid.map_or_else(String::new, |pid| format!("   pid {pid}"));
                let era = row.era.as_deref().unwrap_or_default();
                let tools = if row.tools == 1 { "tool " } else { "tools" };
                let text = format!("{:<20} {:>3} {tools}{pid}   {era}", row.name, row.tools);
                let verb = match row.state {
                    ServerState::Ready | ServerState::Busy => "Ready",
                    ServerState::Parked => "Parked",
                    _ => "Waiting",
                };
                ui.status(verb, text.trim_end());
            }
        }
    }
    if rows.iter().all(good) { ExitCode::SUCCESS } else { ExitCode::from(4) }
}
