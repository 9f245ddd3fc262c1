//! Checks what a machine supports, and what prevents each server from starting, as [`Finding`]s.
//!
//! # Example
//! ```no_run
//! # async fn example() -> toolcrib::Result<()> {
//! use toolcrib::{Config, Env, Manager, process::Support, doctor};
//!
//! let config = Config::load(None, &Env::process())?;
//! let mut findings = doctor::machine(&Support::detect());
//! findings.extend(doctor::configuration(&config));
//! // Starting the servers says more.
//! let manager = Manager::start(&config).await?;
//! findings.extend(doctor::started(manager.report()));
//! findings.extend(doctor::stopped(&manager.shutdown().await));
//! for finding in findings {
//!     println!("{:?} {}: {}", finding.mark, finding.subject, finding.text);
//! }
//! # Ok(())
//! # }
//! ```

mod login;
mod machine;
mod orphans;
#[cfg(feature = "nats")]
pub mod store;
mod templates;
mod trust;

use std::{path::PathBuf, sync::Arc, time::Duration};

use self::templates::TemplateForecasts;
pub use self::trust::trust;
pub use self::{machine::machine, orphans::orphans};
use crate::{
    config::{Config, Endpoint, LlmConfig, Order, ServerEntry, StdioConfig},
    error::{Error, ErrorCode, Phase, Result, ServerError},
    process::{StopOutcome, TeardownScope, check_bounds, find_program},
    start::{StartReport, StopReport},
    text::{counted, seconds},
    tool::ServerName,
};

/// The verdict of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mark {
    /// All is as it should be.
    Ok,
    /// It works, and less is promised than elsewhere.
    Warn,
    /// It does not work.
    Fail,
}

impl Mark {
    /// The name as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// One finding.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Finding {
    /// The verdict.
    pub mark: Mark,
    /// The subject: a server's name, or a word such as `sandbox`.
    pub subject: String,
    /// The finding, in words.
    pub text: String,
    /// Advice on what to do.
    pub help: Option<String>,
    /// The error, if there is one.
    pub error: Option<Arc<Error>>,
}

impl Finding {
    fn new(mark: Mark, subject: impl Into<String>, text: impl Into<String>) -> Self {
        Self { mark, subject: subject.into(), text: text.into(), help: None, error: None }
    }

    fn ok(subject: impl Into<String>, text: impl Into<String>) -> Self {
        Self::new(Mark::Ok, subject, text)
    }

    fn warn(subject: impl Into<String>, text: impl Into<String>) -> Self {
        Self::new(Mark::Warn, subject, text)
    }

    fn help(self, help: impl Into<String>) -> Self {
        Self { help: Some(help.into()), ..self }
    }

    /// A failure by `error`.
    pub fn fail(subject: impl Into<String>, error: Arc<Error>) -> Self {
        let causes = error.causes();
        let text = std::iter::once(error.to_string()).chain(causes).collect::<Vec<_>>().join("; ");
        Self { help: error.help(), error: Some(error), ..Self::new(Mark::Fail, subject, text) }
    }
}

/// Findings about a configuration that need no start.
pub fn configuration(config: &Config) -> Vec<Finding> {
    let file = config.file.as_ref().map(|file| file.display().to_string()).unwrap_or_default();
    let text = format!("{file} parses, {}", counted(config.servers.len(), "server"));
    let scope = TeardownScope::new(&config.guard);
    let mut findings = vec![Finding::ok("config", text)];
    let templates = TemplateForecasts::new(config, &scope);
    for (name, entry) in &config.servers {
        findings.push(configured(config, name, entry, &scope));
        findings.extend(templates.of(name, entry));
    }
    match &config.llm {
        None => {}
        Some(Ok(llm)) => model(&mut findings, llm),
        Some(Err(error)) => {
            // Only a task that asks a model needs it.
            let finding = Finding::warn("model", error.to_string());
            findings.push(Finding { help: error.help(), ..finding });
        }
    }
    findings
}

/// How servers started.
pub fn started(report: &StartReport) -> Vec<Finding> {
    let mut findings = Vec::new();
    for row in &report.servers {
        let name = row.name.as_str();
        match &row.outcome {
            Err(error) => findings.push(Finding::fail(name, error.clone())),
            Ok(ready) => {
                let phases = ready.phases;
                let template = match phases.template {
                    Duration::ZERO => String::new(),
                    waited => format!("template {}, ", seconds(waited)),
                };
                let text = format!(
                    "{}, protocol {}, ready in {} ({template}spawn {}, first byte {}, handshake {}, list {})",
                    counted(ready.tools, "tool"),
                    ready.era,
                    seconds(phases.total()),
                    seconds(phases.spawn),
                    seconds(phases.first_byte),
                    seconds(phases.handshake),
                    seconds(phases.list)
                );
                findings.push(Finding::ok(name, text));
                if ready.is_forked {
                    findings.push(Finding::ok(name, "was forked from a template"));
                }
                if let Some(why) = &ready.not_forked {
                    findings.push(Finding::ok(name, format!("was not forked from a template: {why}")));
                }
                findings.extend(ready.oddities.iter().map(|oddity| {
                    Finding::warn(name, oddity.clone()).help("toolcrib tolerates it; other clients may not")
                }));
            }
        }
    }
    findings
}

/// How servers stopped.
pub fn stopped(report: &StopReport) -> Vec<Finding> {
    let processes = report.servers.iter().filter(|row| row.pid.is_some());
    processes
        .map(|row| {
            let polite = row.outcome == StopOutcome::Exited && !row.helpers;
            let how = match row.outcome {
                StopOutcome::Exited => "exited at the end of its input",
                StopOutcome::Terminated => "had to be ended with SIGTERM",
                _ => "had to be killed",
            };
            let helpers = if row.helpers { ", and left processes behind" } else { "" };
            let mark = if polite { Mark::Ok } else { Mark::Warn };
            Finding::new(mark, row.server.as_str(), format!("{how}{helpers}, after {}", seconds(row.took)))
        })
        .collect()
}

/// How model requests are repeated and limited.
fn model(findings: &mut Vec<Finding>, llm: &LlmConfig) {
    if let Some(strategy) = &llm.strategy {
        let members: Vec<&str> =
            strategy.members.iter().filter_map(|member| member.name.as_deref()).collect();
        let order = match strategy.order {
            Order::Fallback => "falls back over",
            Order::RoundRobin { .. } => "takes turns over",
            Order::Race { .. } => "takes the first answer of",
        };
        findings.push(Finding::ok("model", format!("{}: {order} {}", llm.model, members.join(", "))));
        strategy.members.iter().for_each(|member| model(findings, member));
        return;
    }
    let named = llm.name.as_ref().map(|name| format!("{name} ({})", llm.model));
    let shown = named.as_ref().unwrap_or(&llm.model);
    findings.push(Finding::ok("model", format!("{shown}: {}", llm.retry)));
    let limits = [
        llm.max_in_flight.map(|limit| format!("{limit} at once")),
        llm.requests_per_minute.map(|limit| format!("{limit} requests a minute")),
        llm.tokens_per_minute.map(|limit| format!("{limit} tokens a minute")),
    ];
    let limits: Vec<String> = limits.into_iter().flatten().collect();
    let text =
        if limits.is_empty() { "no limit".to_owned() } else { format!("at most {}", limits.join(", ")) };
    findings.push(Finding::ok("model requests", text));
}

/// The finding about a server that needs no start.
fn configured(config: &Config, name: &ServerName, entry: &ServerEntry, scope: &TeardownScope) -> Finding {
    let server = match &entry.server {
        Ok(server) => server,
        Err(error) => return Finding::fail(name.as_str(), error.clone()),
    };
    match &server.endpoint {
        Endpoint::Stdio(command) => match startable(command, scope) {
            Ok(program) => Finding::ok(name.as_str(), program.display().to_string()),
            Err(error) => {
                let what = format!("cannot be started: {error}");
                let mut failure = ServerError::new(name.clone(), Phase::Spawn, ErrorCode::SpawnFailed, what);
                failure.help = error.help();
                Finding::fail(name.as_str(), Arc::new(failure.into()))
            }
        },
        Endpoint::Http(endpoint) => login::remote(config, name, endpoint),
        Endpoint::Builtin { .. } => Finding::ok(name.as_str(), "built in"),
        Endpoint::Local(_) => Finding::ok(name.as_str(), "part of the program"),
    }
}

/// The program of a server, if a check without a start finds that it can be started.
fn startable(command: &StdioConfig, scope: &TeardownScope) -> Result<PathBuf> {
    let program = find_program(command)?;
    check_bounds(command, scope)?;
    Ok(program)
}
