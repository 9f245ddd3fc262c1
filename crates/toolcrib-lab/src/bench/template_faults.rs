//! `toolcrib-lab bench template-faults`: how long servers take to start while their template is killed or stopped.

use std::{
    num::NonZeroUsize,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use clap::Args;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use toolcrib::{
    Config, Endpoint, Loan, Manager, ServerConfig, ServerName, StdioConfig,
    cli_support::bench::Scratch,
    config::{Scope, TemplatePackages},
    manager::Borrower,
    session::ServerState,
};

use crate::{
    context::Context,
    proc::beginning,
    ui::{Ui, at_least_one, millis},
};

/// The most time that a fall-back may cost, as docs/templates.md says.
const FALL_BACK: Duration = Duration::from_millis(50);
/// How long all starts of a round may take.
const LIMIT: Duration = Duration::from_secs(120);
/// Starts one after the other until there is a template: the first one is an ordinary one, the next ones are quicker than it.
const WARM_UP: usize = 3;

#[derive(Args)]
pub(crate) struct TemplateFaults {
    /// The Python of an environment with mcp-server-time: what tests/servers/install.sh makes.
    #[arg(long, default_value = "tests/servers/venv/bin/python", value_name = "PATH")]
    python: PathBuf,
    /// Servers that start at once.
    #[arg(long, default_value = "12", value_name = "N", value_parser = at_least_one)]
    servers: NonZeroUsize,
    /// Rounds of each: ordinary starts, a template that is killed, one that is stopped.
    #[arg(long, default_value = "3", value_name = "N", value_parser = at_least_one)]
    rounds: NonZeroUsize,
    /// Exit with code 1 if a start beside a fault takes 50 ms longer than an ordinary one: the middle of all, and the slowest.
    #[arg(long)]
    check: bool,
}

/// The starts of all rounds of one kind.
#[derive(Default)]
struct Starts {
    /// Times from the first loan of its round until it was ready.
    times: Vec<Duration>,
}

impl Starts {
    fn slowest(&self) -> Duration {
        self.times.iter().max().copied().unwrap_or_default()
    }

    fn median(&self) -> Duration {
        let mut times = self.times.clone();
        times.sort_unstable();
        times.get(times.len() / 2).copied().unwrap_or_default()
    }
}

impl TemplateFaults {
    pub(super) async fn run(self, context: &Context<'_>) -> anyhow::Result<ExitCode> {
        let python = std::path::absolute(&self.python).with_context(|| self.python.display().to_string())?;
        let scratch = Scratch::new()?;
        let cache = scratch.file("cache");
        let kinds = [("ordinary", None), ("killed", Some(Signal::KILL)), ("stopped", Some(Signal::STOP))];
        let mut starts = kinds.map(|_| Starts::default());
        for round in 1..=self.rounds.get() {
            for ((name, signal), starts) in kinds.iter().zip(&mut starts) {
                anyhow::ensure!(!context.cancel.is_cancelled(), "cancelled");
                context.ui.status("Starting", format!("{} servers, {name}, round {round}", self.servers));
                self.round(&python, &cache, *signal, starts).await?;
            }
        }
        let [ordinary, faults @ ..] = &starts;
        if context.ui.json {
            let row = |starts: &Starts| json!({"median_ms": millis(starts.median()), "slowest_ms": millis(starts.slowest())});
            let [ordinary, killed, stopped] = starts.each_ref().map(row);
            Ui::json(
                json!({"schema": 1, "servers": self.servers, "rounds": self.rounds, "ordinary": ordinary,
                "killed": killed, "stopped": stopped}),
            );
        } else {
            Ui::data(format!("{:<30} {:>10} {:>10}", "starts beside a template", "median", "slowest"));
            for ((name, _), starts) in kinds.iter().zip(&starts) {
                let (median, slowest) = (millis(starts.median()), millis(starts.slowest()));
                Ui::data(format!("{name:<30} {median:>8.0}ms {slowest:>8.0}ms"));
            }
        }
        let late = faults.iter().any(|starts| {
            starts.slowest() > ordinary.slowest() + FALL_BACK
                || starts.median() > ordinary.median() + FALL_BACK
        });
        if late {
            let fall_back = millis(FALL_BACK);
            context.ui.bad(
                "late",
                format!("starts beside a fault took {fall_back:.0} ms longer than ordinary ones"),
            );
        }
        Ok(if late && self.check { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    /// All starts of one round, half of them before the fault.
    async fn round(
        &self,
        python: &Path,
        cache: &Path,
        signal: Option<Signal>,
        starts: &mut Starts,
    ) -> anyhow::Result<()> {
        let arguments = ["-m", "mcp_server_time", "--local-timezone=UTC"].map(str::to_owned);
        let mut child = StdioConfig::new(python, arguments.to_vec(), "/");
        child.set_env("PATH", std::env::var("PATH").unwrap_or_default());
        child.template = if signal.is_some() { TemplatePackages::All } else { TemplatePackages::Never };
        let mut server = ServerConfig::new(ServerName::new("time")?, Endpoint::Stdio(child));
        server.scope = Scope::Task;
        let mut config = Config::new([server]);
        config.cache_folder = Some(cache.to_owned());
        let manager = Manager::start(&config).await?;
        let template = match signal {
            Some(_) => Some(warmed_up(&manager, python).await?),
            None => {
                // The first loan gets the server that told its tools when the manager started.
                until_ready(&manager.lend(Borrower::Task)).await?;
                None
            }
        };
        let began = Instant::now();
        let mut loans: Vec<Loan> =
            (0..self.servers.get() / 2).map(|_| manager.lend(Borrower::Task)).collect();
        if let (Some(signal), Some(template)) = (signal, template) {
            // So that some have asked the template.
            tokio::time::sleep(Duration::from_millis(2)).await;
            kill_process(template, signal)?;
        }
        loans.extend((loans.len()..self.servers.get()).map(|_| manager.lend(Borrower::Task)));
        let mut waiting: Vec<usize> = (0..loans.len()).collect();
        while !waiting.is_empty() {
            let mut broken = None;
            waiting.retain(|at| {
                let status = loans[*at].toolbox().status();
                broken = broken
                    .take()
                    .or_else(|| status.iter().find(|row| row.state == ServerState::Failed).cloned());
                let ready = status.iter().all(|row| row.state == ServerState::Ready);
                if ready {
                    starts.times.push(began.elapsed());
                }
                !ready
            });
            anyhow::ensure!(broken.is_none(), "a server does not start: {broken:?}");
            anyhow::ensure!(began.elapsed() < LIMIT, "not ready after {} s", LIMIT.as_secs());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        drop(loans);
        let survivors = manager.shutdown().await.survivors;
        anyhow::ensure!(survivors.is_empty(), "processes are left: {survivors:?}");
        Ok(())
    }
}

async fn until_ready(loan: &Loan) -> anyhow::Result<()> {
    let began = Instant::now();
    while !loan.toolbox().status().iter().all(|row| row.state == ServerState::Ready) {
        anyhow::ensure!(began.elapsed() < LIMIT, "not ready after {} s", LIMIT.as_secs());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}

/// The template of servers of `python`, when there is one and it was used.
async fn warmed_up(manager: &Manager, python: &Path) -> anyhow::Result<Pid> {
    let began = Instant::now();
    let mut loans = 0;
    loop {
        until_ready(&manager.lend(Borrower::Task)).await?;
        anyhow::ensure!(began.elapsed() < LIMIT, "there is no template after {} s", LIMIT.as_secs());
        loans += 1;
        if let Some(template) = template_of(python)
            && loans >= WARM_UP
        {
            return Ok(template);
        }
    }
}

fn template_of(python: &Path) -> Option<Pid> {
    let line = format!("toolcrib-template\0{}\0", python.display());
    let entries = std::fs::read_dir("/proc").ok()?.flatten();
    let mut ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let found =
        ids.find(|pid| beginning(format!("/proc/{pid}/cmdline")).is_ok_and(|found| found == line.as_bytes()));
    Pid::from_raw(found?)
}
