//! `toolcrib doctor`: what this machine supports, and what prevents servers from starting.

use std::{process::ExitCode, sync::Arc};

use clap::Args;
use serde_json::json;
use toolcrib::{
    Config, Env,
    doctor::{self, Finding, Mark},
    process::Support,
};

use crate::cli::{
    context::Context,
    terminal::{
        output,
        ui::{Ui, exit_code, last_words},
    },
    workers::CheckedStore,
};

#[derive(Args)]
pub(crate) struct Doctor {
    /// Only these servers (names or patterns): also start them, and report how they start and stop.
    servers: Vec<String>,
    /// Start all servers.
    #[arg(long, conflicts_with = "servers")]
    deep: bool,
    #[command(flatten)]
    store: CheckedStore,
}

impl Doctor {
    pub(crate) async fn run(self, context: &Context<'_>) -> anyhow::Result<ExitCode> {
        let support = Support::detect();
        let mut findings = doctor::machine(&support);
        let starts = self.deep || !self.servers.is_empty();
        match if starts { context.load() } else { context.look() } {
            Err(error) => findings.push(Finding::fail("config", Arc::new(error))),
            Ok(mut config) => {
                Context::narrow(&mut config, &self.servers)?;
                findings.extend(doctor::configuration(&config));
                findings.extend(doctor::trust(&config, &Env::process()));
                if starts {
                    self.start(context, config, &mut findings).await?;
                }
            }
        }
        findings.extend(doctor::orphans());
        findings.extend(self.store.check().await?);
        print(context.ui, &support, &findings);
        let code = findings.iter().find_map(|finding| finding.error.as_deref()).map_or(0, exit_code);
        Ok(ExitCode::from(code))
    }

    /// Starts servers and stops them again.
    async fn start(
        &self,
        context: &Context<'_>,
        mut config: Config,
        findings: &mut Vec<Finding>,
    ) -> anyhow::Result<()> {
        config.servers.retain(|_, entry| entry.server.is_ok());
        config.start_all();
        for entry in config.servers.values_mut() {
            // Every one of them is to be looked at, not only the first that is missing.
            entry.required = false;
        }
        let manager = context.start(&config, |_| {}).await?;
        findings.extend(doctor::started(manager.report()));
        match context.stop(manager).await {
            Ok(report) => findings.extend(doctor::stopped(&report)),
            Err(error) => findings.push(Finding::fail("teardown", Arc::new(error))),
        }
        Ok(())
    }
}

fn print(ui: &Ui, support: &Support, findings: &[Finding]) {
    if ui.json {
        let rows: Vec<_> = findings
            .iter()
            .map(|row| {
                let stderr = row.error.as_ref().map_or(&[][..], |error| error.stderr_tail());
                json!({"mark": row.mark.name(), "subject": row.subject, "text": row.text, "stderr_tail": stderr,
                    "help": row.help})
            })
            .collect();
        return Ui::json(json!({"schema": 1, "support": support, "findings": rows}));
    }
    for row in findings {
        Ui::finding(row.mark == Mark::Ok, row.mark == Mark::Warn, row.mark.name(), &row.subject, &row.text);
        if let Some(error) = &row.error {
            for line in last_words(error.stderr_tail(), error.stderr_line()) {
                Ui::data(format!("      {:<16} | {}", "", output::one_line(line)));
            }
        }
        if let Some(help) = &row.help {
            Ui::data(format!("      {:<16} help: {help}", ""));
        }
    }
}
