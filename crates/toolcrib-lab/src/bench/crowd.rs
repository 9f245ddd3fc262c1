//! `toolcrib-lab bench crowd`: thousands of connections that say nothing, sessions that say too much of themselves, and clients that
//! read nothing, at `toolcrib serve`: is its memory bounded as configured, and do others notice?

use std::{
    num::NonZeroUsize,
    path::PathBuf,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use clap::Args;
use hyper::Uri;
use rustix::process::Pid;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
    time::{sleep, timeout},
};
use toolcrib::cli_support::{bench::at_percent, raise_file_limit};

use super::clients::{CALLERS, CalledGateway, Calls, call_for, open, resident};
use crate::{
    context::Context,
    ui::{Ui, at_least_one, micros},
};

/// Results of 1 MiB each that one client asks for and does not read.
const UNREAD: usize = 8;
const UNREAD_BYTES: usize = 1 << 20;
/// Values in what a session says of itself: 4 MB.
const SAID: usize = 2_000_000;
/// Bytes that the gateway may hold for one address, as its configuration says, and that it takes besides.
const MAX_HELD: u64 = 256 << 20;
const BESIDES: u64 = 64 << 20;
/// How long the crowd may take to come.
const MOST_COMING: Duration = Duration::from_secs(120);
/// Limit of `--check`: the slowest calls may take so many times as long beside the crowd.
const MOST_TIMES: f64 = 2.0;

#[derive(Args)]
pub(crate) struct Crowd {
    /// Connections that say nothing. Those that are closed are opened again.
    #[arg(long, default_value = "4096", value_name = "N", value_parser = at_least_one)]
    silent: NonZeroUsize,
    /// Sessions that are asked for, each with 4 MB of capabilities.
    #[arg(long, default_value = "1000", value_name = "N", value_parser = at_least_one)]
    sessions: NonZeroUsize,
    /// Clients that read nothing of what they ask for.
    #[arg(long, default_value = "64", value_name = "N", value_parser = at_least_one)]
    unread: NonZeroUsize,
    /// How long callers are measured, without the crowd and once all of it is there.
    #[arg(long, default_value = "10s", value_name = "TIME", value_parser = humantime::parse_duration)]
    time: Duration,
    /// The program to measure [default: the one beside toolcrib-lab].
    #[arg(long, value_name = "PATH")]
    toolcrib: Option<PathBuf>,
    /// Exit with code 1 if a call fails, the 99th percentile doubles once the crowd is there, or memory grows by more than `max_held` and
    /// 64 MiB.
    #[arg(long)]
    check: bool,
}

/// Counts of what the crowd did.
#[derive(Default)]
struct Done {
    over: AtomicBool,
    /// Members that have come, of those that come once: clients that read nothing, and the one with the long introductions.
    arrived: AtomicUsize,
    opened: AtomicU64,
    refused: AtomicU64,
    peak: AtomicU64,
}

struct Report {
    before: u64,
    quiet: Calls,
    /// While the crowd comes, and once it is there.
    coming: Calls,
    crowded: Calls,
    done: Arc<Done>,
}

impl Crowd {
    pub(super) async fn run(self, context: &Context<'_>) -> anyhow::Result<ExitCode> {
        // Each connection is a file on both sides.
        raise_file_limit();
        let measured = Box::pin(self.measure(context));
        let report = context.cancel.run_until_cancelled(measured).await;
        let report = report.unwrap_or_else(|| Err(toolcrib::Error::Cancelled.into()))?;
        if context.ui.json {
            Ui::json(report.document());
        } else {
            report.print();
        }
        Ok(if self.check && !report.holds() { ExitCode::from(1) } else { ExitCode::SUCCESS })
    }

    async fn measure(&self, context: &Context<'_>) -> anyhow::Result<Report> {
        let gateway = CalledGateway::start(self.toolcrib.as_deref()).await?;
        let CalledGateway { url, pid, callers, .. } = &gateway;
        let pid = *pid;
        let before = resident(pid)?;
        context.ui.status("Measuring", format!("{CALLERS} callers alone"));
        let quiet = call_for(self.time, callers).await?;
        let (silent, sessions, unread) = (self.silent, self.sessions, self.unread);
        context.ui.status(
            "Measuring",
            format!("beside {silent} silent connections, {sessions} long introductions, {unread} clients that read nothing"),
        );
        let done = Arc::<Done>::default();
        let address = url.parse::<Uri>()?.authority().context("no host")?.to_string();
        let crowd = Members {
            url: url.clone(),
            address,
            pid,
            silent: silent.get(),
            sessions: sessions.get(),
            unread: unread.get(),
        };
        // On a thread of its own: what it costs itself must not delay the callers.
        let comes = thread::spawn({
            let done = done.clone();
            move || crowd.come(&done)
        });
        let measured = async {
            let began = Instant::now();
            let mut coming = Calls { times: Vec::new(), failed: 0 };
            while done.arrived.load(Relaxed) <= unread.get() && began.elapsed() < MOST_COMING {
                let calls = call_for(Duration::from_millis(500), callers).await?;
                coming.times.extend(calls.times);
                coming.failed += calls.failed;
            }
            coming.times.sort_unstable();
            context.ui.status("Measuring", "once all of them are there");
            anyhow::Ok((coming, call_for(self.time, callers).await?))
        };
        let measured = measured.await;
        done.over.store(true, Relaxed);
        comes.join().map_err(|_| anyhow::anyhow!("the crowd has ended"))??;
        gateway.running.stop().await;
        let (coming, crowded) = measured?;
        Ok(Report { before, quiet, coming, crowded, done })
    }
}

/// The connections, sessions and clients that come.
struct Members {
    url: String,
    address: String,
    pid: Pid,
    silent: usize,
    sessions: usize,
    unread: usize,
}

impl Members {
    fn come(self, done: &Arc<Done>) -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let mut crowd = JoinSet::new();
            for _ in 0..self.silent {
                crowd.spawn(say_nothing(self.address.clone(), done.clone()));
            }
            for _ in 0..self.unread {
                crowd.spawn(read_nothing(self.url.clone(), done.clone()));
            }
            crowd.spawn(say_too_much(self.url.clone(), self.address.clone(), self.sessions, done.clone()));
            crowd.spawn(watch(self.pid, done.clone()));
            while !done.over.load(Relaxed) {
                sleep(Duration::from_millis(50)).await;
            }
            crowd.shutdown().await;
        });
        Ok(())
    }
}

/// A connection that says nothing, again and again.
async fn say_nothing(address: String, done: Arc<Done>) {
    while !done.over.load(Relaxed) {
        if let Ok(mut stream) = TcpStream::connect(&address).await {
            done.opened.fetch_add(1, Relaxed);
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest).await;
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// A client that asks for long results and reads none of them.
async fn read_nothing(url: String, done: Arc<Done>) {
    let asking = async {
        let client = open(&url).await?;
        let mut held = Vec::new();
        for _ in 0..UNREAD {
            let request = client.identity.call("text", &json!({"bytes": UNREAD_BYTES}));
            held.push(timeout(Duration::from_secs(5), client.begin(&request)).await);
        }
        anyhow::Ok(held)
    };
    let held = asking.await;
    done.arrived.fetch_add(1, Relaxed);
    while !done.over.load(Relaxed) {
        sleep(Duration::from_millis(100)).await;
    }
    drop(held);
}

/// Sessions that say 4 MB of themselves, one after the other, each on a connection of its own. The text is made once.
async fn say_too_much(url: String, address: String, sessions: usize, done: Arc<Done>) {
    let said = json!({"experimental": {"x": vec![0; SAID]}});
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "clientInfo": {"name": "crowd", "version": "1"}, "capabilities": said}})
    .to_string();
    let path = url.parse::<Uri>().map(|url| url.path().to_owned()).unwrap_or_default();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\naccept: application/json, text/event-stream\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    for _ in 0..sessions {
        if done.over.load(Relaxed) {
            return;
        }
        let asking = async {
            let mut stream = TcpStream::connect(&address).await?;
            stream.write_all(head.as_bytes()).await?;
            stream.write_all(body.as_bytes()).await?;
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await?;
            std::io::Result::Ok(answer)
        };
        let answer = asking.await.unwrap_or_default();
        // An error of the protocol has status 200 or 400.
        done.refused.fetch_add(u64::from(!contains(&answer, b"\"result\"")), Relaxed);
    }
    done.arrived.fetch_add(1, Relaxed);
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// The greatest memory of the gateway.
async fn watch(pid: Pid, done: Arc<Done>) {
    while !done.over.load(Relaxed) {
        done.peak.fetch_max(resident(pid).unwrap_or_default(), Relaxed);
        sleep(Duration::from_millis(50)).await;
    }
}

impl Report {
    fn times(&self, calls: &Calls) -> f64 {
        let quiet = at_percent(&self.quiet.times, 99).as_secs_f64();
        at_percent(&calls.times, 99).as_secs_f64() / quiet.max(f64::MIN_POSITIVE)
    }

    fn grown(&self) -> u64 {
        self.done.peak.load(Relaxed).saturating_sub(self.before)
    }

    fn holds(&self) -> bool {
        let failed = self.quiet.failed + self.coming.failed + self.crowded.failed;
        failed == 0 && self.times(&self.crowded) <= MOST_TIMES && self.grown() <= MAX_HELD + BESIDES
    }

    fn print(&self) {
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
        let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
        Ui::data(format!("{CALLERS} callers alone: {}", calls(&self.quiet)));
        for (when, measured) in [("while the crowd comes", &self.coming), ("beside the crowd", &self.crowded)]
        {
            Ui::data(format!("{when}: {} ({:.2} times p99)", calls(measured), self.times(measured)));
        }
        Ui::data(format!(
            "memory of the gateway: {} before, {} at most ({} held are allowed for one address)",
            mib(self.before),
            mib(self.done.peak.load(Relaxed)),
            mib(MAX_HELD)
        ));
        Ui::data(format!(
            "silent connections opened: {}; long introductions refused: {}",
            self.done.opened.load(Relaxed),
            self.done.refused.load(Relaxed)
        ));
    }

    fn document(&self) -> serde_json::Value {
        let us = |time: Duration| (time.as_secs_f64() * 1e7).round() / 10.0;
        let calls = |calls: &Calls| {
            let at = |percent| us(at_percent(&calls.times, percent));
            json!({"calls": calls.times.len(), "failed": calls.failed,
                "us": {"p50": at(50), "p99": at(99), "max": at(100)}})
        };
        json!({"schema": 1, "quiet": calls(&self.quiet), "coming": calls(&self.coming), "crowded": calls(&self.crowded),
            "times_p99": {"coming": self.times(&self.coming), "crowded": self.times(&self.crowded)},
            "resident_bytes": {"before": self.before, "peak": self.done.peak.load(Relaxed)},
            "silent_opened": self.done.opened.load(Relaxed), "introductions_refused": self.done.refused.load(Relaxed)})
    }
}
