//! `toolcrib ps`: shows the state of the daemon's servers.

pub(crate) mod table;

use std::{process::ExitCode, thread::sleep, time::Duration};

use clap::Args;
use serde_json::{Value, json};
use toolcrib::daemon::{DaemonClient, DaemonStatus};

pub(crate) use self::table::{Sample, lines};
use super::args;
use crate::cli::{
    context::Context,
    terminal::ui::{Ui, millis},
    workers::StoreChoice,
};

/// Time between two looks.
pub(crate) const EVERY: Duration = Duration::from_secs(1);

#[derive(Args)]
pub(crate) struct Ps {
    /// Leave out no column and cut no note to fit the terminal. Elsewhere nothing is cut.
    #[arg(long)]
    wide: bool,
    /// Refresh every second, until Ctrl-C.
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    store: StoreChoice,
}

impl Ps {
    pub(crate) fn run(&self, context: &Context<'_>) -> anyhow::Result<ExitCode> {
        let width = if self.wide { None } else { Ui::width() };
        if let Some(shown) = self.store.show(context, self.watch, width) {
            return shown;
        }
        let mut daemon = DaemonLook::of(args::required(context)?);
        loop {
            if context.ui.json {
                Ui::json(daemon.document()?);
            } else {
                let lines = daemon.lines(width)?;
                if self.watch {
                    Ui::clear();
                }
                Ui::data(lines.join("\n"));
            }
            if !self.watch {
                return Ok(ExitCode::SUCCESS);
            }
            sleep(EVERY);
        }
    }
}

/// Looks at a daemon, again and again.
pub(crate) struct DaemonLook {
    daemon: DaemonClient,
    before: Option<Sample>,
}

impl DaemonLook {
    pub(crate) fn of(daemon: DaemonClient) -> Self {
        Self { daemon, before: None }
    }

    /// The table.
    pub(crate) fn lines(&mut self, width: Option<usize>) -> toolcrib::Result<Vec<String>> {
        let (status, sample) = self.look()?;
        let lines = lines(self.daemon.greeting(), &status, &sample, self.before.as_ref(), width);
        self.before = Some(sample);
        Ok(lines)
    }

    /// The same as JSON.
    pub(crate) fn document(&mut self) -> toolcrib::Result<Value> {
        let (status, sample) = self.look()?;
        let document = document(&self.daemon, &status, &sample, self.before.as_ref());
        self.before = Some(sample);
        Ok(document)
    }

    fn look(&mut self) -> toolcrib::Result<(DaemonStatus, Sample)> {
        let status = self.daemon.status()?;
        let sample = Sample::of(&status);
        Ok((status, sample))
    }
}

fn document(daemon: &DaemonClient, status: &DaemonStatus, sample: &Sample, before: Option<&Sample>) -> Value {
    let greeting = daemon.greeting();
    let rows = status.servers.iter().map(|row| {
        let mut fields = json!(row.status);
        let usage = row.usage.unwrap_or_default();
        fields["procs"] = json!(usage.processes);
        fields["cpu_ms"] = json!(millis(usage.cpu));
        fields["cpu_percent"] = json!(sample.cpu(before, row));
        fields["rss_bytes"] = json!(usage.rss);
        fields
    });
    let total = json!({"procs": status.total.processes, "rss_bytes": status.total.rss});
    let mut document = json!({"schema": 1, "servers": rows.collect::<Vec<_>>(), "total": total, "daemon": {
        "pid": greeting.pid, "toolcrib": greeting.toolcrib, "config": greeting.config,
        "edition": greeting.edition, "uptime_ms": millis(status.uptime), "idle_ms": status.idle.map(millis),
        "clients": status.clients, "rss_bytes": status.rss_bytes, "metrics": greeting.metrics}});
    if !status.templates.is_empty() {
        let rows = status.templates.iter().map(|row| {
            let mut fields = json!(row.status);
            fields["rss_bytes"] = json!(row.usage.unwrap_or_default().rss);
            fields
        });
        document["templates"] = rows.collect();
    }
    document
}
