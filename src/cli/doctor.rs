//! `toolcrib doctor`: what this machine can do for servers, and what stands in the way of each.

mod machine;
mod orphans;

use std::{path::PathBuf, process::ExitCode};

use clap::Args;
use serde_json::json;
use toolcrib::{
    Config, Endpoint, Error, ErrorCode, LlmConfig, Order, Phase, ServerEntry, ServerError, ServerName,
    StdioConfig, Support, TeardownScope, check_bounds, find_program,
};

use super::{
    context::Context,
    ui::{Ui, counted, exit_code, seconds},
};

#[derive(Args)]
pub(super) struct Doctor {
    /// Start these servers too, and say how they start and stop (names or patterns).
    servers: Vec<String>,
    /// Start all of them.
    #[arg(long, conflicts_with = "servers")]
    deep: bool,
}

/// How a thing is.
#[derive(Clone, Copy, PartialEq)]
enum Mark {
    Ok,
    Warn,
    Fail,
}

/// One finding.
struct Row {
    mark: Mark,
    subject: String,
    text: String,
    help: Option<String>,
}

/// All findings, and the exit code of the first that is a failure.
#[derive(Default)]
struct Findings {
    rows: Vec<Row>,
    code: u8,
}

impl Findings {
    fn add(&mut self, mark: Mark, subject: impl Into<String>, text: impl Into<String>) -> &mut Row {
        let (subject, text) = (subject.into(), text.into());
        self.rows.push(Row { mark, subject, text, help: None });
        self.rows.last_mut().expect("it was just pushed")
    }

    fn fail(&mut self, subject: &str, error: &Error) {
        let causes = error.causes();
        let text = std::iter::once(error.to_string()).chain(causes).collect::<Vec<_>>().join("; ");
        self.add(Mark::Fail, subject, text).help = error.help();
        if self.code == 0 {
            self.code = exit_code(error);
        }
    }
}

impl Doctor {
    pub(super) async fn run(self, context: &Context<'_>) -> anyhow::Result<ExitCode> {
        let mut findings = Findings::default();
        machine::look(&mut findings, &Support::detect());
        match context.load() {
            Err(error) => findings.fail("config", &error),
            Ok(config) => {
                let file = config.file.as_ref().map(|file| file.display().to_string()).unwrap_or_default();
                findings.add(
                    Mark::Ok,
                    "config",
                    format!("{file} parses, {}", counted(config.servers.len(), "server")),
                );
                let scope = TeardownScope::new(&config.guard);
                for (name, entry) in &config.servers {
                    configured(&mut findings, name, entry, &scope);
                }
                model(&mut findings, config.llm.as_ref());
                if self.deep || !self.servers.is_empty() {
                    self.start(context, config, &mut findings).await?;
                }
            }
        }
        for orphan in orphans::find() {
            let text = format!("pid {}, {}, {}: {}", orphan.pid, orphan.age, orphan.memory, orphan.command);
            findings.add(Mark::Warn, "orphan", text).help =
                Some("it belongs to no toolcrib and was not touched; its parent has ended".to_owned());
        }
        findings.print(context.ui);
        Ok(ExitCode::from(findings.code))
    }

    /// Starts servers and stops them again.
    async fn start(
        &self,
        context: &Context<'_>,
        mut config: Config,
        findings: &mut Findings,
    ) -> anyhow::Result<()> {
        Context::narrow(&mut config, &self.servers)?;
        config.servers.retain(|_, entry| entry.server.is_ok());
        config.start_all();
        for entry in config.servers.values_mut() {
            // Every one of them is to be looked at, not only the first that is missing.
            entry.required = false;
        }
        let manager = context.start(&config, |_| {}).await?;
        let rows = manager.report().servers.clone();
        let stopped = context.stop(manager).await;
        for row in rows {
            let name = row.name.as_str();
            match &row.outcome {
                Err(error) => findings.fail(name, error),
                Ok(ready) => {
                    let phases = ready.phases;
                    let text = format!(
                        "{}, protocol {}, ready in {} (spawn {}, first byte {}, handshake {}, list {})",
                        counted(ready.tools, "tool"),
                        ready.era,
                        seconds(phases.total()),
                        seconds(phases.spawn),
                        seconds(phases.first_byte),
                        seconds(phases.handshake),
                        seconds(phases.list)
                    );
                    findings.add(Mark::Ok, name, text);
                    for oddity in &ready.oddities {
                        findings.add(Mark::Warn, name, oddity).help =
                            Some("toolcrib puts up with it; other clients may not".to_owned());
                    }
                }
            }
        }
        for row in stopped.iter().flat_map(|report| &report.servers).filter(|row| row.pid.is_some()) {
            let polite = row.outcome == toolcrib::StopOutcome::Exited && !row.helpers;
            let how = match row.outcome {
                toolcrib::StopOutcome::Exited => "left by itself at the end of its input",
                toolcrib::StopOutcome::Terminated => "had to be ended with SIGTERM",
                toolcrib::StopOutcome::Killed => "had to be killed",
            };
            let helpers = if row.helpers { ", and left processes behind" } else { "" };
            let mark = if polite { Mark::Ok } else { Mark::Warn };
            findings.add(mark, row.server.as_str(), format!("{how}{helpers}, after {}", seconds(row.took)));
        }
        if let Err(error) = stopped {
            findings.fail("teardown", &error);
        }
        Ok(())
    }
}

/// How model requests are repeated and limited.
fn model(findings: &mut Findings, llm: Option<&Result<LlmConfig, std::sync::Arc<Error>>>) {
    let llm = match llm {
        None => return,
        Some(Err(error)) => {
            // Only a task that asks a model needs it.
            findings.add(Mark::Warn, "model", error.to_string()).help = error.help();
            return;
        }
        Some(Ok(llm)) => llm,
    };
    if let Some(strategy) = &llm.strategy {
        let members: Vec<&str> =
            strategy.members.iter().filter_map(|member| member.name.as_deref()).collect();
        let order = match strategy.order {
            Order::Fallback => "falls back over",
            Order::RoundRobin { .. } => "takes turns over",
            Order::Race { .. } => "takes the first answer of",
        };
        findings.add(Mark::Ok, "model", format!("{}: {order} {}", llm.model, members.join(", ")));
        for member in &strategy.members {
            model(findings, Some(&Ok(member.clone())));
        }
        return;
    }
    let named = llm.name.as_ref().map(|name| format!("{name} ({})", llm.model));
    let shown = named.as_ref().unwrap_or(&llm.model);
    findings.add(Mark::Ok, "model", format!("{shown}: {}", llm.retry));
    let limits = [
        llm.max_in_flight.map(|limit| format!("{limit} at once")),
        llm.requests_per_minute.map(|limit| format!("{limit} requests a minute")),
        llm.tokens_per_minute.map(|limit| format!("{limit} tokens a minute")),
    ];
    let limits: Vec<String> = limits.into_iter().flatten().collect();
    let text =
        if limits.is_empty() { "no limit".to_owned() } else { format!("at most {}", limits.join(", ")) };
    findings.add(Mark::Ok, "model requests", text);
}

/// The program of a server that can be started, as far as that can be told without doing it.
fn startable(command: &StdioConfig, scope: &TeardownScope) -> Result<PathBuf, Error> {
    let program = find_program(command)?;
    check_bounds(command, scope)?;
    Ok(program)
}

/// What can be said of a server without starting it.
fn configured(findings: &mut Findings, name: &ServerName, entry: &ServerEntry, scope: &TeardownScope) {
    let server = match &entry.server {
        Ok(server) => server,
        Err(error) => return findings.fail(name.as_str(), error),
    };
    match &server.endpoint {
        Endpoint::Stdio(command) => match startable(command, scope) {
            Ok(program) => {
                findings.add(Mark::Ok, name.as_str(), program.display().to_string());
            }
            Err(error) => {
                let what = format!("cannot be started: {error}");
                let mut failure = ServerError::new(name.clone(), Phase::Spawn, ErrorCode::SpawnFailed, what);
                failure.help = error.help();
                findings.fail(name.as_str(), &failure.into());
            }
        },
        Endpoint::Http(_) => {
            findings.add(Mark::Ok, name.as_str(), "a URL");
        }
        _ => {
            findings.add(Mark::Ok, name.as_str(), "built in");
        }
    }
}

impl Findings {
    fn print(&self, ui: &Ui) {
        let word = |mark| match mark {
            Mark::Ok => "ok",
            Mark::Warn => "warn",
            Mark::Fail => "fail",
        };
        if ui.json {
            let rows: Vec<_> = self
                .rows
                .iter()
                .map(|row| json!({"mark": word(row.mark), "subject": row.subject, "text": row.text, "help": row.help}))
                .collect();
            return Ui::json(json!({"schema": 1, "support": Support::detect(), "findings": rows}));
        }
        for row in &self.rows {
            Ui::finding(
                row.mark == Mark::Ok,
                row.mark == Mark::Warn,
                word(row.mark),
                &row.subject,
                &row.text,
            );
            if let Some(help) = &row.help {
                Ui::data(format!("      {:<16} help: {help}", ""));
            }
        }
    }
}
