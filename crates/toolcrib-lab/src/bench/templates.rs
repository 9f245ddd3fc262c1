//! `toolcrib-lab bench templates`: what Python servers of a task's own cost with templates and without, in the same run.

use std::{
    num::NonZeroUsize,
    path::{Path, PathBuf},
    process::{ExitCode, Stdio},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::json;
use toolcrib::{
    Endpoint, Loan, Manager, ServerConfig,
    cli_support::bench::{Scratch, at_percent, sorted},
    config::TemplatePackages,
    manager::{Borrower, TemplateState},
    session::ServerState,
};

use crate::{
    context::Context,
    ui::{Ui, at_least_one, millis},
};

/// The servers of PyPI; all are in one environment.
const SERVERS: [&str; 3] = ["time", "git", "fetch"];
/// A fourth, for the tasks of a run.
const FOURTH: &str = "clock";
/// Loans before the clock starts that may be needed until templates begin: a start by `uvx`, an ordinary one without it, which is what
/// forks are compared with, and one that starts the template.
const WARM_UP: usize = 3;
/// How long all servers of a measurement may take.
const LIMIT: Duration = Duration::from_secs(300);

#[derive(Args)]
pub(crate) struct Templates {
    /// The Python of the environment that has mcp-server-time, -git and -fetch: what tests/servers/install.sh makes.
    #[arg(long, default_value = "tests/servers/venv/bin/python", value_name = "PATH")]
    python: PathBuf,
    /// Start the servers with `uvx`, each in an environment that uv makes for it.
    #[arg(long)]
    uvx: bool,
    /// Servers of a task's own that start at once: a multiple of three.
    #[arg(long, default_value = "24", value_name = "N", value_parser = at_least_one)]
    servers: NonZeroUsize,
    /// Measurements of each, in turns.
    #[arg(long, default_value = "3", value_name = "N", value_parser = at_least_one)]
    runs: NonZeroUsize,
    /// Tasks of a run, each with four servers of its own; 0: none.
    #[arg(long, default_value = "200", value_name = "N")]
    tasks: usize,
    /// The program that runs them [default: the one beside toolcrib-lab].
    #[arg(long, value_name = "PATH")]
    toolcrib: Option<PathBuf>,
    /// Exit with code 1 unless templates save what docs/templates.md says.
    #[arg(long)]
    check: bool,
    /// Measures so many loans with the configuration, and prints it. For the parent process.
    #[arg(long, hide = true, value_name = "N")]
    loans: Option<usize>,
}

/// Measurements of one process on its servers.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Starts {
    /// Time from the first loan until all servers were ready.
    wall_ms: f64,
    /// CPU time of each server with its guard, until its tools are known. Empty where Linux does not tell.
    cpu_until_ready_ms: Vec<f64>,
    /// Private dirty memory of each server, in KiB.
    private_kib: Vec<u64>,
}

/// One way to start them.
#[derive(Default)]
struct Way {
    walls: Vec<Duration>,
    /// CPU time of a server: of the whole tree, without what is spent before the clock starts.
    cpu: Vec<Duration>,
    cpu_until_ready: Vec<Duration>,
    private_kib: Vec<u64>,
    run_wall: Duration,
    run_cpu: Duration,
}

impl Templates {
    pub(super) async fn run(self, context: &Context<'_>) -> anyhow::Result<ExitCode> {
        if let Some(loans) = self.loans {
            let starts = measure(context, loans).await?;
            Ui::json(serde_json::to_value(starts)?);
            return Ok(ExitCode::SUCCESS);
        }
        let python = match self.uvx {
            true => None,
            false => {
                let python = self.python.canonicalize().map(|_| std::path::absolute(&self.python));
                Some(python.with_context(|| self.python.display().to_string())??)
            }
        };
        let python = python.as_deref();
        let scratch = Scratch::new()?;
        let mut ways = [Way::default(), Way::default()];
        let configs = [("auto", "\"auto\""), ("off", "false")]
            .map(|(name, value)| (scratch.file(&format!("toolcrib/{name}.toml")), value));
        // Only the user's own configuration names a cache: `config_home` makes it that.
        std::fs::create_dir_all(scratch.file("toolcrib"))?;
        for (file, value) in &configs {
            std::fs::write(file, config(python, value, &scratch.file("cache"), &SERVERS))?;
        }
        // Fills the caches: what a server costs is the difference of two measurements.
        // The second time those of one program alone are compared, too.
        for (file, _) in configs.iter().cycle().take(2 * configs.len()) {
            child(context, file, 0)?;
        }
        let loans = self.servers.get().div_ceil(SERVERS.len());
        for run in 1..=self.runs.get() {
            context
                .ui
                .status("Starting", format!("{} servers, run {run} of {}", loans * SERVERS.len(), self.runs));
            for (way, (file, _)) in ways.iter_mut().zip(&configs) {
                let (_, before) = child(context, file, 0)?;
                let (starts, after) = child(context, file, loans)?;
                way.walls.push(Duration::from_secs_f64(starts.wall_ms / 1000.0));
                way.cpu.push(after.saturating_sub(before) / u32::try_from(loans * SERVERS.len())?);
                let until_ready = starts.cpu_until_ready_ms.into_iter();
                way.cpu_until_ready.extend(until_ready.map(|ms| Duration::from_secs_f64(ms / 1000.0)));
                way.private_kib.extend(starts.private_kib);
            }
        }
        if self.tasks > 0 {
            let servers = [&SERVERS[..], &[FOURTH]].concat();
            for (way, (file, value)) in ways.iter_mut().zip(&configs) {
                std::fs::write(file, config(python, value, &scratch.file("cache"), &servers))?;
                context.ui.status("Running", format!("{} tasks, {}", self.tasks, file.display()));
                (way.run_wall, way.run_cpu) = self.run_tasks(file, &scratch)?;
            }
        }
        Ok(self.report(context, &ways))
    }

    fn run_tasks(&self, config: &Path, scratch: &Scratch) -> anyhow::Result<(Duration, Duration)> {
        let program = match &self.toolcrib {
            Some(path) => path.clone(),
            None => std::env::current_exe()?.with_file_name("toolcrib"),
        };
        let call = json!({"tool": "time.get_current_time", "args": {"timezone": "UTC"}});
        let lines =
            (0..self.tasks).map(|task| json!({"id": task.to_string(), "calls": [call]}).to_string() + "\n");
        let tasks = scratch.file("tasks.jsonl");
        std::fs::write(&tasks, lines.collect::<String>())?;
        let mut command = std::process::Command::new(program);
        command.env("XDG_CONFIG_HOME", config_home(config));
        command.arg("--config").arg(config).args(["--quiet", "run"]).arg(tasks).args(["-j", "4", "--out"]);
        command.arg(scratch.file("runs")).stdout(Stdio::null());
        let began = Instant::now();
        let before = cpu_of_children()?;
        let status = command.status()?;
        anyhow::ensure!(status.success(), "the run ended with {status}");
        Ok((began.elapsed(), cpu_of_children()?.saturating_sub(before)))
    }

    fn report(&self, context: &Context<'_>, [on, off]: &[Way; 2]) -> ExitCode {
        let median = |times: &[Duration]| at_percent(&sorted(times.iter().copied()), 50);
        let memory = |way: &Way| way.private_kib.iter().sum::<u64>() / (way.private_kib.len() as u64).max(1);
        let ratio = |on: Duration, off: Duration| on.as_secs_f64() / off.as_secs_f64().max(f64::MIN_POSITIVE);
        let (wall, cpu) =
            (ratio(median(&on.walls), median(&off.walls)), ratio(median(&on.cpu), median(&off.cpu)));
        let tasks = ratio(on.run_cpu, off.run_cpu);
        if context.ui.json {
            let row = |way: &Way| {
                json!({"wall_ms": millis(median(&way.walls)), "cpu_ms_each": millis(median(&way.cpu)),
                    "cpu_until_ready_ms_each": millis(median(&way.cpu_until_ready)),
                    "private_kib_each": memory(way), "run_wall_ms": millis(way.run_wall), "run_cpu_ms": millis(way.run_cpu)})
            };
            Ui::json(
                json!({"schema": 1, "servers": self.servers, "tasks": self.tasks, "on": row(on), "off": row(off)}),
            );
        } else {
            Ui::data(format!("{:<44} {:>10} {:>10} {:>8}", "", "templates", "without", "ratio"));
            let times = |what: String, on: Duration, off: Duration| {
                Ui::data(format!(
                    "{what:<44} {:>8.0}ms {:>8.0}ms {:>8.3}",
                    millis(on),
                    millis(off),
                    ratio(on, off)
                ));
            };
            times(format!("{} servers ready", self.servers), median(&on.walls), median(&off.walls));
            let until_ready = [on, off].map(|way| median(&way.cpu_until_ready));
            times("CPU of each until ready, with its guard".to_owned(), until_ready[0], until_ready[1]);
            times("the same, with its teardown".to_owned(), median(&on.cpu), median(&off.cpu));
            let (less, more) = (memory(on), memory(off));
            let share = less as f64 / more.max(1) as f64;
            Ui::data(format!("{:<44} {less:>7}KiB {more:>7}KiB {share:>8.3}", "private memory of each"));
            if self.tasks > 0 {
                times(
                    format!("{} tasks with servers of their own, wall", self.tasks),
                    on.run_wall,
                    off.run_wall,
                );
                times("the same, CPU of the whole tree".to_owned(), on.run_cpu, off.run_cpu);
            }
        }
        let missed = [
            (wall > 0.1).then(|| format!("the servers take {wall:.3} of the time, more than a tenth")),
            (median(&on.cpu_until_ready) > Duration::from_millis(60)).then(|| {
                format!(
                    "a server takes {:.0} ms of CPU time until it is ready, more than 60",
                    millis(median(&on.cpu_until_ready))
                )
            }),
            (cpu > 0.125).then(|| {
                format!("a server takes {cpu:.3} of the CPU time with its teardown, more than an eighth")
            }),
            (self.tasks > 0 && tasks > 0.125)
                .then(|| format!("the tasks take {tasks:.3} of the CPU time, more than an eighth")),
        ];
        let missed: Vec<_> = missed.into_iter().flatten().collect();
        for miss in missed.iter().filter(|_| self.check) {
            context.ui.bad("missed", miss);
        }
        if self.check && !missed.is_empty() { ExitCode::from(1) } else { ExitCode::SUCCESS }
    }
}

/// The servers, of each task's own: of the environment of `python`, else started by `uvx`.
fn config(python: Option<&Path>, template: &str, cache: &Path, servers: &[&str]) -> String {
    let server = |name: &str| {
        let (package, zone) = match name {
            "time" => ("time", Some("UTC")),
            FOURTH => ("time", Some("Europe/Vienna")),
            other => (other, None),
        };
        let (command, mut args) = match python {
            Some(python) => {
                (python.display().to_string(), vec!["-m".to_owned(), format!("mcp_server_{package}")])
            }
            None => ("uvx".to_owned(), vec![format!("mcp-server-{package}")]),
        };
        args.extend(zone.map(|zone| format!("--local-timezone={zone}")));
        format!("[servers.{name}]\ncommand = {command:?}\nargs = {args:?}\nscope = \"task\"\n")
    };
    let cache = cache.display().to_string();
    let head = format!("[defaults]\ntemplate = {template}\ncache_folder = {cache:?}\n");
    head + &servers.iter().map(|name| server(name)).collect::<String>()
}

/// The folder for `XDG_CONFIG_HOME` that makes `config` the user's own one.
fn config_home(config: &Path) -> &Path {
    config.parent().and_then(Path::parent).unwrap_or(config)
}

/// Measures in a process of its own; also gives the CPU time of its whole tree.
fn child(context: &Context<'_>, config: &Path, loans: usize) -> anyhow::Result<(Starts, Duration)> {
    anyhow::ensure!(!context.cancel.is_cancelled(), "cancelled");
    let mut command = std::process::Command::new(std::env::current_exe()?);
    command.env("XDG_CONFIG_HOME", config_home(config)).arg("--config").arg(config).args([
        "--json",
        "--quiet",
        "bench",
        "templates",
        "--loans",
        &loans.to_string(),
    ]);
    let before = cpu_of_children()?;
    let output = command.stderr(Stdio::inherit()).output()?;
    anyhow::ensure!(output.status.success(), "the measurement ended with {}", output.status);
    Ok((serde_json::from_slice(&output.stdout)?, cpu_of_children()?.saturating_sub(before)))
}

async fn measure(context: &Context<'_>, loans: usize) -> anyhow::Result<Starts> {
    let config = context.load()?;
    let manager = context.start(&config).await?;
    let has_template = |server: &ServerConfig| matches!(&server.endpoint, Endpoint::Stdio(child) if child.template != TemplatePackages::Never);
    let templates = config.servers.values().filter_map(|entry| entry.server.as_ref().ok()).any(has_template);
    for _ in 1..=WARM_UP {
        lend_once(&manager).await?;
    }
    // So that the last one before the clock starts is forked, and all processes do the same.
    let began = Instant::now();
    while templates && !has_templates(&manager) {
        anyhow::ensure!(began.elapsed() < LIMIT, "no template after {} s", LIMIT.as_secs());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    lend_once(&manager).await?;
    let began = Instant::now();
    let all: Vec<Loan> = (0..loans).map(|_| manager.lend(Borrower::Task)).collect();
    until_ready(&all).await?;
    let wall_ms = millis(began.elapsed());
    let pids = all.iter().flat_map(|loan| loan.toolbox().status()).filter_map(|server| server.pid);
    let pids: Vec<u32> = pids.collect();
    let cpu_until_ready_ms = pids.iter().filter_map(|pid| cpu_with_guard(*pid)).map(millis).collect();
    let private_kib = pids.into_iter().filter_map(private_memory).collect();
    drop(all);
    let survivors = manager.shutdown().await.survivors;
    anyhow::ensure!(survivors.is_empty(), "processes are left: {survivors:?}");
    Ok(Starts { wall_ms, cpu_until_ready_ms, private_kib })
}

fn has_templates(manager: &Manager) -> bool {
    let templates = manager.templates();
    !templates.is_empty() && templates.iter().all(|template| template.state == TemplateState::Ready)
}

async fn lend_once(manager: &Manager) -> anyhow::Result<()> {
    until_ready(&[manager.lend(Borrower::Task)]).await
}

async fn until_ready(loans: &[Loan]) -> anyhow::Result<()> {
    let began = Instant::now();
    for loan in loans {
        loop {
            let status = loan.toolbox().status();
            let broken = status.iter().find(|server| server.state == ServerState::Failed);
            anyhow::ensure!(broken.is_none(), "a server does not start: {broken:?}");
            if status.iter().all(|server| server.state == ServerState::Ready) {
                break;
            }
            anyhow::ensure!(began.elapsed() < LIMIT, "not ready after {} s: {status:?}", LIMIT.as_secs());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    Ok(())
}

/// CPU time of all children that have ended, with theirs.
fn cpu_of_children() -> anyhow::Result<Duration> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let rest = stat.rsplit(')').next().unwrap_or_default();
    // proc_pid_stat(5): the state is field 3, cutime and cstime are 16 and 17.
    let ticks: u64 =
        rest.split_whitespace().skip(16 - 3).take(2).map(|field| field.parse().unwrap_or(0)).sum();
    Ok(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
}

/// CPU time so far of a server, with all its threads, and of its parent, which is its guard.
fn cpu_with_guard(pid: u32) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // proc_pid_stat(5): the parent is field 4, the second one after the name.
    let guard: u32 = stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse().ok()?;
    Some(cpu_of(pid)? + cpu_of(guard)?)
}

/// CPU time by the scheduler, in nanoseconds: the times of proc_pid_stat(5) have only 10 ms.
fn cpu_of(pid: u32) -> Option<Duration> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    threads.flatten().try_fold(Duration::ZERO, |sum, thread| {
        let told = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        Some(sum + Duration::from_nanos(told.split_whitespace().next()?.parse().ok()?))
    })
}

fn private_memory(pid: u32) -> Option<u64> {
    let smaps = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = smaps.lines().find_map(|line| line.strip_prefix("Private_Dirty:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}
