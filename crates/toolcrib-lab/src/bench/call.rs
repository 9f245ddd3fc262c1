//! `toolcrib-lab bench call`: what a tool call costs, compared with bare pipes and the client of the official SDK
//! (rmcp), which call the same server in the same run.

mod sdk;
mod table;

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
use toolcrib::{
    CallOptions, CatalogEntry, Config, Endpoint, Manager, ServerConfig, ServerName, StdioConfig, Toolbox,
    cli_support::bench::{at_percent, own_cpu, sorted},
};
use toolcrib_fakes::servers::{baseline::MAX_TEXT, chaos::fault};

use self::{
    sdk::Sdk,
    table::{document, print},
};
use crate::{
    context::Context,
    fakes,
    ui::{Ui, at_least_one},
};

/// The name of the baseline as a server.
const SERVER: &str = "baseline";
/// Calls before the clock starts.
const WARM_UP: usize = 500;
/// The two clients take turns so many times in each row, so that a machine that gets slower hits both.
const TURNS: usize = 4;
/// Bytes of results in one row at most: long results are called for less often.
const ROW_BYTES: usize = 512 << 20;
/// Calls that wait in the server, and calls that do not, in the test for head-of-line blocking.
const SLOW: usize = 10;
const FAST: usize = 50;
const SLOW_FOR: Duration = Duration::from_millis(500);

#[derive(Args)]
pub(crate) struct Call {
    /// Bytes of text in a result, such as 4KiB,256KiB,1MiB, a group of rows each [default: an echo of 5 bytes].
    #[arg(long, value_delimiter = ',', value_name = "SIZE,..", value_parser = text_size)]
    size: Vec<usize>,
    /// Calls to measure in each row; fewer where their results would have more than 512 MiB together.
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
trait Caller: Clone + Send + 'static {
    const NAME: &'static str;

    fn call(&self) -> impl Future<Output = anyhow::Result<()>> + Send;
}

/// The same by this library.
#[derive(Clone)]
struct OwnCaller {
    toolbox: Toolbox,
    entry: Arc<CatalogEntry>,
    arguments: Arc<Map<String, Value>>,
}

/// Fast calls beside slow ones on one session.
struct Beside {
    wall: Duration,
    /// Sorted, of the fast ones.
    fast: Vec<Duration>,
}

/// The tools that are called, and their arguments.
struct Target {
    config: Config,
    /// Tools, each with its arguments: a group of rows each.
    calls: Vec<(&'static str, Map<String, Value>)>,
}

/// The number of calls, and how many run at once.
#[derive(Clone)]
struct Load {
    /// Calls in a row.
    calls: usize,
    in_flight: Vec<NonZeroUsize>,
}

fn text_size(text: &str) -> Result<usize, String> {
    let bytes = fault::size(text).ok().and_then(|bytes| usize::try_from(bytes).ok());
    match bytes.filter(|bytes| (1..=MAX_TEXT).contains(bytes)) {
        Some(bytes) => Ok(bytes),
        None => Err("write a number of bytes up to 8MiB, such as 4KiB or 1MiB".to_owned()),
    }
}

impl Call {
    pub(super) async fn run(self, context: &Context<'_>) -> anyhow::Result<ExitCode> {
        let target = self.target()?;
        let cancel = context.cancel.clone();
        let threads = self.threads.get();
        let load = Load { calls: self.calls.get(), in_flight: self.in_flight };
        // A runtime of its own: what is measured is not to share a thread with the rest of this command.
        let measuring = tokio::task::spawn_blocking(move || {
            let runtime = match threads {
                1 => tokio::runtime::Builder::new_current_thread().enable_all().build(),
                _ => tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build(),
            }?;
            runtime.block_on(async {
                // Boxed: the SDK's futures are large.
                let all = Box::pin(measure(&target, &load));
                cancel
                    .run_until_cancelled(all)
                    .await
                    .unwrap_or_else(|| Err(toolcrib::Error::Cancelled.into()))
            })
        });
        let (rows, beside) = measuring.await??;
        if context.ui.json {
            Ui::json(document(threads, &rows, &beside));
        } else {
            print(threads, &rows, &beside);
        }
        Ok(ExitCode::SUCCESS)
    }

    fn target(&self) -> anyhow::Result<Target> {
        let (program, words) = fakes::command(&["baseline"])?;
        let command = StdioConfig::new(program, words, std::env::temp_dir());
        let mut server = ServerConfig::new(ServerName::new(SERVER)?, Endpoint::Stdio(command));
        server.max_output = server.max_output.max(self.size.iter().copied().max().unwrap_or(0));
        let mut config = Config::new([server]);
        config.servers.values_mut().for_each(|server| server.required = true);
        let call =
            |tool: &'static str, name: &str, value: Value| (tool, Map::from_iter([(name.to_owned(), value)]));
        let mut calls: Vec<_> = self.size.iter().map(|bytes| call("text", "bytes", json!(bytes))).collect();
        if calls.is_empty() {
            calls.push(call("echo", "text", json!("hello")));
        }
        Ok(Target { config, calls })
    }
}

async fn measure(target: &Target, load: &Load) -> anyhow::Result<(Vec<Row>, Beside)> {
    let manager = Manager::start(&target.config).await?;
    let outcome = measure_on(&manager.toolbox(), target, load).await;
    let survivors = manager.shutdown().await.survivors;
    if !survivors.is_empty() {
        return Err(toolcrib::Error::TeardownIncomplete { pids: survivors }.into());
    }
    outcome
}

async fn measure_on(toolbox: &Toolbox, target: &Target, load: &Load) -> anyhow::Result<(Vec<Row>, Beside)> {
    let catalog = toolbox.catalog();
    let sdk = Sdk::start().await?;
    let mut rows = Vec::new();
    for (tool, arguments) in &target.calls {
        let entry = catalog.find(SERVER, tool)?.clone();
        let own = OwnCaller { toolbox: toolbox.clone(), entry, arguments: Arc::new(arguments.clone()) };
        let first = toolbox.call_entry(&own.entry, arguments, &CallOptions::default()).await?;
        anyhow::ensure!(!first.is_error, "{tool} says that it failed: {}", first.text());
        let bytes = first.text().len();
        let calls = load.calls.min((ROW_BYTES / bytes.max(1)).max(1));
        let (name, given) = (*tool, arguments.clone());
        let row = tokio::task::spawn_blocking(move || bare(name, &given, calls)).await??;
        rows.push(Row { bytes, ..row });
        let sdk = sdk.caller(tool, arguments);
        call_many(&own, WARM_UP.min(calls), 1).await?;
        call_many(&sdk, WARM_UP.min(calls), 1).await?;
        for width in load.in_flight.iter().map(|width| width.get()) {
            let (mut of_sdk, mut of_own) = (None, None);
            for turn in 0..TURNS {
                let share = calls / TURNS + usize::from(turn < calls % TURNS);
                of_sdk = Some(join(of_sdk, call_many(&sdk, share, width).await?));
                of_own = Some(join(of_own, call_many(&own, share, width).await?));
            }
            rows.extend(of_sdk.into_iter().chain(of_own).map(|row| Row { bytes, ..row }));
        }
    }
    sdk.stop().await?;
    let beside = beside(toolbox, catalog.find(SERVER, "echo")?, catalog.find(SERVER, "sleep")?).await?;
    Ok((rows, beside))
}

/// One row of two turns.
fn join(earlier: Option<Row>, row: Row) -> Row {
    let Some(earlier) = earlier else { return row };
    Row {
        calls: earlier.calls + row.calls,
        wall: earlier.wall + row.wall,
        cpu: earlier.cpu + row.cpu,
        times: sorted(earlier.times.into_iter().chain(row.times)),
        ..row
    }
}

impl Caller for OwnCaller {
    const NAME: &'static str = "toolcrib";

    async fn call(&self) -> anyhow::Result<()> {
        self.toolbox.call_entry(&self.entry, &self.arguments, &CallOptions::default()).await?;
        Ok(())
    }
}

/// `calls` calls by `width` callers, each of which waits for its answer.
async fn call_many<C: Caller>(caller: &C, calls: usize, width: usize) -> anyhow::Result<Row> {
    let (cpu, began) = (own_cpu(), Instant::now());
    let mut callers = JoinSet::new();
    for number in 0..width {
        let caller = caller.clone();
        let share = calls / width + usize::from(number < calls % width);
        callers.spawn(async move {
            let mut times = Vec::with_capacity(share);
            for _ in 0..share {
                let began = Instant::now();
                caller.call().await?;
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
    Ok(Row { client: C::NAME, bytes: 0, in_flight: width, calls, wall, cpu, times })
}

/// Calls that wait in the server must not hold back those that do not.
async fn beside(
    toolbox: &Toolbox,
    echo: &Arc<CatalogEntry>,
    sleep: &Arc<CatalogEntry>,
) -> anyhow::Result<Beside> {
    let began = Instant::now();
    let mut slow = JoinSet::new();
    for _ in 0..SLOW {
        let (toolbox, sleep) = (toolbox.clone(), sleep.clone());
        let time = Map::from_iter([("ms".to_owned(), json!(SLOW_FOR.as_millis()))]);
        slow.spawn(async move { toolbox.call_entry(&sleep, &time, &CallOptions::default()).await });
    }
    tokio::task::yield_now().await;
    let arguments = Arc::new(Map::from_iter([("text".to_owned(), json!("hello"))]));
    let caller = OwnCaller { toolbox: toolbox.clone(), entry: echo.clone(), arguments };
    let fast = call_many(&caller, FAST, 1).await?.times;
    while let Some(done) = slow.join_next().await {
        done??;
    }
    Ok(Beside { wall: began.elapsed(), fast })
}

/// The same calls as bytes over pipes, one at a time: what no client can go below.
fn bare(tool: &str, arguments: &Map<String, Value>, calls: usize) -> anyhow::Result<Row> {
    let params = json!({"name": tool, "arguments": arguments});
    let request =
        json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).to_string() + "\n";
    let (program, words) = fakes::command(&["baseline"])?;
    let mut child = Command::new(program).args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let outcome = match (child.stdin.take(), child.stdout.take()) {
        (Some(stdin), Some(stdout)) => bare_on(stdin, BufReader::new(stdout), request.as_bytes(), calls),
        _ => Err(anyhow::anyhow!("the server has no pipes")),
    };
    // Its input is closed: it exits.
    child.wait()?;
    outcome
}

fn bare_on(
    mut stdin: ChildStdin,
    mut stdout: BufReader<ChildStdout>,
    request: &[u8],
    calls: usize,
) -> anyhow::Result<Row> {
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
    let times = sorted(times.into_iter());
    Ok(Row { client: "bare pipes", bytes: 0, in_flight: 1, calls, wall, cpu, times })
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
