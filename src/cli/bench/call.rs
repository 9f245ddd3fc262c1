//! `toolcrib bench call`: what a call of a tool costs: latency, throughput and CPU time.

use std::{
    num::NonZeroUsize,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use clap::Args;
use serde_json::{Map, Value, json};
use tokio::task::JoinSet;
use toolcrib::{
    CallOptions, CatalogEntry, Config, Endpoint, Manager, ServerConfig, ServerName, StdioConfig, Toolbox,
    cli_support::bench::{at_percent, own_cpu, sorted},
};

use crate::cli::{
    context::Context,
    terminal::ui::{Ui, at_least_one, counted, micros},
};

/// Calls before the clock starts.
const WARM_UP: usize = 500;
/// Bytes of results in one row at most: long results are called for less often.
const ROW_BYTES: usize = 512 << 20;

#[derive(Args)]
pub(in crate::cli) struct Call {
    /// A configured tool, as SERVER.TOOL [default: `evaluate` of the built-in server `calc`, in a process].
    #[arg(value_name = "SERVER.TOOL")]
    tool: Option<String>,
    /// Its arguments as one JSON object.
    #[arg(long, value_name = "JSON", requires = "tool")]
    args: Option<String>,
    /// Calls to measure in each row; fewer if their results would exceed 512 MiB in total.
    #[arg(long, default_value = "20000", value_name = "N", value_parser = at_least_one)]
    calls: NonZeroUsize,
    /// Numbers of concurrent calls; one row each.
    #[arg(long, default_value = "1,8,64", value_delimiter = ',', value_name = "N,..", value_parser = at_least_one)]
    in_flight: Vec<NonZeroUsize>,
    /// Threads of the calling runtime; 1 is the fastest for one server.
    #[arg(long, default_value = "1", value_name = "N", value_parser = at_least_one)]
    threads: NonZeroUsize,
}

/// One measured load.
struct LoadRow {
    /// Bytes of text in each result.
    bytes: usize,
    in_flight: usize,
    calls: usize,
    wall: Duration,
    /// CPU time of this process, without the server.
    cpu: Duration,
    /// Times of all calls, sorted.
    times: Vec<Duration>,
}

/// One call that can be made again and again.
#[derive(Clone)]
struct Caller {
    toolbox: Toolbox,
    entry: Arc<CatalogEntry>,
    arguments: Arc<Map<String, Value>>,
}

/// The tool that is called, and its arguments.
struct Target {
    config: Config,
    /// The tool as SERVER.TOOL.
    tool: String,
    arguments: Map<String, Value>,
}

/// The number of calls, and how many run at once.
#[derive(Clone)]
struct Load {
    /// Calls in a row.
    calls: usize,
    in_flight: Vec<NonZeroUsize>,
}

impl Call {
    pub(super) async fn run(self, context: &Context<'_>) -> anyhow::Result<ExitCode> {
        let mut target = self.target(context)?;
        for server in target.config.servers.values_mut() {
            server.required = true;
        }
        let cancel = context.cancel.clone();
        let threads = self.threads.get();
        let load = Load { calls: self.calls.get(), in_flight: self.in_flight };
        let ui = context.ui.clone();
        // A runtime of its own: what is measured is not to share a thread with the rest of this command.
        let measuring = tokio::task::spawn_blocking(move || {
            let runtime = match threads {
                1 => tokio::runtime::Builder::new_current_thread().enable_all().build(),
                _ => tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build(),
            }?;
            runtime.block_on(async {
                let rows = cancel.run_until_cancelled(Box::pin(measure(&target, &load, &ui))).await;
                rows.unwrap_or_else(|| Err(toolcrib::Error::Cancelled.into()))
            })
        });
        let rows = measuring.await??;
        if context.ui.json {
            let rows: Vec<Value> = rows.iter().map(LoadRow::document).collect();
            Ui::json(json!({"schema": 1, "threads": threads, "rows": rows}));
        } else {
            print(threads, &rows);
        }
        Ok(ExitCode::SUCCESS)
    }

    fn target(&self, context: &Context<'_>) -> anyhow::Result<Target> {
        let Some(path) = &self.tool else {
            let words = ["builtin", "calc"].map(str::to_owned).to_vec();
            let command = StdioConfig::new(std::env::current_exe()?, words, std::env::temp_dir());
            let server = ServerConfig::new(ServerName::new("calc")?, Endpoint::Stdio(command));
            let arguments = Map::from_iter([("expression".to_owned(), json!("1+1"))]);
            return Ok(Target { config: Config::new([server]), tool: "calc.evaluate".to_owned(), arguments });
        };
        let mut config = context.load()?;
        let server = crate::cli::servers::call::server_of(&config, path)?;
        config.servers.retain(|name, _| *name == server);
        let arguments = match &self.args {
            Some(text) => serde_json::from_str(text).map_err(|error| {
                toolcrib::Error::input(format!("--args is not a JSON object: {error}"), None)
            })?,
            None => Map::new(),
        };
        Ok(Target { config, tool: path.clone(), arguments })
    }
}

async fn measure(target: &Target, load: &Load, ui: &Ui) -> anyhow::Result<Vec<LoadRow>> {
    let manager = Manager::start(&target.config).await?;
    let outcome = measure_on(&manager.toolbox(), target, load, ui).await;
    let survivors = manager.shutdown().await.survivors;
    if !survivors.is_empty() {
        return Err(toolcrib::Error::TeardownIncomplete { pids: survivors }.into());
    }
    outcome
}

async fn measure_on(
    toolbox: &Toolbox,
    target: &Target,
    load: &Load,
    ui: &Ui,
) -> anyhow::Result<Vec<LoadRow>> {
    let entry = toolbox.catalog().find_path(&target.tool)?.clone();
    let caller = Caller { toolbox: toolbox.clone(), entry, arguments: Arc::new(target.arguments.clone()) };
    let first = toolbox.call_entry(&caller.entry, &caller.arguments, &CallOptions::default()).await?;
    anyhow::ensure!(!first.is_error, "{} says that it failed: {}", target.tool, first.text());
    let bytes = first.text().len();
    let calls = load.calls.min((ROW_BYTES / bytes.max(1)).max(1));
    call_many(&caller, WARM_UP.min(calls), 1).await?;
    let mut rows = Vec::new();
    for width in &load.in_flight {
        ui.status("Measuring", format!("{}, {width} in flight", counted(calls, "call")));
        rows.push(LoadRow { bytes, ..call_many(&caller, calls, width.get()).await? });
    }
    Ok(rows)
}

/// `calls` calls by `width` callers, each of which waits for its answer.
async fn call_many(caller: &Caller, calls: usize, width: usize) -> anyhow::Result<LoadRow> {
    let (cpu, began) = (own_cpu(), Instant::now());
    let mut callers = JoinSet::new();
    for number in 0..width {
        let caller = caller.clone();
        let share = calls / width + usize::from(number < calls % width);
        callers.spawn(async move {
            let mut times = Vec::with_capacity(share);
            for _ in 0..share {
                let began = Instant::now();
                caller.toolbox.call_entry(&caller.entry, &caller.arguments, &CallOptions::default()).await?;
                times.push(began.elapsed());
            }
            anyhow::Ok(times)
        });
    }
    let mut times = Vec::with_capacity(calls);
    while let Some(done) = callers.join_next().await {
        times.extend(done??);
    }
    let (wall, cpu) = (began.elapsed(), own_cpu().saturating_sub(cpu));
    let times = sorted(times.into_iter());
    Ok(LoadRow { bytes: 0, in_flight: width, calls, wall, cpu, times })
}

impl LoadRow {
    /// The time that `percent` of the calls took at most.
    fn at(&self, percent: usize) -> Duration {
        at_percent(&self.times, percent)
    }

    fn rate(&self) -> f64 {
        Duration::from_secs(self.calls as u64).div_duration_f64(self.wall)
    }

    fn cpu(&self) -> Duration {
        self.cpu / u32::try_from(self.calls).unwrap_or(u32::MAX)
    }

    fn document(&self) -> Value {
        let us = |time: Duration| (time.as_secs_f64() * 1e7).round() / 10.0;
        json!({"result_bytes": self.bytes, "in_flight": self.in_flight, "calls": self.calls,
            "us": {"p50": us(self.at(50)), "p95": us(self.at(95)), "p99": us(self.at(99)), "max": us(self.at(100))},
            "calls_per_second": self.rate().round(), "cpu_us_per_call": us(self.cpu())})
    }
}

fn print(threads: usize, rows: &[LoadRow]) {
    let plural = if threads == 1 { "" } else { "s" };
    Ui::data(format!("{threads} runtime thread{plural}; CPU is the client's own"));
    Ui::data("     result  in flight    calls      p50      p95      p99      max    calls/s  cpu/call");
    for row in rows {
        Ui::data(format!(
            "{:>9} B  {:>9} {:>8} {:>8} {:>8} {:>8} {:>8} {:>10.0} {:>9}",
            row.bytes,
            row.in_flight,
            row.calls,
            micros(row.at(50)),
            micros(row.at(95)),
            micros(row.at(99)),
            micros(row.at(100)),
            row.rate(),
            micros(row.cpu()),
        ));
    }
}
