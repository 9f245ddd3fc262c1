//! `toolcrib-lab bench gateway`: what a call through `toolcrib serve` and `toolcrib connect` costs more than the same call
//! made directly, and beside other gateways: the same load, the same server, the same run.

pub(crate) mod gateways;
mod table;

use std::{
    num::NonZeroUsize,
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use clap::Args;
use serde_json::{Map, Value, json};
use tokio::task::JoinSet;
use toolcrib::{
    CallOptions, CatalogEntry, Config, Endpoint, Manager, ServerConfig, ServerName, StdioConfig, Toolbox,
    cli_support::bench::{Scratch, at_percent, sorted},
};

use self::gateways::{Gateway, Running};
use crate::{
    context::Context,
    fakes,
    mcp::{Answer, Era, HttpClient, Identity, LineClient, Request, nobody},
    ui::{Ui, at_least_one},
};

/// The name of the baseline as a server.
const SERVER: &str = "baseline";
/// Calls of each client before the clock starts.
const WARM_UP: usize = 50;
/// All that is measured takes turns so many times, so that a machine that gets slower hits all.
const TURNS: u32 = 4;
/// How long one call may take before something is broken.
const LIMIT: Duration = Duration::from_secs(30);
/// How long all clients of one gateway may take to open their sessions: over stdio each starts a process.
const OPEN_LIMIT: Duration = Duration::from_secs(120);
/// Limits that the gateway has to keep with `--check`.
const MOST_ADDED: Duration = Duration::from_micros(100);
const LEAST_RATE: f64 = 2500.0;

#[derive(Args)]
pub(crate) struct GatewayBench {
    /// The program to measure [default: the one beside toolcrib-lab].
    #[arg(long, value_name = "PATH")]
    toolcrib: Option<PathBuf>,
    /// Other gateways to measure in the same run: what tests/gateways/install.sh writes.
    #[arg(long, value_name = "FILE")]
    peers: Option<PathBuf>,
    /// Only gateways whose name contains this word.
    #[arg(long, value_name = "WORD")]
    only: Option<String>,
    /// How long each row is measured.
    #[arg(long, default_value = "4s", value_name = "TIME", value_parser = humantime::parse_duration)]
    time: Duration,
    /// Callers at once in the rows for calls a second, each with connections of its own.
    #[arg(long, default_value = "10", value_name = "N", value_parser = at_least_one)]
    callers: NonZeroUsize,
    /// Exit with code 1 unless toolcrib adds less than 100 us to the median, answers 2,500 calls a second, and is ahead of
    /// each peer, which all have to be measured.
    #[arg(long)]
    check: bool,
}

/// One way to the server, with as many clients as there are callers.
struct Way {
    gateway: String,
    how: String,
    clients: Vec<Arc<Client>>,
    alone: Load,
    together: Load,
}

/// The calls of one row.
#[derive(Default)]
struct Load {
    /// Sorted, once all turns are over.
    times: Vec<Duration>,
    wall: Duration,
}

/// A client that calls.
enum Client {
    /// The library, over stdio: the floor.
    Direct(Toolbox, Arc<CatalogEntry>, Map<String, Value>),
    Http(HttpClient, Request),
    Lines(LineClient, Request),
}

impl Client {
    async fn call(&self) -> anyhow::Result<()> {
        let answer = match self {
            Self::Direct(toolbox, entry, arguments) => {
                let result = toolbox.call_entry(entry, arguments, &CallOptions::default()).await?;
                anyhow::ensure!(!result.is_error, "the tool says that it failed: {}", result.text());
                return Ok(());
            }
            Self::Http(client, request) => client.request(request, &nobody).await?,
            Self::Lines(client, request) => client.request(request).await?,
        };
        let result = answer.map_err(|error| anyhow::anyhow!("the call was refused: {error}"))?;
        anyhow::ensure!(result["isError"] != json!(true), "the tool says that it failed: {result}");
        anyhow::ensure!(result["content"][0]["text"] == json!("hello"), "it is not an echo: {result}");
        Ok(())
    }
}

impl GatewayBench {
    pub(super) async fn run(self, context: &Context<'_>) -> anyhow::Result<ExitCode> {
        let scratch = Scratch::new()?;
        let mut gateways = gateways::own(self.toolcrib.as_deref())?;
        if let Some(file) = &self.peers {
            gateways.extend(gateways::peers(file)?);
        }
        if let Some(word) = &self.only {
            gateways.retain(|gateway| gateway.name.contains(word));
        }
        gateways::write_configs(&scratch)?;
        let mut failures = Vec::new();
        let measured = Box::pin(async {
            let (manager, floor) = floor().await?;
            let mut ways = vec![floor];
            let mut running = Vec::new();
            for gateway in &gateways {
                context.ui.status("Starting", &gateway.name);
                match self.start(gateway, &scratch, &mut ways).await {
                    Ok(process) => running.extend(process),
                    Err(error) => failures.push((gateway.name.clone(), format!("{error:#}"))),
                }
            }
            for turn in 1..=TURNS {
                context.ui.status("Measuring", format!("{} ways, turn {turn} of {TURNS}", ways.len()));
                for way in &mut ways {
                    way.measure(self.time / TURNS).await?;
                }
            }
            let mut rows: Vec<table::Row> = ways.iter_mut().map(Way::row).collect();
            drop(ways);
            for process in running {
                process.stop().await;
            }
            manager.shutdown().await;
            table::compare(&mut rows);
            anyhow::Ok(rows)
        });
        let rows = context.cancel.run_until_cancelled(measured).await;
        let rows = rows.unwrap_or_else(|| Err(toolcrib::Error::Cancelled.into()))?;
        if context.ui.json {
            Ui::json(table::document(self.callers.get(), &rows, &failures));
        } else {
            table::print(self.callers.get(), &rows, &failures);
        }
        let missed = table::missed(&rows, &failures);
        for miss in missed.iter().filter(|_| self.check) {
            context.ui.bad("missed", miss);
        }
        Ok(if self.check && !missed.is_empty() { ExitCode::from(1) } else { ExitCode::SUCCESS })
    }

    /// Starts a gateway, and adds a way for each era that it speaks.
    async fn start(
        &self,
        gateway: &Gateway,
        scratch: &Scratch,
        ways: &mut Vec<Way>,
    ) -> anyhow::Result<Option<Running>> {
        let running = gateway.start(scratch).await?;
        let before = ways.len();
        let mut refusals = Vec::new();
        for era in [Era::Legacy, Era::Modern] {
            let mut clients = Vec::new();
            let opening = async {
                for _ in 0..self.callers.get() {
                    clients.push(Arc::new(gateway.client(&running, scratch, era).await?));
                }
                for client in &clients {
                    for _ in 0..WARM_UP {
                        client.call().await?;
                    }
                }
                anyhow::Ok(())
            };
            match tokio::time::timeout(OPEN_LIMIT, opening).await {
                Ok(Ok(())) => {
                    let how = format!("{} {era}", if gateway.url.is_some() { "http" } else { "stdio" });
                    ways.push(Way::new(&gateway.name, how, clients));
                }
                Ok(Err(error)) => refusals.push(format!("{era}: {error:#}")),
                Err(_) => refusals.push(format!("{era}: no answer in {} s", OPEN_LIMIT.as_secs())),
            }
        }
        if ways.len() == before {
            let said = refusals.join("; ");
            running.stop().await;
            anyhow::bail!("{said}");
        }
        Ok(Some(running))
    }
}

/// The server, called by the library over stdio.
async fn floor() -> anyhow::Result<(Manager, Way)> {
    let (program, words) = fakes::command(&["baseline"])?;
    let command = StdioConfig::new(program, words, std::env::temp_dir());
    let mut config = Config::new([ServerConfig::new(ServerName::new(SERVER)?, Endpoint::Stdio(command))]);
    config.servers.values_mut().for_each(|server| server.required = true);
    let manager = Manager::start(&config).await?;
    let toolbox = manager.toolbox();
    let entry = toolbox.catalog().find(SERVER, "echo")?.clone();
    let arguments = Map::from_iter([("text".to_owned(), json!("hello"))]);
    let client = Arc::new(Client::Direct(toolbox, entry, arguments));
    let way = Way::new("none: the library calls the server", "stdio".to_owned(), vec![client]);
    Ok((manager, way))
}

impl Way {
    fn new(gateway: &str, how: String, clients: Vec<Arc<Client>>) -> Self {
        Self { gateway: gateway.to_owned(), how, clients, alone: Load::default(), together: Load::default() }
    }

    /// One caller, then all of them, half of `time` each.
    async fn measure(&mut self, time: Duration) -> anyhow::Result<()> {
        let failed =
            |error: anyhow::Error, way: &Self| error.context(format!("{} ({})", way.gateway, way.how));
        let first = &self.clients[..1];
        let load = call_for(time / 2, first).await.map_err(|error| failed(error, self))?;
        self.alone.add(load);
        let load = call_for(time / 2, &self.clients).await.map_err(|error| failed(error, self))?;
        self.together.add(load);
        Ok(())
    }

    fn row(&mut self) -> table::Row {
        let times = |load: &mut Load| sorted(std::mem::take(&mut load.times).into_iter());
        let (alone, together) = (times(&mut self.alone), times(&mut self.together));
        table::Row {
            gateway: self.gateway.clone(),
            how: self.how.clone(),
            calls: alone.len() + together.len(),
            p50: at_percent(&alone, 50),
            p99: at_percent(&alone, 99),
            added: Duration::ZERO,
            rate: together.len() as f64 / self.together.wall.as_secs_f64().max(f64::MIN_POSITIVE),
            p99_together: at_percent(&together, 99),
        }
    }
}

impl Load {
    fn add(&mut self, other: Self) {
        self.times.extend(other.times);
        self.wall += other.wall;
    }
}

/// Each of `clients` calls for so long, one call after another.
async fn call_for(time: Duration, clients: &[Arc<Client>]) -> anyhow::Result<Load> {
    let began = Instant::now();
    let mut callers = JoinSet::new();
    for client in clients {
        let client = client.clone();
        callers.spawn(async move {
            let mut times = Vec::new();
            while began.elapsed() < time {
                let began = Instant::now();
                tokio::time::timeout(LIMIT, client.call()).await??;
                times.push(began.elapsed());
            }
            anyhow::Ok(times)
        });
    }
    let mut times = Vec::new();
    while let Some(done) = callers.join_next().await {
        times.extend(done??);
    }
    Ok(Load { times, wall: began.elapsed() })
}

/// The tool of the baseline that gives its text back, under whatever name the gateway lists it.
fn echo_of(answer: Answer) -> anyhow::Result<String> {
    let list = answer.map_err(|error| anyhow::anyhow!("tools/list: {error}"))?;
    let names = list["tools"].as_array().into_iter().flatten().filter_map(|tool| tool["name"].as_str());
    let mut names = names.filter(|name| name.ends_with("echo"));
    names.next().map(ToOwned::to_owned).ok_or_else(|| anyhow::anyhow!("it lists no tool `echo`: {list}"))
}

/// Who the clients are.
fn identity(era: Era) -> Identity {
    Identity::new(era, json!({}))
}
