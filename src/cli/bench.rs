//! `toolcrib bench`: what toolcrib promises, measured. `init` is here: how long servers take to come up, phase
//! by phase, and what bounds it.

mod bare;
mod call;
mod close;
pub(super) mod floor;
mod kills;
mod lazy;
mod soak;
mod victims;

use std::{num::NonZeroUsize, process::ExitCode, time::Duration};

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use toolcrib::{Config, Endpoint, LaunchReport, Phases, ServerName, ServerStart, StartJobs};

use super::{
    context::Context,
    ui::{Ui, millis, seconds},
};

#[derive(Subcommand)]
pub(super) enum Bench {
    /// Time from nothing to all tools known, against starting one server after the other.
    Init(Init),
    /// What a tool call costs: latency, throughput, CPU, and whether slow calls hold back fast ones.
    Call(call::Call),
    /// Time to end servers that ignore end of input and SIGTERM: one, and many at once.
    Close(close::Close),
    /// Time from the start of the program until a model is asked, with many lazy servers.
    Lazy(lazy::Lazy),
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
    /// Servers that may start at once: cores (as many as there are of those that use CPU time), a number, or
    /// unlimited [default: as configured].
    #[arg(long, short, value_name = "N")]
    jobs: Option<StartJobs>,
    /// Skip the measured sequential baseline.
    #[arg(long)]
    no_baseline: bool,
    /// Compare with a bare program that only spawns, shakes hands and lists, turn by turn: all servers at once,
    /// and as many at a time as there are cores. Leaves out servers without a process of their own.
    #[arg(long)]
    bare: bool,
}

/// One measured start of all servers.
struct Run {
    /// When each server was ready, the first one first.
    ready: Vec<Duration>,
    wall: Duration,
    cpu: Duration,
    rss: u64,
    /// None of a bare start.
    servers: Vec<ServerStart>,
}

struct Mode {
    name: &'static str,
    how: How,
    runs: Vec<Run>,
}

/// Who starts the servers of a mode.
#[derive(Clone, Copy)]
enum How {
    Manager(StartJobs),
    Bare(usize),
}

impl Bench {
    pub(super) async fn run(self, context: &Context<'_>) -> anyhow::Result<ExitCode> {
        match self {
            Self::Init(init) => init.run(context).await,
            Self::Call(call) => call.run(context).await,
            Self::Close(close) => close.run(context).await,
            Self::Lazy(lazy) => lazy.run(context).await,
            Self::Kills(kills) => kills.run(context).await,
            Self::Soak(soak) => soak.run(context).await,
        }
    }
}

impl Init {
    async fn run(self, context: &Context<'_>) -> anyhow::Result<ExitCode> {
        let mut config = context.load()?;
        config.start_jobs = self.jobs.unwrap_or(config.start_jobs);
        config.start_all();
        let mut modes = Vec::new();
        if !self.no_baseline {
            // Run, not added up: bars measured in parallel are inflated by contention.
            modes.push(Mode::new("sequential", How::Manager(StartJobs::AtMost(NonZeroUsize::MIN))));
        }
        if self.bare {
            config.servers.retain(|_, entry| {
                entry.server.as_ref().is_ok_and(|server| matches!(server.endpoint, Endpoint::Stdio(_)))
            });
            modes.push(Mode::new("bare", How::Bare(usize::MAX)));
            modes.push(Mode::new("bare-cores", How::Bare(cores())));
            modes.push(Mode::new("at-once", How::Manager(StartJobs::Unlimited)));
        }
        modes.push(Mode::new("parallel", How::Manager(config.start_jobs)));
        // Turn by turn, so that whatever else the machine does falls on all of them.
        for number in 1..=self.runs.get() {
            for mode in &mut modes {
                let run = measure(context, mode.how, &config).await?;
                let text = format!("{} {number}/{}: {}", mode.name, self.runs, seconds(run.wall));
                context.ui.status("Measured", text);
                mode.runs.push(run);
            }
        }
        let bound = bound(&modes);
        if context.ui.json {
            Ui::data(self.document(&config, &modes, &bound).to_string());
        } else {
            self.print(&config, &modes, &bound);
        }
        Ok(ExitCode::SUCCESS)
    }

    fn document(&self, config: &Config, modes: &[Mode], bound: &Bound) -> Value {
        let modes: Vec<Value> = modes
            .iter()
            .map(|mode| {
                let servers: Vec<Value> = config.servers.keys().map(|name| server_json(mode, name)).collect();
                json!({"mode": mode.name, "ready": mode.ready(), "total": config.servers.len(),
                    "wall_ms": spread_json(&mode.walls()), "cpu_ms": millis(mode.cpu()),
                    "peak_rss_bytes": mode.rss(), "first_tool_ms": mode.ready_at(0.0).map(millis),
                    "middle_tool_ms": mode.ready_at(0.5).map(millis), "servers": servers})
            })
            .collect();
        json!({"schema": 1, "runs": self.runs, "jobs": config.start_jobs, "modes": modes,
            "lower_bound_ms": millis(bound.time), "bottleneck": bound.name})
    }

    fn print(&self, config: &Config, modes: &[Mode], bound: &Bound) {
        let jobs = match config.start_jobs {
            StartJobs::Cores => "start jobs as cores permit".to_owned(),
            StartJobs::AtMost(jobs) => format!("{jobs} at a time"),
            _ => "no limit".to_owned(),
        };
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
                mode.ready_at(0.0).map_or_else(|| "-".to_owned(), seconds),
                seconds(mode.cpu()),
                mode.rss() >> 20,
            ));
        }
        Ui::data(format!("lower bound {} ({})", seconds(bound.time), bound.name));
        let Some(mode) = modes.last() else { return };
        for other in modes.iter().filter(|other| self.bare && other.name != mode.name) {
            Ui::data(format!("parallel / {:<11} {}", other.name, mode.against(other)));
        }
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
                mode.launch(name).map_or("-", |launch| if launch.direct { "direct" } else { &*launch.runner }),
            ));
        }
    }
}

async fn measure(context: &Context<'_>, how: How, config: &Config) -> anyhow::Result<Run> {
    let before = bare::tree_cpu();
    match how {
        How::Manager(jobs) => {
            let mut config = config.clone();
            config.start_jobs = jobs;
            let manager = context.start(&config, |_| {}).await?;
            let report = manager.report().clone();
            let (cpu, usage) = (bare::tree_cpu().saturating_sub(before), manager.usage());
            context.stop(manager).await?;
            let ready = report.servers.iter().filter(|row| row.outcome.is_ok()).map(|row| row.took);
            Ok(Run { ready: sorted(ready), wall: report.wall, cpu, rss: usage.rss, servers: report.servers })
        }
        How::Bare(jobs) => {
            let config = config.clone();
            let bare = tokio::task::spawn_blocking(move || bare::Bare::start(&config, jobs)).await??;
            let cpu = bare::tree_cpu().saturating_sub(before);
            let (ready, wall) = (bare.ready.clone(), bare.wall);
            tokio::task::spawn_blocking(|| bare.stop()).await?;
            Ok(Run { ready, wall, cpu, rss: 0, servers: Vec::new() })
        }
    }
}

impl Mode {
    fn new(name: &'static str, how: How) -> Self {
        Self { name, how, runs: Vec::new() }
    }

    fn walls(&self) -> Vec<Duration> {
        sorted(self.runs.iter().map(|run| run.wall))
    }

    /// Ratios of the least values, which other load has touched least.
    fn against(&self, other: &Self) -> String {
        let ratio = |ours: Option<Duration>, theirs: Option<Duration>| match (ours, theirs) {
            (Some(ours), Some(theirs)) if !theirs.is_zero() => {
                format!("{:.2}x", ours.as_secs_f64() / theirs.as_secs_f64())
            }
            _ => "-".to_owned(),
        };
        let least = |mode: &Self| mode.walls().first().copied();
        format!(
            "wall {}  first {}  middle {}  cpu {}",
            ratio(least(self), least(other)),
            ratio(self.ready_at(0.0), other.ready_at(0.0)),
            ratio(self.ready_at(0.5), other.ready_at(0.5)),
            ratio(Some(self.cpu()), Some(other.cpu())),
        )
    }

    fn totals(&self, name: &ServerName) -> Vec<Duration> {
        sorted(self.starts(name).map(|phases| phases.total()))
    }

    fn starts<'a>(&'a self, name: &'a ServerName) -> impl Iterator<Item = Phases> + 'a {
        let rows = self.runs.iter().flat_map(|run| &run.servers);
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
        let rows = self.runs.last().into_iter().flat_map(|run| &run.servers);
        rows.filter(|row| row.name == *name).find_map(|row| row.outcome.as_ref().ok()?.launch.as_ref())
    }

    fn ready(&self) -> usize {
        self.runs.iter().map(|run| run.ready.len()).min().unwrap_or(0)
    }

    /// When this share of the servers was ready, in the best run.
    fn ready_at(&self, share: f64) -> Option<Duration> {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a place in a short list"
        )]
        let at = |ready: &Vec<Duration>| ready.get((ready.len() as f64 * share) as usize).copied();
        self.runs.iter().filter_map(|run| at(&run.ready)).min()
    }

    /// CPU time of the servers and all that belongs to them until all were ready, in the leanest run.
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
    let rows = modes.iter().flat_map(|mode| &mode.runs).flat_map(|run| &run.servers);
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
