//! `toolcrib down`: the end of daemons, verified.

use std::{process::ExitCode, time::Duration};

use clap::Args;
use serde_json::json;
use toolcrib::{DaemonClient, DaemonPlace, Env, Error, StopReport};

use super::{
    context::Context,
    reach,
    ui::{Ui, millis},
};

#[derive(Args)]
pub(super) struct Down {
    /// Every daemon of this user, whatever its configuration.
    #[arg(long)]
    all: bool,
    /// Let calls under way go on for so long, say 10s; no new ones are taken.
    #[arg(long, value_parser = humantime::parse_duration, value_name = "DURATION")]
    grace: Option<Duration>,
}

impl Down {
    pub(super) fn run(&self, context: &Context<'_>) -> anyhow::Result<ExitCode> {
        let ui = context.ui;
        let places = match self.all {
            true => DaemonPlace::all(&Env::process())?,
            false => vec![reach::place(context)?.0],
        };
        let mut daemons = Vec::new();
        for place in places {
            match DaemonClient::connect(&place)? {
                Some(client) => daemons.push(client),
                None if place.clear() => ui.status("Removed", "the socket of a daemon that was killed"),
                None => {}
            }
        }
        if daemons.is_empty() {
            match ui.json {
                true => Ui::data(json!({"schema": 1, "daemons": [], "processes_left": 0}).to_string()),
                false => ui.status("Finished", "no daemon runs, 0 processes left"),
            }
            return Ok(ExitCode::SUCCESS);
        }
        self.end(ui, daemons)
    }

    /// Ends all of them, even if one of them resists.
    fn end(&self, ui: &Ui, daemons: Vec<DaemonClient>) -> anyhow::Result<ExitCode> {
        let (mut rows, mut left, mut trouble) = (Vec::new(), Vec::new(), None);
        for daemon in daemons {
            let greeting = daemon.greeting().clone();
            ui.status("Stopping", format!("daemon {} of {}", greeting.pid, greeting.config.display()));
            let mut row = json!({"pid": greeting.pid, "config": greeting.config});
            match daemon.down(self.grace) {
                Ok(report) => {
                    row["servers"] = json!(report.servers);
                    row["ms"] = json!(millis(report.wall));
                    show(ui, &report);
                }
                Err(Error::TeardownIncomplete { pids }) => left.extend(pids),
                Err(error) => trouble = Some(error),
            }
            rows.push(row);
        }
        if ui.json {
            Ui::data(json!({"schema": 1, "daemons": rows, "processes_left": left.len()}).to_string());
        }
        match trouble {
            _ if !left.is_empty() => Err(Error::TeardownIncomplete { pids: left }.into()),
            Some(error) => Err(error.into()),
            None => Ok(ExitCode::SUCCESS),
        }
    }
}

fn show(ui: &Ui, report: &StopReport) {
    if !ui.json {
        report.servers.iter().for_each(|row| ui.stopped(row));
        ui.torn_down(report);
    }
}
