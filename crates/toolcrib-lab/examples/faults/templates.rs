//! Faults of a template, while one server that was forked from it is called all the time and others start.

use std::{
    error::Error,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use toolcrib::{
    Config, Endpoint, Loan, Manager, ServerConfig, ServerName, StdioConfig, cli_support::bench::Scratch,
    config::Scope, manager::Borrower,
};

use super::{describe, echo, memory};

pub(super) const CASES: &[&str] = &["template-killed", "template-stopped", "template-silent"];
/// Half of them have begun when the fault comes.
const STARTS: usize = 8;
const LIMIT: Duration = Duration::from_secs(60);

/// The module that the servers share. While the environment has the file `hold`, no fork comes to its end.
const SHARED: &str = r#"
import os, sys, time

def hold():
    while os.path.exists(os.path.join(sys.prefix, "hold")):
        time.sleep(0.01)

os.register_at_fork(before=hold)
"#;
const SERVER: &str = r#"
import json, sys
import shared_by_servers

for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    answer = {"jsonrpc": "2.0", "id": asked["id"]}
    if asked["method"] == "initialize":
        answer["result"] = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
            "serverInfo": {"name": "echo", "version": "1"}}
    elif asked["method"] == "tools/list":
        answer["result"] = {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}
    elif asked["method"] == "tools/call":
        answer["result"] = {"content": [{"type": "text", "text": asked["params"]["arguments"]["text"]}]}
    else:
        answer["error"] = {"code": -32601, "message": "unknown"}
    print(json.dumps(answer), flush=True)
"#;

/// Runs one case and returns the outcome, as `meet` does for a fault of a server. `again`: whether there is a template again.
pub(super) async fn meet(case: &str) -> Result<Value, Box<dyn Error>> {
    let scratch = Scratch::new()?;
    let python = environment(&scratch)?;
    let script = scratch.file("server.py");
    std::fs::write(&script, SERVER)?;
    let child = StdioConfig::new(&python, vec![script.display().to_string()], scratch.file(""));
    let mut server = ServerConfig::new(ServerName::new("forked")?, Endpoint::Stdio(child));
    server.scope = Scope::Task;
    let mut config = Config::new([server]);
    config.cache_folder = Some(scratch.file("cache"));
    let manager = Manager::start(&config).await?;
    let held = forked(&manager).await?;
    std::fs::write("/proc/self/clear_refs", "5")?;
    let before = memory("VmRSS:");
    let template =
        template_of(&python).ok_or("the template of a server that was just forked is not there")?;
    let (began, hold) = (Instant::now(), scratch.file("env/hold"));
    let starts = async {
        let mut loans: Vec<Loan> = (0..STARTS / 2).map(|_| manager.lend(Borrower::Task)).collect();
        match case {
            "template-killed" => kill_process(template, Signal::KILL)?,
            "template-stopped" => kill_process(template, Signal::STOP)?,
            _ => std::fs::write(&hold, "")?,
        }
        loans.extend((0..STARTS / 2).map(|_| manager.lend(Borrower::Task)));
        let answers = join_all(loans.iter().map(async |loan| echo(&loan.toolbox(), "forked").await)).await;
        let forked =
            loans.iter().flat_map(|loan| loan.toolbox().status()).filter(|row| row.is_forked).count();
        let answers = answers.into_iter().collect::<toolcrib::Result<Vec<_>>>();
        Ok::<_, std::io::Error>(
            answers
                .map(|answers| format!("{} servers have started, {forked} of them as forks", answers.len())),
        )
    };
    let mut problems = Vec::new();
    let mut slowest = Duration::ZERO;
    let calls = async {
        loop {
            let asked = Instant::now();
            if let Err(error) = echo(&held.toolbox(), "forked").await {
                return error;
            }
            slowest = slowest.max(asked.elapsed());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let mut report = tokio::select! {
        error = calls => {
            problems.push("a server that was forked before has failed".to_owned());
            describe(&error)
        }
        answers = starts => match answers? {
            Ok(message) => json!({"code": "ok", "phase": "start", "message": message}),
            Err(error) => describe(&error),
        },
    };
    report["seconds"] = json!(began.elapsed().as_secs_f64());
    problems
        .push(format!("calls of a server that was forked before took {} ms at most", slowest.as_millis()));
    let _ = std::fs::remove_file(&hold);
    report["again"] = json!(if forked(&manager).await.is_ok() { "yes" } else { "no" });
    drop(held);
    let stopped = manager.shutdown().await;
    if !stopped.survivors.is_empty() {
        problems.push(format!("processes left: {:?}", stopped.survivors));
    }
    report["peak_kb"] = json!(memory("VmHWM:").saturating_sub(before));
    report["problems"] = json!(problems);
    Ok(report)
}

/// A Python with the module that the servers share.
fn environment(scratch: &Scratch) -> Result<PathBuf, Box<dyn Error>> {
    let folder = scratch.file("env");
    let mut venv = Command::new("python3");
    venv.args(["-m", "venv", "--without-pip"]).arg(&folder).stdin(Stdio::null());
    if !venv.status()?.success() {
        return Err("`python3 -m venv` has failed".into());
    }
    let python = folder.join("bin/python");
    let code = "import sysconfig; print(sysconfig.get_path('purelib'))";
    let site = Command::new(&python).args(["-c", code]).output()?.stdout;
    let site = PathBuf::from(String::from_utf8(site)?.trim());
    std::fs::write(site.join("shared_by_servers.py"), SHARED)?;
    Ok(python)
}

/// A server of a task's own that was forked and has answered.
async fn forked(manager: &Manager) -> Result<Loan, Box<dyn Error>> {
    let began = Instant::now();
    while began.elapsed() < LIMIT {
        let loan = manager.lend(Borrower::Task);
        echo(&loan.toolbox(), "forked").await?;
        if loan.toolbox().status().iter().all(|row| row.is_forked) {
            return Ok(loan);
        }
    }
    Err("no server is forked".into())
}

fn template_of(python: &Path) -> Option<Pid> {
    let line = format!("toolcrib-template\0{}\0", python.display());
    let ids = std::fs::read_dir("/proc").ok()?.flatten();
    let mut ids = ids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is_one =
        |pid: &i32| std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|found| found == line.as_bytes());
    Pid::from_raw(ids.find(is_one)?)
}
