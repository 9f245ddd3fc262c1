//! `toolcrib bench call`: what a tool call costs, beside the same server behind bare pipes in the same run.

use std::{
    io::{BufRead, BufReader, Write},
    num::NonZeroUsize,
    process::{ChildStdin, ChildStdout, Command, ExitCode, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use clap::Args;
use serde_json::{Map, Value, json};
use tokio::task::JoinSet;
use toolcrib::{CatalogEntry, Config, Endpoint, Manager, ServerConfig, ServerName, StdioConfig, Toolbox};

use super::times::{at_percent, median, own_cpu, sorted};
use crate::cli::{
    context::Context,
    ui::{Ui, at_least_one, micros, millis, seconds},
};

/// Calls before the clock starts.
const WARM_UP: usize = 500;
/// Calls that wait in the server, and calls that do not, in the test for head-of-line blocking.
const SLOW: usize = 10;
const FAST: usize = 50;
const SLOW_FOR: Duration = Duration::from_millis(500);

#[derive(Args)]
pub(in crate::cli) struct Call {
    /// A configured tool, as SERVER.TOOL [default: `echo` of a trivial server that is part of toolcrib].
    #[arg(value_name = "SERVER.TOOL")]
    tool: Option<String>,
    /// Its arguments as one JSON object.
    #[arg(long, value_name = "JSON", requires = "tool")]
    args: Option<String>,
    /// Calls to measure in each row.
    #[arg(long, default_value = "20000", value_name = "N", value_parser = at_least_one)]
    calls: NonZeroUsize,
    /// Calls in flight, a row each.
    #[arg(long, default_value = "1,8,64", value_delimiter = ',', value_name = "N,..", value_parser = at_least_one)]
    in_flight: Vec<NonZeroUsize>,
    /// Threads of the runtime that calls; 1 is the fastest for one server.
    #[arg(long, default_value = "1", value_name = "N", value_parser = at_least_one)]
    threads: NonZeroUsize,
}

/// One measured load.
struct Row {
    client: &'static str,
    in_flight: usize,
    calls: usize,
    wall: Duration,
    /// Of this process, without the server.
    cpu: Duration,
    /// Sorted.
    times: Vec<Duration>,
}

/// Fast calls beside slow ones on one session.
struct Beside {
    wall: Duration,
    /// Sorted, of the fast ones.
    fast: Vec<Duration>,
}

/// What is called.
struct Target {
    config: Config,
    path: String,
    arguments: Map<String, Value>,
    /// The trivial server: then there is something to compare with.
    floor: bool,
}

impl Call {
    pub(super) async fn run(self, context: &Context<'_>) -> anyhow::Result<ExitCode> {
        let mut target = self.target(context)?;
        for server in target.config.servers.values_mut() {
            server.required = true;
        }
        let cancel = context.cancel.clone();
        let (threads, calls, in_flight) = (self.threads.get(), self.calls.get(), self.in_flight);
        let floor = target.floor;
        // A runtime of its own: what is measured is not to share a thread with the rest of this command.
        let measuring = tokio::task::spawn_blocking(move || {
            let runtime = match threads {
                1 => tokio::runtime::Builder::new_current_thread().enable_all().build(),
                _ => tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build(),
            }?;
            runtime.block_on(async {
                let all = measure(&target, calls, &in_flight);
                cancel
                    .run_until_cancelled(all)
                    .await
                    .unwrap_or_else(|| Err(toolcrib::Error::Cancelled.into()))
            })
        });
        let (mut rows, beside) = measuring.await??;
        if floor {
            rows.insert(0, tokio::task::spawn_blocking(move || bare(calls)).await??);
        }
        if context.ui.json {
            Ui::data(document(threads, &rows, beside.as_ref()).to_string());
        } else {
            print(threads, &rows, beside.as_ref());
        }
        Ok(ExitCode::SUCCESS)
    }

    fn target(&self, context: &Context<'_>) -> anyhow::Result<Target> {
        let Some(path) = &self.tool else {
            let config = Config::new([trivial()?]);
            let arguments = Map::from_iter([("text".to_owned(), json!("hello"))]);
            return Ok(Target { config, path: "floor.echo".to_owned(), arguments, floor: true });
        };
        let mut config = context.load()?;
        let server = crate::cli::call::server_of(&config, path)?;
        config.servers.retain(|name, _| *name == server);
        let arguments = match &self.args {
            Some(text) => serde_json::from_str(text).map_err(|error| {
                toolcrib::Error::input(format!("--args is not a JSON object: {error}"), None)
            })?,
            None => Map::new(),
        };
        Ok(Target { config, path: path.clone(), arguments, floor: false })
    }
}

fn trivial() -> anyhow::Result<ServerConfig> {
    let command = StdioConfig::new(std::env::current_exe()?, words().to_vec(), std::env::temp_dir());
    let name = ServerName::new("floor").map_err(anyhow::Error::msg)?;
    Ok(ServerConfig::new(name, Endpoint::Stdio(command)))
}

fn words() -> [String; 2] {
    ["builtin", "floor"].map(str::to_owned)
}

async fn measure(
    target: &Target,
    calls: usize,
    in_flight: &[NonZeroUsize],
) -> anyhow::Result<(Vec<Row>, Option<Beside>)> {
    let manager = Manager::start(&target.config).await?;
    let outcome = measure_on(&manager.toolbox(), target, calls, in_flight).await;
    let survivors = manager.shutdown().await.survivors;
    if !survivors.is_empty() {
        return Err(toolcrib::Error::TeardownIncomplete { pids: survivors }.into());
    }
    outcome
}

async fn measure_on(
    toolbox: &Toolbox,
    target: &Target,
    calls: usize,
    in_flight: &[NonZeroUsize],
) -> anyhow::Result<(Vec<Row>, Option<Beside>)> {
    let catalog = toolbox.catalog();
    let entry = catalog.find_path(&target.path)?;
    let arguments = Arc::new(target.arguments.clone());
    let first = toolbox.call_entry(entry, &arguments, None).await?;
    anyhow::ensure!(!first.is_error, "{} says that it failed: {}", target.path, first.text());
    call_many(toolbox, entry, &arguments, WARM_UP.min(calls), 1).await?;
    let mut rows = Vec::new();
    for width in in_flight {
        rows.push(call_many(toolbox, entry, &arguments, calls, width.get()).await?);
    }
    let beside = match target.floor {
        true => Some(beside(toolbox, entry, catalog.find("floor", "sleep")?, &arguments).await?),
        false => None,
    };
    Ok((rows, beside))
}

/// `calls` calls by `width` callers, each of which waits for its answer.
async fn call_many(
    toolbox: &Toolbox,
    entry: &Arc<CatalogEntry>,
    arguments: &Arc<Map<String, Value>>,
    calls: usize,
    width: usize,
) -> anyhow::Result<Row> {
    let (cpu, began) = (own_cpu(), Instant::now());
    let mut callers = JoinSet::new();
    for number in 0..width {
        let (toolbox, entry, arguments) = (toolbox.clone(), entry.clone(), arguments.clone());
        let share = calls / width + usize::from(number < calls % width);
        callers.spawn(async move {
            let mut times = Vec::with_capacity(share);
            for _ in 0..share {
                let began = Instant::now();
                toolbox.call_entry(&entry, &arguments, None).await?;
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
    Ok(Row { client: "toolcrib", in_flight: width, calls, wall, cpu, times: sorted(times.into_iter()) })
}

/// Calls that wait in the server must not hold back those that do not.
async fn beside(
    toolbox: &Toolbox,
    echo: &Arc<CatalogEntry>,
    sleep: &Arc<CatalogEntry>,
    arguments: &Arc<Map<String, Value>>,
) -> anyhow::Result<Beside> {
    let began = Instant::now();
    let mut slow = JoinSet::new();
    for _ in 0..SLOW {
        let (toolbox, sleep) = (toolbox.clone(), sleep.clone());
        let time = Map::from_iter([("ms".to_owned(), json!(SLOW_FOR.as_millis()))]);
        slow.spawn(async move { toolbox.call_entry(&sleep, &time, None).await });
    }
    tokio::task::yield_now().await;
    let fast = call_many(toolbox, echo, arguments, FAST, 1).await?.times;
    while let Some(done) = slow.join_next().await {
        done??;
    }
    Ok(Beside { wall: began.elapsed(), fast })
}

/// The same calls as bytes over pipes, one at a time: what no client can go below.
fn bare(calls: usize) -> anyhow::Result<Row> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(words())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let outcome = match (child.stdin.take(), child.stdout.take()) {
        (Some(stdin), Some(stdout)) => bare_on(stdin, BufReader::new(stdout), calls),
        _ => Err(anyhow::anyhow!("the server has no pipes")),
    };
    // Its input is closed: it leaves by itself.
    child.wait()?;
    outcome
}

fn bare_on(mut stdin: ChildStdin, mut stdout: BufReader<ChildStdout>, calls: usize) -> anyhow::Result<Row> {
    let request = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{\"name\":\"echo\",\"arguments\":{\"text\":\"hello\"}}}\n";
    let mut line = Vec::new();
    let mut call = || {
        line.clear();
        stdin.write_all(request)?;
        stdout.read_until(b'\n', &mut line)
    };
    for _ in 0..WARM_UP.min(calls) {
        call()?;
    }
    let (cpu, began) = (own_cpu(), Instant::now());
    let mut times = Vec::with_capacity(calls);
    for _ in 0..calls {
        let began = Instant::now();
        call()?;
        times.push(began.elapsed());
    }
    let (wall, cpu) = (began.elapsed(), own_cpu().saturating_sub(cpu));
    Ok(Row { client: "bare pipes", in_flight: 1, calls, wall, cpu, times: sorted(times.into_iter()) })
}

impl Row {
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
}

fn print(threads: usize, rows: &[Row], beside: Option<&Beside>) {
    Ui::data(format!(
        "{threads} runtime thread{}; CPU is the client's own",
        if threads == 1 { "" } else { "s" }
    ));
    Ui::data("client      in flight    calls      p50      p95      p99      max    calls/s  cpu/call");
    for row in rows {
        Ui::data(format!(
            "{:<11} {:>9} {:>8} {:>8} {:>8} {:>8} {:>8} {:>10.0} {:>9}",
            row.client,
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
    if let Some(Beside { wall, fast }) = beside {
        Ui::data(format!(
            "{FAST} fast calls beside {SLOW} of {} each: p50 {}, max {}; all done in {}",
            seconds(SLOW_FOR),
            micros(median(fast)),
            micros(fast.last().copied().unwrap_or_default()),
            seconds(*wall)
        ));
    }
}

fn document(threads: usize, rows: &[Row], beside: Option<&Beside>) -> Value {
    let us = |time: Duration| (time.as_secs_f64() * 1e7).round() / 10.0;
    let rows: Vec<Value> = rows
        .iter()
        .map(|row| {
            json!({"client": row.client, "in_flight": row.in_flight, "calls": row.calls,
                "us": {"p50": us(row.at(50)), "p95": us(row.at(95)), "p99": us(row.at(99)), "max": us(row.at(100))},
                "calls_per_second": row.rate().round(), "cpu_us_per_call": us(row.cpu())})
        })
        .collect();
    let beside = beside.map(|beside| {
        json!({"slow": SLOW, "slow_ms": millis(SLOW_FOR), "fast": FAST, "wall_ms": millis(beside.wall),
            "fast_us": {"p50": us(median(&beside.fast)), "max": beside.fast.last().map(|time| us(*time))}})
    });
    json!({"schema": 1, "threads": threads, "rows": rows, "head_of_line": beside})
}
