//! `toolcrib bench`: what toolcrib promises, measured. `init` is here: how long servers take to come up, phase
//! by phase, and what bounds it.

mod close;
mod kills;
mod soak;
mod victims;

use std::{num::NonZeroUsize, process::ExitCode, time::Duration};

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use toolcrib::{Config, LaunchReport, Phases, ServerName, StartReport};

use super::{
    context::Context,
    ui::{Ui, millis, seconds},
};

#[derive(Subcommand)]
pub(super) enum Bench {
    /// Time from nothing to all tools known, against starting one server after the other.
    Init(Init),
    /// Time to end servers that ignore end of input and SIGTERM: one, and many at once.
    Close(close::Close),
    /// Servers killed at random under many callers: is every call accounted for, and none run twice?
    Kills(kills::Kills),
    /// Calls with random faults for a long time: does the owner stay as small as it was?
    Soak(soak::Soak),
}

#[derive(Args)]
pub(super) struct Init {
    /// Starts to measure in each mode.
    #[arg(long, default_value = "3", value_name = "N")]
    runs: NonZeroUsize,
    /// Servers that may start at once [default: as configured].
    #[arg(long, short, value_name = "N")]
    jobs: Option<NonZeroUsize>,
    /// Skip the measured sequential baseline.
    #[arg(long)]
    no_baseline: bool,
}

/// One measured start of all servers.
struct Run {
    report: StartReport,
    cpu: Duration,
    rss: u64,
}

struct Mode {
    name: &'static str,
    runs: Vec<Run>,
}

impl Bench {
    pub(super) async fn run(self, context: &Context<'_>) -> anyhow::Result<ExitCode> {
        match self {
            Self::Init(init) => init.run(context).await,
            Self::Close(close) => close.run(context).await,
            Self::Kills(kills) => kills.run(context).await,
            Self::Soak(soak) => soak.run(context).await,
        }
    }
}

impl Init {
    async fn run(self, context: &Context<'_>) -> anyhow::Result<ExitCode> {
        let mut config = context.load()?;
        config.start_jobs = self.jobs.or(config.start_jobs);
        let mut modes = Vec::new();
        if !self.no_baseline {
            // Run, not added up: bars measured in parallel are inflated by contention.
            let mut one = config.clone();
            one.start_jobs = Some(NonZeroUsize::MIN);
            modes.push(self.measure(context, "sequential", &one).await?);
        }
        modes.push(self.measure(context, "parallel", &config).await?);
        let bound = bound(&modes);
        if context.ui.json {
            Ui::data(self.document(&config, &modes, &bound).to_string());
        } else {
            self.print(&config, &modes, &bound);
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn measure(
        &self,
        context: &Context<'_>,
        name: &'static str,
        config: &Config,
    ) -> anyhow::Result<Mode> {
        let mut runs = Vec::new();
        for number in 1..=self.runs.get() {
            let manager = context.start(config, |_| {}).await?;
            let report = manager.report().clone();
            let usage = manager.usage();
            context.ui.status("Measured", format!("{name} {number}/{}: {}", self.runs, seconds(report.wall)));
            context.stop(manager).await?;
            runs.push(Run { report, cpu: usage.cpu, rss: usage.rss });
        }
        Ok(Mode { name, runs })
    }

    fn document(&self, config: &Config, modes: &[Mode], bound: &Bound) -> Value {
        let modes: Vec<Value> = modes
            .iter()
            .map(|mode| {
                let servers: Vec<Value> = config.servers.keys().map(|name| server_json(mode, name)).collect();
                json!({"mode": mode.name, "ready": mode.ready(), "total": config.servers.len(),
                    "wall_ms": spread_json(&mode.walls()), "cpu_ms": millis(mode.cpu()),
                    "peak_rss_bytes": mode.rss(), "first_tool_ms": mode.first().map(millis),
                    "servers": servers})
            })
            .collect();
        json!({"schema": 1, "runs": self.runs, "jobs": config.start_jobs, "modes": modes,
            "lower_bound_ms": millis(bound.time), "bottleneck": bound.name})
    }

    fn print(&self, config: &Config, modes: &[Mode], bound: &Bound) {
        let jobs =
            config.start_jobs.map_or_else(|| "no limit".to_owned(), |jobs| format!("{jobs} at a time"));
        Ui::data(format!(
            "{} servers, {} runs each, {jobs}, {} cores",
            config.servers.len(),
            self.runs,
            cores()
        ));
        Ui::data("mode        ready    min      median   max      first    cpu      rss");
        let base = modes.iter().find(|mode| mode.name == "sequential").map(|mode| median(&mode.walls()));
        for mode in modes {
            let walls = mode.walls();
            let gain = base.filter(|_| mode.name != "sequential").map_or_else(String::new, |base| {
                format!("  {:.1}x", base.as_secs_f64() / median(&walls).as_secs_f64())
            });
            Ui::data(format!(
                "{:<11} {:<8} {:<8} {:<8} {:<8} {:<8} {:<8} {}M{gain}",
                mode.name,
                format!("{}/{}", mode.ready(), config.servers.len()),
                seconds(walls[0]),
                seconds(median(&walls)),
                seconds(walls[walls.len() - 1]),
                mode.first().map_or_else(|| "-".to_owned(), seconds),
                seconds(mode.cpu()),
                mode.rss() >> 20,
            ));
        }
        Ui::data(format!("lower bound {} ({})", seconds(bound.time), bound.name));
        let Some(mode) = modes.last() else { return };
        Ui::data("server            median   queue    spawn    first byte  handshake  list     launch");
        for name in config.servers.keys() {
            let Some(phases) = mode.phases(name) else {
                Ui::data(format!("{name:<17} failed"));
                continue;
            };
            Ui::data(format!(
                "{name:<17} {:<8} {:<8} {:<8} {:<11} {:<10} {:<8} {}",
                seconds(median(&mode.totals(name))),
                seconds(phases.queue),
                seconds(phases.spawn),
                seconds(phases.first_byte),
                seconds(phases.handshake),
                seconds(phases.list),
                mode.launch(name).map_or("-", |launch| if launch.direct { "direct" } else { launch.runner }),
            ));
        }
    }
}

impl Mode {
    fn walls(&self) -> Vec<Duration> {
        sorted(self.runs.iter().map(|run| run.report.wall))
    }

    fn totals(&self, name: &ServerName) -> Vec<Duration> {
        sorted(self.starts(name).map(|phases| phases.total()))
    }

    fn starts<'a>(&'a self, name: &'a ServerName) -> impl Iterator<Item = Phases> + 'a {
        let rows = self.runs.iter().flat_map(|run| &run.report.servers);
        rows.filter(move |row| row.name == *name)
            .filter_map(|row| row.outcome.as_ref().ok())
            .map(|ready| ready.phases)
    }

    /// The phases of the run with the median total.
    fn phases(&self, name: &ServerName) -> Option<Phases> {
        let mut starts: Vec<Phases> = self.starts(name).collect();
        starts.sort_by_key(Phases::total);
        starts.get(starts.len() / 2).copied()
    }

    /// How it was started last, if its command is a package runner.
    fn launch(&self, name: &ServerName) -> Option<&LaunchReport> {
        let rows = self.runs.last().into_iter().flat_map(|run| &run.report.servers);
        rows.filter(|row| row.name == *name).find_map(|row| row.outcome.as_ref().ok()?.launch.as_ref())
    }

    fn ready(&self) -> usize {
        self.runs.iter().map(|run| run.report.ready()).min().unwrap_or(0)
    }

    /// When the first server was ready, in the best run.
    fn first(&self) -> Option<Duration> {
        let rows = self.runs.iter().flat_map(|run| &run.report.servers);
        rows.filter(|row| row.outcome.is_ok()).map(|row| row.took).min()
    }

    /// CPU time of the servers until all were ready, in the leanest run.
    fn cpu(&self) -> Duration {
        self.runs.iter().map(|run| run.cpu).min().unwrap_or_default()
    }

    fn rss(&self) -> u64 {
        self.runs.iter().map(|run| run.rss).max().unwrap_or(0)
    }
}

/// What no start can beat, and why.
struct Bound {
    time: Duration,
    name: String,
}

/// The slower of: the slowest server by itself, all CPU time over all cores.
fn bound(modes: &[Mode]) -> Bound {
    let cpu = modes.iter().map(Mode::cpu).min().unwrap_or_default();
    let shared = cpu / u32::try_from(cores()).unwrap_or(1);
    let rows = modes.iter().flat_map(|mode| &mode.runs).flat_map(|run| &run.report.servers);
    let mut alone: std::collections::BTreeMap<&ServerName, Duration> = std::collections::BTreeMap::new();
    for row in rows {
        if let Ok(ready) = &row.outcome {
            let own = ready.phases.total().saturating_sub(ready.phases.queue);
            alone.entry(&row.name).and_modify(|best| *best = own.min(*best)).or_insert(own);
        }
    }
    match alone.into_iter().max_by_key(|(_, own)| *own) {
        Some((name, own)) if own > shared => Bound { time: own, name: format!("server {name}") },
        _ => Bound { time: shared, name: format!("cpu: {} over {} cores", seconds(cpu), cores()) },
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

fn sorted(times: impl Iterator<Item = Duration>) -> Vec<Duration> {
    let mut times: Vec<Duration> = times.collect();
    times.sort();
    times
}

/// The middle of sorted times; zero of none.
fn median(times: &[Duration]) -> Duration {
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn spread_json(times: &[Duration]) -> Value {
    let at = |index: Option<usize>| index.and_then(|index| times.get(index)).map(|time| millis(*time));
    json!({"min": at(Some(0)), "median": at(Some(times.len() / 2)), "max": at(times.len().checked_sub(1))})
}

fn server_json(mode: &Mode, name: &ServerName) -> Value {
    match mode.phases(name) {
        Some(phases) => json!({"name": name, "state": "ready", "phases_ms": phases,
            "total_ms": spread_json(&mode.totals(name)), "launch": mode.launch(name)}),
        None => json!({"name": name, "state": "failed", "phases_ms": null, "total_ms": null,
            "launch": null}),
    }
}
