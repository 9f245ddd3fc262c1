//! `toolcrib-lab bench close`: how long it takes to end servers that refuse to end, few and many.

use std::{num::NonZeroUsize, process::ExitCode, time::Duration};

use clap::Args;
use serde_json::json;
use toolcrib::{Config, Endpoint, Manager, ServerConfig, ServerName, StdioConfig, process::StopOutcome};

use crate::{
    context::Context,
    fakes,
    ui::{Ui, at_least_one, millis, seconds},
};

#[derive(Args)]
pub(crate) struct Close {
    /// Servers to end at once, after one alone.
    #[arg(long, default_value = "100", value_name = "N", value_parser = at_least_one)]
    servers: NonZeroUsize,
}

impl Close {
    pub(super) async fn run(self, context: &Context<'_>) -> anyhow::Result<ExitCode> {
        let mut rows = Vec::new();
        for count in [1, self.servers.get()] {
            let config = Config::new((0..count).map(stubborn).collect::<Result<Vec<_>, _>>()?);
            let manager = context.start(&config).await?;
            rows.push(measure(manager, count).await?);
        }
        let grace = rows[0].grace;
        if context.ui.json {
            let rows: Vec<_> = rows
                .iter()
                .map(|row| json!({"servers": row.count, "wall_ms": millis(row.wall), "killed": row.killed}))
                .collect();
            Ui::json(json!({"schema": 1, "grace_ms": millis(grace), "rows": rows}));
            return Ok(ExitCode::SUCCESS);
        }
        Ui::data(format!("servers that ignore stdin's end and SIGTERM; grace {}", seconds(grace)));
        Ui::data("servers  killed  closed in  above the grace");
        for row in &rows {
            let above = row.wall.saturating_sub(grace);
            Ui::data(format!(
                "{:>7}  {:>6}  {:>9}  {:>15}",
                row.count,
                row.killed,
                seconds(row.wall),
                seconds(above)
            ));
        }
        Ok(ExitCode::SUCCESS)
    }
}

struct Row {
    count: usize,
    grace: Duration,
    wall: Duration,
    killed: usize,
}

async fn measure(manager: Manager, count: usize) -> anyhow::Result<Row> {
    anyhow::ensure!(manager.report().ready() == count, "only {} servers came up", manager.report().ready());
    let report = manager.shutdown().await;
    anyhow::ensure!(report.survivors.is_empty(), "survivors: {:?}", report.survivors);
    let stop = toolcrib::config::StopGrace::default();
    let killed = report.servers.iter().filter(|row| row.outcome == StopOutcome::Killed).count();
    Ok(Row { count, grace: stop.eof + stop.term, wall: report.wall, killed })
}

/// A shell that ignores SIGTERM, which its children inherit, and goes on when its server has left.
fn stubborn(number: usize) -> anyhow::Result<ServerConfig> {
    let script = "trap '' TERM; \"$@\"; while :; do sleep 60; done";
    let (program, words) = fakes::command(&["baseline"])?;
    let shell = ["-c", script, "sh", &program.display().to_string()].map(str::to_owned);
    let arguments = shell.into_iter().chain(words).collect();
    let mut command = StdioConfig::new("/bin/sh", arguments, std::env::temp_dir());
    command.set_env("PATH", std::env::var("PATH").unwrap_or_default());
    let name = ServerName::new(&format!("stubborn-{number}"))?;
    Ok(ServerConfig::new(name, Endpoint::Stdio(command)))
}
