//! `toolcrib-lab bench clients`: many idle clients of `toolcrib serve`, one that reads nothing, and others that vanish in the
//! middle of a call: what they cost, and whether the rest notices. At the end the gateway is killed: is a process left?

use std::{
    collections::BTreeMap,
    fs,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Context as _;
use clap::Args;
use hyper::{Response, body::Incoming};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tokio::task::JoinSet;
use toolcrib::cli_support::{
    bench::{Scratch, at_percent, sorted},
    raise_file_limit,
};

use super::gateway::gateways::{self, Running};
use crate::{
    context::Context,
    mcp::{Era, HttpClient, Identity, nobody},
    ui::{Ui, at_least_one, micros},
};

/// Callers that are measured.
pub(super) const CALLERS: usize = 10;
/// How many clients connect at once.
const CONNECTING: usize = 50;
/// Results of 1 MiB each that are asked for and not read.
const UNREAD: usize = 64;
const UNREAD_BYTES: usize = 1 << 20;
/// How long a vanishing client waits for its answer, and how long the answer takes.
const PATIENCE: Duration = Duration::from_millis(50);
const SLOW_MS: u64 = 1000;
/// How long processes may stay when the gateway was killed.
const GRACE: Duration = Duration::from_secs(3);
/// How long one answer may take before something is broken.
const LIMIT: Duration = Duration::from_secs(30);
/// Limit of `--check`: calls beside the disturbance may take so many times as long as without it.
const MOST_TIMES: f64 = 2.0;

#[derive(Args)]
pub(crate) struct Clients {
    /// Idle clients, each with a session and an open stream.
    #[arg(long, default_value = "1000", value_name = "N", value_parser = at_least_one)]
    clients: NonZeroUsize,
    /// How long callers are measured, without the disturbance and with it.
    #[arg(long, default_value = "5s", value_name = "TIME", value_parser = humantime::parse_duration)]
    time: Duration,
    /// The program to measure [default: the one beside toolcrib-lab].
    #[arg(long, value_name = "PATH")]
    toolcrib: Option<PathBuf>,
    /// Exit with code 1 if a call fails, the median doubles beside the disturbance, or a process is left.
    #[arg(long)]
    check: bool,
}

/// A gateway, and callers that have made their first calls: what these allocate is not for others.
pub(super) struct CalledGateway {
    pub(super) running: Running,
    pub(super) url: String,
    pub(super) pid: Pid,
    pub(super) callers: Vec<Arc<HttpClient>>,
    // Removed last.
    _scratch: Scratch,
}

impl CalledGateway {
    /// Starts `toolcrib serve`: the program at `toolcrib`, or the one beside this one.
    pub(super) async fn start(toolcrib: Option<&Path>) -> anyhow::Result<Self> {
        let scratch = Scratch::new()?;
        gateways::write_configs(&scratch)?;
        let serve = gateways::own(toolcrib)?.into_iter().next().context("no gateway")?;
        let running = serve.start(&scratch).await?;
        let (url, pid) = (running.url().context("no address")?, running.pid().context("it has ended")?);
        let mut callers = Vec::new();
        for _ in 0..CALLERS {
            callers.push(Arc::new(open(&url).await?));
        }
        call_for(Duration::from_millis(500), &callers).await?;
        Ok(Self { running, url, pid, callers, _scratch: scratch })
    }
}

/// Calls of the callers.
pub(super) struct Calls {
    /// Sorted.
    pub(super) times: Vec<Duration>,
    pub(super) failed: usize,
}

struct Report {
    idle_bytes: u64,
    one: u64,
    all: u64,
    peak: u64,
    quiet: Calls,
    disturbed: Calls,
    vanished: usize,
    /// Idle clients that got an answer at the end.
    served: usize,
    left: Vec<String>,
}

impl Clients {
    pub(super) async fn run(self, context: &Context<'_>) -> anyhow::Result<ExitCode> {
        // Each client has a connection, on both sides.
        raise_file_limit();
        let measured = Box::pin(self.measure(context));
        let report = context.cancel.run_until_cancelled(measured).await;
        let report = report.unwrap_or_else(|| Err(toolcrib::Error::Cancelled.into()))?;
        if context.ui.json {
            Ui::json(report.document(self.clients.get()));
        } else {
            report.print(self.clients.get());
        }
        let good = report.holds(self.clients.get());
        Ok(if self.check && !good { ExitCode::from(1) } else { ExitCode::SUCCESS })
    }

    async fn measure(&self, context: &Context<'_>) -> anyhow::Result<Report> {
        let gateway = CalledGateway::start(self.toolcrib.as_deref()).await?;
        let CalledGateway { url, pid, callers, .. } = &gateway;
        let pid = *pid;
        let one = resident(pid)?;
        context.ui.status("Connecting", format!("{} clients", self.clients));
        let idle = connect(url, self.clients.get()).await?;
        let all = resident(pid)?;
        context.ui.status("Measuring", format!("{CALLERS} callers beside them"));
        let quiet = call_for(self.time, callers).await?;
        context.ui.status("Measuring", "beside one that reads nothing, and others that vanish in mid-call");
        let over = AtomicBool::new(false);
        let unread = read_nothing(url).await?;
        // The server gives all of them on one stream: an answer that comes after them shows that they have passed.
        anyhow::ensure!(call(&callers[0]).await, "no answer behind the results that nobody reads");
        let vanishing = vanish(url, &over);
        let disturbed = async {
            let calls = call_for(self.time, callers).await;
            over.store(true, Ordering::Relaxed);
            calls
        };
        let (vanished, disturbed) = tokio::join!(vanishing, disturbed);
        let peak = resident(pid)?;
        let served = call_once_each(&idle).await;
        drop(unread);
        let below = descendants(pid);
        kill_process(pid, Signal::KILL)?;
        let left = left_of(&below).await;
        gateway.running.stop().await;
        let idle_bytes = all.saturating_sub(one) / self.clients.get() as u64;
        Ok(Report {
            idle_bytes,
            one,
            all,
            peak,
            quiet,
            disturbed: disturbed?,
            vanished: vanished?,
            served,
            left,
        })
    }
}

pub(super) async fn open(url: &str) -> anyhow::Result<HttpClient> {
    let opening = HttpClient::open(url, Identity::new(Era::Legacy, json!({})));
    tokio::time::timeout(LIMIT, opening).await?
}

/// So many clients, each with the stream that it listens to.
async fn connect(url: &str, count: usize) -> anyhow::Result<Vec<(HttpClient, Response<Incoming>)>> {
    let mut clients = Vec::new();
    let mut connecting = JoinSet::new();
    for number in 0..count {
        let url = url.to_owned();
        connecting.spawn(async move {
            let client = open(&url).await?;
            let stream = client.listen().await?;
            anyhow::Ok((client, stream))
        });
        if number >= CONNECTING
            && let Some(connected) = connecting.join_next().await
        {
            clients.push(connected??);
        }
    }
    while let Some(connected) = connecting.join_next().await {
        clients.push(connected??);
    }
    Ok(clients)
}

/// Each of `callers` calls for so long, one call after another.
pub(super) async fn call_for(time: Duration, callers: &[Arc<HttpClient>]) -> anyhow::Result<Calls> {
    let began = Instant::now();
    let mut calling = JoinSet::new();
    for client in callers {
        let client = client.clone();
        calling.spawn(async move {
            let (mut times, mut failed) = (Vec::new(), 0);
            while began.elapsed() < time {
                let began = Instant::now();
                failed += usize::from(!call(&client).await);
                times.push(began.elapsed());
            }
            (times, failed)
        });
    }
    let mut calls = Calls { times: Vec::new(), failed: 0 };
    while let Some(done) = calling.join_next().await {
        let (times, failed) = done?;
        calls.times.extend(times);
        calls.failed += failed;
    }
    calls.times = sorted(calls.times.into_iter());
    Ok(calls)
}

/// Whether an echo comes back.
async fn call(client: &HttpClient) -> bool {
    let request = client.identity.call("echo", &json!({"text": "hello"}));
    let answer = tokio::time::timeout(LIMIT, client.request(&request, &nobody)).await;
    matches!(answer, Ok(Ok(Ok(result))) if result["content"][0]["text"] == json!("hello"))
}

/// A client that asks for long results and reads none of them, until what is given back is dropped.
async fn read_nothing(url: &str) -> anyhow::Result<JoinSet<anyhow::Result<()>>> {
    let client = Arc::new(open(url).await?);
    let mut unread = JoinSet::new();
    for _ in 0..UNREAD {
        let client = client.clone();
        unread.spawn(async move {
            let request = client.identity.call("text", &json!({"bytes": UNREAD_BYTES}));
            let _response = client.begin(&request).await?;
            std::future::pending().await
        });
    }
    Ok(unread)
}

/// Clients that ask for a slow answer and are gone before it comes, until it is `over`: how many.
async fn vanish(url: &str, over: &AtomicBool) -> anyhow::Result<usize> {
    let mut vanished = 0;
    while !over.load(Ordering::Relaxed) {
        let client = open(url).await?;
        let request = client.identity.call("sleep", &json!({"ms": SLOW_MS}));
        let answer = tokio::time::timeout(PATIENCE, client.request(&request, &nobody)).await;
        anyhow::ensure!(answer.is_err(), "a slow answer came at once: {answer:?}");
        vanished += 1;
    }
    Ok(vanished)
}

/// How many of the idle clients get an answer.
async fn call_once_each(idle: &[(HttpClient, Response<Incoming>)]) -> usize {
    let mut served = 0;
    for clients in idle.chunks(CONNECTING) {
        let calls = clients.iter().map(|(client, _)| call(client));
        served += futures_util::future::join_all(calls).await.into_iter().filter(|good| *good).count();
    }
    served
}

/// The memory of a process that is in use, in bytes.
pub(super) fn resident(pid: Pid) -> anyhow::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? * 1024)
}

/// The living processes below `pid`, with the time of their start, which no later process of the same id has.
fn descendants(pid: Pid) -> BTreeMap<i32, String> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        if let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok())
            && let Some(stat) = stat(pid)
        {
            all.insert(pid, stat);
        }
    }
    let mut below = BTreeMap::new();
    let mut found = vec![pid.as_raw_nonzero().get()];
    while let Some(parent) = found.pop() {
        for (pid, (_, start, _)) in all.iter().filter(|(_, (of, ..))| *of == parent) {
            below.insert(*pid, start.clone());
            found.push(*pid);
        }
    }
    below
}

/// Parent, time of start and state of a process.
fn stat(pid: i32) -> Option<(i32, String, String)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<_> = stat.rsplit(')').next()?.split_whitespace().collect();
    Some((fields.get(1)?.parse().ok()?, (*fields.get(19)?).to_owned(), (*fields.first()?).to_owned()))
}

/// Waits for the processes `below` to end, and returns those that still live when their time is over.
async fn left_of(below: &BTreeMap<i32, String>) -> Vec<String> {
    let alive = |pid: i32, start: &str| {
        stat(pid).is_some_and(|(_, since, state)| since == start && state != "Z" && state != "X")
    };
    let deadline = Instant::now() + GRACE;
    loop {
        let left: Vec<_> = below.iter().filter(|(pid, start)| alive(**pid, start)).collect();
        if left.is_empty() || Instant::now() > deadline {
            return left.into_iter().map(|(pid, _)| pid.to_string()).collect();
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

impl Report {
    fn times(&self) -> f64 {
        let quiet = at_percent(&self.quiet.times, 50).as_secs_f64();
        at_percent(&self.disturbed.times, 50).as_secs_f64() / quiet.max(f64::MIN_POSITIVE)
    }

    fn holds(&self, clients: usize) -> bool {
        let failed = self.quiet.failed + self.disturbed.failed;
        failed == 0 && self.served == clients && self.left.is_empty() && self.times() <= MOST_TIMES
    }

    fn print(&self, clients: usize) {
        let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
        let calls = |calls: &Calls| {
            format!(
                "{} calls, {} failed, p50 {}, p99 {}, max {}",
                calls.times.len(),
                calls.failed,
                micros(at_percent(&calls.times, 50)),
                micros(at_percent(&calls.times, 99)),
                micros(at_percent(&calls.times, 100))
            )
        };
        Ui::data(format!(
            "memory of the gateway: {} with {CALLERS} clients, {} with {clients} idle ones: {:.1} KiB for each",
            mib(self.one),
            mib(self.all),
            self.idle_bytes as f64 / 1024.0
        ));
        Ui::data(format!("{CALLERS} callers beside them: {}", calls(&self.quiet)));
        Ui::data(format!(
            "and beside one that leaves {UNREAD} results of 1 MiB unread, and {} that vanish: {} ({:.2} times the median)",
            self.vanished,
            calls(&self.disturbed),
            self.times()
        ));
        Ui::data(format!("memory of the gateway then: {}", mib(self.peak)));
        Ui::data(format!("idle clients that get an answer afterwards: {} of {clients}", self.served));
        Ui::data(match self.left.is_empty() {
            true => "processes that outlive SIGKILL of the gateway: none".to_owned(),
            false => format!("processes that outlive SIGKILL of the gateway: {}", self.left.join(", ")),
        });
    }

    fn document(&self, clients: usize) -> serde_json::Value {
        let us = |time: Duration| (time.as_secs_f64() * 1e7).round() / 10.0;
        let calls = |calls: &Calls| {
            let at = |percent| us(at_percent(&calls.times, percent));
            json!({"calls": calls.times.len(), "failed": calls.failed,
                "us": {"p50": at(50), "p99": at(99), "max": at(100)}})
        };
        json!({"schema": 1, "idle_clients": clients, "bytes_for_each": self.idle_bytes,
            "resident_bytes": {"with_callers": self.one, "with_idle": self.all, "disturbed": self.peak},
            "quiet": calls(&self.quiet), "disturbed": calls(&self.disturbed), "times_median": self.times(),
            "vanished": self.vanished, "idle_served": self.served, "left": self.left})
    }
}
