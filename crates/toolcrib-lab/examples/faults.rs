//! Injects each fault into a tool server and prints the result: error, time, memory, and whether the server is usable
//! again.
//!
//! `cargo build --workspace && cargo run -p toolcrib-lab --example faults [FAULT..]`. Each fault of
//! `toolcrib-fakes chaos` meets a manager in a process of its own, so that peaks of memory do not add up; beside it a
//! healthy server is called all the time. The last cases are faults of a template of Python servers; they need `python3`.

#![expect(clippy::print_stdout, reason = "an example talks")]

#[path = "faults/templates.rs"]
mod templates;

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use serde_json::{Map, Value, json};
use toolcrib::{Config, Endpoint, Error, Manager, ServerConfig, ServerName, StdioConfig, Toolbox};

/// Faults, with limits of a start and of a call in seconds. `at=2`: the fault comes at the second call, so that the first one
/// shows that the server works.
const CASES: &[(&str, u64, u64)] = &[
    ("", 10, 10),
    ("slow-start=2s", 10, 10),
    ("slow-start=60s", 2, 10),
    ("hang-initialize", 2, 10),
    ("exit code=3", 10, 10),
    ("wrong-version", 10, 10),
    ("wrong-version era=2026-07-28", 10, 10),
    ("garbage=1", 10, 10),
    ("garbage=30", 10, 10),
    ("garbage=200", 10, 10),
    ("pages=new", 10, 10),
    ("pages=same", 10, 10),
    ("slow-reader=200us", 10, 10),
    ("half-message at=2", 10, 30),
    ("giant-line=1GB at=2", 10, 120),
    ("giant-line=16MB at=2", 10, 60),
    ("huge-result=10MiB at=2", 10, 60),
    ("huge-result=15MiB at=2", 10, 60),
    ("huge-image=12MiB at=2", 10, 60),
    ("huge-data=1MB at=2", 10, 60),
    ("huge-data=15MiB at=2", 10, 60),
    ("invalid-utf8 at=2", 10, 10),
    ("malformed at=2", 10, 10),
    ("duplicate=3 at=2", 10, 10),
    ("unknown-id=3 at=2", 10, 10),
    ("unknown-id=200 at=2", 10, 10),
    ("crash=before at=2 code=7", 10, 10),
    ("crash=during at=2 code=7", 10, 10),
    ("crash=after at=2 code=7", 10, 10),
    ("stderr-flood=100MB at=2", 10, 60),
    ("stdout-closed at=2", 10, 10),
    ("stdin-closed at=2", 10, 10),
    ("never-reads at=2", 10, 2),
    ("never-answers at=2", 10, 2),
    ("late=3s at=2", 10, 2),
    ("ignores-cancel=3s at=2", 10, 2),
    ("progress=20ms at=2", 10, 1),
    ("tools-change=told at=2", 10, 10),
    ("tools-change=told at=2 era=2026-07-28", 10, 10),
    ("tools-change=silent at=2", 10, 10),
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, case] = &arguments[..]
        && flag == "--one"
    {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        if templates::CASES.contains(&&**case) {
            println!("{}", runtime.block_on(templates::meet(case))?);
            return Ok(());
        }
        let case = CASES.iter().find(|(name, ..)| name == case).ok_or("no such case")?;
        println!("{}", runtime.block_on(meet(case))?);
        return Ok(());
    }
    let row = |fault: &str, code: &str, phase: &str, time: &str, peak: &str, again: &str, what: &str| {
        println!("{fault:<38} {code:<18} {phase:<10} {time:>8} {peak:>9}  {again:<6} {what}");
    };
    row("fault", "outcome", "phase", "time", "memory", "again", "message");
    let wanted =
        |name: &str| arguments.is_empty() || arguments.iter().any(|part| name.contains(part.as_str()));
    let names = CASES.iter().map(|(name, ..)| *name).chain(templates::CASES.iter().copied());
    for name in names.filter(|name| wanted(name)) {
        let output = std::process::Command::new(std::env::current_exe()?).args(["--one", name]).output()?;
        if !output.status.success() {
            return Err(format!("{name}: {}", String::from_utf8_lossy(&output.stderr)).into());
        }
        let report: Value = serde_json::from_slice(&output.stdout)?;
        let text = |key: &str| report[key].as_str().unwrap_or("-").to_owned();
        let time = format!("{:.2}s", report["seconds"].as_f64().unwrap_or_default());
        let peak = format!("{:+.1}MB", report["peak_kb"].as_f64().unwrap_or_default() / 1000.0);
        let shown = if name.is_empty() { "(none)" } else { name };
        row(shown, &text("code"), &text("phase"), &time, &peak, &text("again"), &text("message"));
        for (sign, key) in [("|", "stderr"), ("=", "causes"), (">", "help"), ("!", "problems")] {
            for line in report[key].as_array().into_iter().flatten() {
                println!("{:<39}{sign} {}", "", line.as_str().unwrap_or_default());
            }
        }
    }
    Ok(())
}

/// The program of the fake servers, which lies one folder above the examples.
fn fakes() -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let fakes = own.parent().and_then(Path::parent).map(|folder| folder.join("toolcrib-fakes"));
    let found = fakes.filter(|program| program.is_file());
    found.ok_or_else(|| "toolcrib-fakes is not there: run `cargo build --workspace` first".to_owned())
}

fn server(name: &str, arguments: &str) -> Result<ServerConfig, String> {
    let arguments = ["chaos"].into_iter().chain(arguments.split_whitespace());
    let child = StdioConfig::new(fakes()?, arguments.map(str::to_owned).collect(), "/");
    Ok(ServerConfig::new(ServerName::new(name).map_err(|error| error.to_string())?, Endpoint::Stdio(child)))
}

/// Runs one case and returns its report.
async fn meet((arguments, start, call): &(&str, u64, u64)) -> Result<Value, Box<dyn std::error::Error>> {
    let mut broken = server("broken", arguments)?;
    broken.startup_timeout = Duration::from_secs(*start);
    broken.call_timeout = Duration::from_secs(*call);
    broken.max_call_time = Duration::from_secs(2 * *call);
    let config = Config::new([broken, server("healthy", "")?]);
    // Warm up, so that the costs of a first use are not counted.
    let warm = Manager::start(&Config::new([server("broken", "")?])).await?;
    echo(&warm.toolbox(), "broken").await?;
    warm.shutdown().await;
    std::fs::write("/proc/self/clear_refs", "5")?;
    let before = memory("VmRSS:");
    let began = Instant::now();
    let manager = Manager::start(&config).await?;
    let tools = manager.toolbox();
    let mut problems = Vec::new();
    let (outcome, took, again) = match &manager.report().servers[0].outcome {
        Err(error) => (Err(describe(error)), began.elapsed(), "-"),
        Ok(_) => {
            let neighbour = async {
                let mut slowest = Duration::ZERO;
                loop {
                    let asked = Instant::now();
                    if echo(&tools, "healthy").await.is_err() {
                        return (slowest, false);
                    }
                    slowest = slowest.max(asked.elapsed());
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            };
            tokio::select! {
                (_, well) = neighbour => {
                    problems.push(format!("the neighbour failed (well: {well})"));
                    (Err(json!({})), began.elapsed(), "-")
                }
                outcome = call_until_it_breaks(&tools) => outcome,
            }
        }
    };
    if arguments.starts_with("tools-change") {
        // Time for the notification to arrive.
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let tools_now =
        tools.catalog().entries().iter().filter(|entry| entry.server.as_str() == "broken").count();
    let stopped = manager.shutdown().await;
    if !stopped.survivors.is_empty() {
        problems.push(format!("processes left: {:?}", stopped.survivors));
    }
    let peak = memory("VmHWM:").saturating_sub(before);
    let mut report = match outcome {
        Ok(text) => json!({"code": "ok", "phase": "call", "message": format!("{text}; {tools_now} tools")}),
        Err(report) => report,
    };
    report["seconds"] = json!(took.as_secs_f64());
    report["peak_kb"] = json!(peak);
    report["again"] = json!(again);
    report["problems"] = json!(problems);
    Ok(report)
}

type Outcome = (Result<String, Value>, Duration, &'static str);

/// The first failure among three calls, or what the second one said; then whether the server answers again.
async fn call_until_it_breaks(tools: &Toolbox) -> Outcome {
    let (mut said, mut took) = (String::new(), Duration::ZERO);
    for number in 1..=3 {
        let began = Instant::now();
        match echo(tools, "broken").await {
            Ok(text) if number == 2 => (said, took) = (ends(&text), began.elapsed()),
            Ok(_) => {}
            Err(error) => {
                let took = began.elapsed();
                // Two more may be lost to what is still under way; the third must be answered.
                for _ in 0..3 {
                    if echo(tools, "broken").await.is_ok() {
                        return (Err(describe(&error)), took, "yes");
                    }
                }
                return (Err(describe(&error)), took, "no");
            }
        }
    }
    (Ok(said), took, "yes")
}

/// A text, or the last 140 characters of a long one, on one line.
fn ends(text: &str) -> String {
    let characters: Vec<char> = text.chars().collect();
    if characters.len() < 160 {
        return text.to_owned();
    }
    let tail: String = characters[characters.len() - 140..].iter().collect();
    format!("...{}", tail.replace('\n', " "))
}

async fn echo(tools: &Toolbox, server: &str) -> toolcrib::Result<String> {
    let arguments = Map::from_iter([("text".to_owned(), Value::from("here"))]);
    Ok(tools.call(server, "echo", arguments).await?.text())
}

fn describe(error: &Error) -> Value {
    json!({
        "code": error.code(),
        "phase": error.phase(),
        "message": error.to_string(),
        "causes": error.causes(),
        "stderr": error.stderr_tail().last().into_iter().collect::<Vec<_>>(),
        "help": error.help().into_iter().collect::<Vec<_>>(),
    })
}

/// A line of this process's status, in kilobytes. Zero where there is no `/proc`.
fn memory(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok()).unwrap_or(0)
}
