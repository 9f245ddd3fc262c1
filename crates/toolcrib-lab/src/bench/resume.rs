//! `toolcrib-lab bench resume`: a run is killed again and again and continued each time; servers count what they do.

use std::{
    collections::HashMap,
    fs,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    process::{ExitCode, Stdio},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use clap::Args;
use serde_json::{Value, json};
use tokio::process::{Child, Command};
use toolcrib::cli_support::bench::Scratch;
use toolcrib_fakes::models::{Arrival, Reply, Server};

use crate::{
    context::Context,
    fakes,
    ui::{Ui, at_least_one, millis, seconds},
};

#[derive(Args)]
pub(crate) struct Resume {
    /// Tasks of the run. Each asks the model four times and calls three tools.
    #[arg(long, default_value = "1000", value_name = "N", value_parser = at_least_one)]
    tasks: NonZeroUsize,
    /// How often the run is killed with SIGKILL, each time at a random moment.
    #[arg(long, default_value = "10", value_name = "N")]
    kills: usize,
    /// Tasks at once.
    #[arg(long, short, default_value = "16", value_name = "N", value_parser = at_least_one)]
    jobs: NonZeroUsize,
    /// Greatest time that the model takes for an answer, in milliseconds; each takes its own.
    #[arg(long, default_value = "20", value_name = "MS")]
    wait: u64,
    /// For the same moments again, as far as the machine allows.
    #[arg(long)]
    seed: Option<u64>,
    /// The program [default: the `toolcrib` beside this one].
    #[arg(long, value_name = "PATH")]
    toolcrib: Option<PathBuf>,
}

/// Calls that each task makes; one more request to the model gives the answer.
const CALLS: usize = 3;

/// Counts of the servers, beside those of the reports.
struct Account {
    tasks: usize,
    kills: usize,
    jobs: usize,
    /// Tasks with the right answer.
    passed: usize,
    requests: usize,
    /// Requests that were sent twice, those among them that the reports count, and all that these count.
    requests_twice: usize,
    calls: usize,
    calls_twice: usize,
    /// Calls that were never made: their outcome was unknown.
    calls_missing: usize,
    repeated: usize,
    unknown: usize,
    reused: usize,
    wall: Duration,
    processes_left: usize,
}

impl Resume {
    pub(super) async fn run(self, context: &Context<'_>) -> anyhow::Result<ExitCode> {
        let folder = Scratch::new()?;
        let (tasks, wait) = (self.tasks.get(), self.wait);
        let model = Server::start(move |arrival: &Arrival| answer(&arrival.body, wait))?;
        let effects = folder.file("effects");
        write_files(&folder, model.url(), &effects, tasks)?;
        let seed = self.seed.unwrap_or_else(|| fastrand::u64(..));
        let mut random = fastrand::Rng::with_seed(seed);
        let program = match self.toolcrib.clone() {
            Some(program) => program,
            None => std::env::current_exe()?.with_file_name("toolcrib"),
        };
        context.ui.status("Running", format!("{tasks} tasks, killed {} times, seed {seed}", self.kills));
        let began = Instant::now();
        // All that a run without kills asks for, in as many parts as there are kills and one more.
        let part = tasks * (CALLS + 1) / (self.kills + 1);
        for kill in 1..=self.kills {
            let at = part * (kill - 1) + random.usize(1..=part.max(1));
            let mut run = self.start(&program, &folder)?;
            while model.seen().requests.len() < at && run.try_wait()?.is_none() {
                tokio::time::sleep(Duration::from_micros(random.u64(500..3000))).await;
                anyhow::ensure!(!context.cancel.is_cancelled(), "cancelled");
            }
            run.kill().await?;
            context.ui.status(
                "Killed",
                format!("{kill} of {} after {} requests", self.kills, model.seen().requests.len()),
            );
        }
        let status = self.start(&program, &folder)?.wait().await?;
        anyhow::ensure!(status.success(), "the last run ended with {status}");
        let results = results(&folder.file("runs"))?;
        let account = self.account(&model, &effects, &results, began.elapsed(), &folder)?;
        account.print(context.ui);
        account.verdict()?;
        Ok(ExitCode::SUCCESS)
    }

    fn start(&self, program: &Path, folder: &Scratch) -> anyhow::Result<Child> {
        let mut command = Command::new(program);
        command.args(["--quiet", "run", "tasks.jsonl", "--jobs", &self.jobs.to_string()]);
        command.current_dir(folder.file("")).env("TOOLCRIB_RESUME_TRIAL", folder.file(""));
        command.stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
        command.spawn().with_context(|| format!("cannot start {}", program.display()))
    }

    fn account(
        &self,
        model: &Server,
        effects: &Path,
        results: &[Value],
        wall: Duration,
        folder: &Scratch,
    ) -> anyhow::Result<Account> {
        let requests = model.seen().times;
        let effects = fs::read_to_string(effects)?;
        let calls = counted(effects.lines());
        let sum = |key: &str| {
            let counts = results.iter().filter_map(|line| line["resumed"][key].as_u64());
            counts.sum::<u64>().try_into().unwrap_or(usize::MAX)
        };
        // Each request of a task is named by its first message, so only their number is known for each.
        let once = CALLS + 1;
        let surplus = |times: &u32| (*times as usize).saturating_sub(once);
        Ok(Account {
            tasks: self.tasks.get(),
            kills: self.kills,
            jobs: self.jobs.get(),
            passed: results.iter().filter(|line| line["status"] == "passed").count(),
            requests: requests.values().map(|times| *times as usize).sum(),
            requests_twice: requests.values().map(surplus).sum(),
            calls: calls.values().sum(),
            calls_twice: calls.values().map(|times| times - 1).sum(),
            calls_missing: self.tasks.get() * CALLS - calls.len(),
            repeated: sum("repeated"),
            unknown: sum("unknown"),
            reused: sum("reused"),
            wall,
            processes_left: left(folder),
        })
    }
}

/// Has task `N` count 100 N, 100 N + 1 and so on, and then answer.
fn answer(body: &Value, wait: u64) -> Reply {
    let messages = body["messages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let done = messages.iter().filter(|message| message["role"] == "tool").count();
    let task: usize = messages[0]["content"].as_str().and_then(|text| text.parse().ok()).unwrap_or_default();
    let message = match done {
        CALLS => json!({"role": "assistant", "content": "done"}),
        _ => {
            let arguments = json!({"n": 100 * task + done}).to_string();
            let function = json!({"name": format!("victim-{}__count", done % 2), "arguments": arguments});
            let call = json!({"id": format!("c{done}"), "type": "function", "function": function});
            json!({"role": "assistant", "content": null, "tool_calls": [call]})
        }
    };
    let choice = json!({"index": 0, "message": message, "finish_reason": "stop"});
    let usage = json!({"prompt_tokens": 10, "completion_tokens": 1});
    Reply::json(200, &json!({"choices": [choice], "usage": usage}))
        .after(Duration::from_millis(fastrand::u64(0..=wait)))
}

fn write_files(folder: &Scratch, url: &str, effects: &Path, tasks: usize) -> anyhow::Result<()> {
    let (program, words) = fakes::command(&["chaos", &format!("count={}", effects.display())])?;
    let server = |n: usize| {
        format!(
            "[servers.victim-{n}]\ncommand = {:?}\nargs = {}\n",
            program.display().to_string(),
            json!(words)
        )
    };
    let config = format!("{}{}[llm]\nmodel = \"counting\"\nbase_url = {url:?}\n", server(0), server(1));
    fs::write(folder.file("servers.toml"), config)?;
    let line =
        |n: usize| json!({"id": n.to_string(), "input": n.to_string(), "target": "done"}).to_string() + "\n";
    fs::write(folder.file("tasks.jsonl"), (0..tasks).map(line).collect::<String>())?;
    Ok(())
}

/// The lines of the one run that there is.
fn results(runs: &Path) -> anyhow::Result<Vec<Value>> {
    let runs: Vec<PathBuf> = fs::read_dir(runs)?.flatten().map(|entry| entry.path()).collect();
    let [run] = &runs[..] else { anyhow::bail!("there are {} runs in place of one", runs.len()) };
    let text = fs::read_to_string(run.join("results.jsonl"))?;
    text.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}

fn counted<'a>(lines: impl Iterator<Item = &'a str>) -> HashMap<&'a str, usize> {
    let mut times = HashMap::new();
    lines.for_each(|line| *times.entry(line).or_default() += 1);
    times
}

/// Processes that were started for this trial and still run.
fn left(folder: &Scratch) -> usize {
    let mark = format!("TOOLCRIB_RESUME_TRIAL={}", folder.file("").display());
    let is_ours = |entry: fs::DirEntry| {
        fs::read(entry.path().join("environ"))
            .is_ok_and(|environ| environ.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes()))
    };
    fs::read_dir("/proc")
        .map_or(0, |entries| entries.flatten().map(is_ours).filter(|is_ours| *is_ours).count())
}

impl Account {
    fn print(&self, ui: &Ui) {
        if ui.json {
            return Ui::json(json!({
                "schema": 1, "tasks": self.tasks, "kills": self.kills, "jobs": self.jobs, "passed": self.passed,
                "requests": self.requests, "requests_twice": self.requests_twice,
                "calls": self.calls, "calls_twice": self.calls_twice, "calls_missing": self.calls_missing,
                "reported": {"reused": self.reused, "repeated": self.repeated, "unknown": self.unknown},
                "processes_left": self.processes_left, "wall_ms": millis(self.wall),
            }));
        }
        Ui::data(format!(
            "tasks {}, passed {}, kills {}, in {}",
            self.tasks,
            self.passed,
            self.kills,
            seconds(self.wall)
        ));
        Ui::data(format!(
            "model requests {}: {} more than without kills; {} reported as sent again",
            self.requests, self.requests_twice, self.repeated
        ));
        Ui::data(format!(
            "tool calls {}: {} run twice, {} not run; {} reported as unknown",
            self.calls, self.calls_twice, self.calls_missing, self.unknown
        ));
        Ui::data(format!(
            "steps taken from the journal {}, processes left {}",
            self.reused, self.processes_left
        ));
    }

    fn verdict(&self) -> anyhow::Result<()> {
        anyhow::ensure!(self.passed == self.tasks, "not every task has its answer");
        anyhow::ensure!(self.calls_twice == 0, "a call was run twice");
        anyhow::ensure!(self.requests_twice <= self.repeated, "a request was sent again without a word");
        anyhow::ensure!(self.calls_missing <= self.unknown, "a call is missing without a word");
        let in_flight = self.kills * self.jobs;
        anyhow::ensure!(
            self.repeated + self.unknown <= in_flight,
            "more steps were in doubt than were under way"
        );
        anyhow::ensure!(self.processes_left == 0, "{} processes are left", self.processes_left);
        Ok(())
    }
}
