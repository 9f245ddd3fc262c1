//! Reads the folder of a run, complete or of a killed run: it uses the lines that exist.

use std::{
    collections::HashMap,
    fs::File,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
};

use serde::Deserialize;
use serde_json::Value;
use toolcrib::{CallEnded, Error, Event, EventLine, ModelEnded, PhasesNs, RunEnd, Timings, Told, Usage};

/// All that a report is made of.
pub(super) struct Run {
    pub(super) dir: PathBuf,
    pub(super) manifest: Value,
    pub(super) started: Option<String>,
    pub(super) jobs: usize,
    /// All tasks of the run, those that never began included; 0 where the folder does not say.
    pub(super) tasks_total: usize,
    /// From the beginning to the last line, in milliseconds.
    pub(super) wall_ms: f64,
    /// `None`: it was killed, or still runs.
    pub(super) end: Option<RunEnd>,
    /// Events that were not written since there were too many.
    pub(super) dropped: u64,
    pub(super) servers: Vec<Server>,
    /// In the order in which they began.
    pub(super) tasks: Vec<Task>,
}

/// One server over the whole run.
#[derive(Default)]
pub(super) struct Server {
    pub(super) name: String,
    pub(super) start: Start,
    pub(super) marks: Vec<Mark>,
}

/// How the first start of a server went.
#[derive(Default)]
pub(super) enum Start {
    #[default]
    Unknown,
    Parked {
        tools: usize,
    },
    Ready {
        at_ms: f64,
        took_ms: f64,
        tools: usize,
        era: String,
        phases: PhasesNs,
    },
    Failed {
        at_ms: f64,
        took_ms: f64,
        error: Told,
    },
}

/// Something that befell a server later.
pub(super) struct Mark {
    pub(super) at_ms: f64,
    pub(super) bad: bool,
    pub(super) words: String,
}

/// One attempt at a task.
#[derive(Default)]
pub(super) struct Task {
    pub(super) task: String,
    pub(super) attempt: u32,
    pub(super) start_ms: f64,
    pub(super) end_ms: f64,
    /// As in `results.jsonl`, or `unfinished`.
    pub(super) status: String,
    /// Its line of `results.jsonl`.
    pub(super) result: Line,
    /// In the order in which they began.
    pub(super) spans: Vec<Span>,
}

/// What a report needs of a line of `results.jsonl`.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Line {
    pub(super) task: String,
    pub(super) attempt: u32,
    pub(super) status: String,
    pub(super) reason: Option<String>,
    pub(super) answer: Option<String>,
    pub(super) target: Option<Value>,
    pub(super) error: Option<Failure>,
    pub(super) started: String,
    pub(super) wall_ms: f64,
    pub(super) time_ms: Timings,
    pub(super) turns: u32,
    pub(super) tool_calls: u32,
    pub(super) tool_errors: u32,
    pub(super) llm_calls: u32,
    pub(super) llm_retries: u32,
    pub(super) tokens: Usage,
    pub(super) messages: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct Failure {
    pub(super) code: String,
    pub(super) message: String,
    pub(super) server: Option<String>,
    #[serde(default)]
    pub(super) stderr_tail: Vec<String>,
}

/// A request to the model or a tool call. What has no end was under way when the run was killed.
pub(super) struct Span {
    pub(super) turn: u32,
    pub(super) agent: String,
    pub(super) start_ms: f64,
    pub(super) what: What,
}

pub(super) enum What {
    Model(Option<ModelEnded>),
    Call { server: String, tool: String, end: Option<CallEnded> },
}

impl Span {
    /// When it ended, `last` at the latest.
    pub(super) fn end_ms(&self, last: f64) -> f64 {
        match &self.what {
            What::Model(Some(end)) => self.start_ms + millis(end.took_ns),
            What::Call { end: Some(end), .. } => self.start_ms + millis(end.took_ns),
            What::Model(None) | What::Call { end: None, .. } => last,
        }
    }
}

pub(super) fn millis(ns: u64) -> f64 {
    ns as f64 / 1e6
}

/// Reads the folder of a run.
///
/// # Errors
/// [`Error::Io`], [`Error::Input`] for a folder that is none of a run.
pub(super) fn read(dir: &Path) -> Result<Run, Error> {
    let manifest = std::fs::read_to_string(dir.join("run.json"))
        .map_err(|error| Error::io(format!("cannot read {}", dir.join("run.json").display()), error))?;
    let manifest: Value = serde_json::from_str(&manifest)
        .map_err(|error| Error::input(format!("{}: {error}", dir.join("run.json").display()), None))?;
    let number = |key: &str| manifest[key].as_u64().and_then(|number| usize::try_from(number).ok());
    let mut run = Run {
        dir: dir.to_owned(),
        jobs: number("jobs").unwrap_or(1),
        tasks_total: number("tasks_total").unwrap_or_default(),
        manifest,
        started: None,
        wall_ms: 0.0,
        end: None,
        dropped: 0,
        servers: Vec::new(),
        tasks: Vec::new(),
    };
    let mut book = Book::default();
    let known = run.manifest["servers"].as_object();
    let known: Vec<String> = known.into_iter().flatten().map(|(name, _)| name.clone()).collect();
    for name in known {
        book.server(&mut run, &name);
    }
    each_line(&dir.join("events.jsonl"), |line: EventLine| book.take(&mut run, line))?;
    each_line(&dir.join("results.jsonl"), |line: Line| book.result(&mut run, line))?;
    for task in &mut run.tasks {
        if task.status.is_empty() {
            "unfinished".clone_into(&mut task.status);
            task.end_ms = run.wall_ms;
        }
        task.end_ms = task.end_ms.max(task.start_ms);
    }
    run.tasks_total = run.tasks_total.max(run.tasks.len());
    Ok(run)
}

/// Lines that cannot be read are those that were being written when the run was killed.
fn each_line<T: for<'de> Deserialize<'de>>(path: &Path, mut take: impl FnMut(T)) -> Result<(), Error> {
    let failed = |error| Error::io(format!("cannot read {}", path.display()), error);
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    let mut file = BufReader::new(file);
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        if file.read_until(b'\n', &mut bytes).map_err(failed)? == 0 {
            return Ok(());
        }
        if let Ok(line) = serde_json::from_slice(&bytes) {
            take(line);
        }
    }
}

/// Where things are in the run that is being read.
#[derive(Default)]
struct Book {
    servers: HashMap<String, usize>,
    tasks: HashMap<(String, u32), usize>,
    /// The last attempt at each task: events of its agents do not repeat its number.
    latest: HashMap<String, usize>,
    /// Spans without an end, by task, agent, whether it is a request to the model, and number.
    open: HashMap<Key, usize>,
}

type Key = (String, String, bool, u32);

impl Book {
    fn server<'a>(&mut self, run: &'a mut Run, name: &str) -> &'a mut Server {
        let index = *self.servers.entry(name.to_owned()).or_insert_with(|| {
            run.servers.push(Server { name: name.to_owned(), ..Server::default() });
            run.servers.len() - 1
        });
        &mut run.servers[index]
    }

    fn mark(&mut self, run: &mut Run, server: &str, at_ms: f64, bad: bool, words: String) {
        self.server(run, server).marks.push(Mark { at_ms, bad, words });
    }

    fn task<'a>(&mut self, run: &'a mut Run, task: &str, attempt: u32, at_ms: f64) -> &'a mut Task {
        let index = *self.tasks.entry((task.to_owned(), attempt)).or_insert_with(|| {
            run.tasks.push(Task { task: task.to_owned(), attempt, start_ms: at_ms, ..Task::default() });
            run.tasks.len() - 1
        });
        self.latest.insert(task.to_owned(), index);
        &mut run.tasks[index]
    }

    /// The row of a task that ended with this attempt. It may have begun with an earlier one: one row has all attempts.
    fn ended<'a>(&mut self, run: &'a mut Run, task: &str, attempt: u32, at_ms: f64) -> &'a mut Task {
        let key = (task.to_owned(), attempt);
        if let Some(latest) = self.latest.get(task) {
            self.tasks.entry(key).or_insert(*latest);
        }
        let row = self.task(run, task, attempt, at_ms);
        row.attempt = attempt;
        row
    }

    fn open(&mut self, run: &mut Run, key: Key, span: Span) {
        let Some(task) = self.latest.get(&key.0).map(|index| &mut run.tasks[*index]) else { return };
        task.spans.push(span);
        self.open.insert(key, task.spans.len() - 1);
    }

    fn close<'a>(&mut self, run: &'a mut Run, key: &Key) -> Option<&'a mut What> {
        let index = self.open.remove(key)?;
        let task = self.latest.get(&key.0).map(|index| &mut run.tasks[*index])?;
        task.spans.get_mut(index).map(|span| &mut span.what)
    }

    fn take(&mut self, run: &mut Run, line: EventLine) {
        let at_ms = millis(line.ns);
        run.wall_ms = run.wall_ms.max(at_ms);
        match line.event {
            Event::RunStarted { jobs, tasks_total, .. } => {
                (run.started, run.jobs, run.tasks_total) = (Some(line.at), jobs, tasks_total);
            }
            Event::RunEnded { status, dropped, .. } => (run.end, run.dropped) = (Some(status), dropped),
            Event::ServerQueued { server, .. } | Event::ServerStarting { server, .. } => {
                self.server(run, &server);
            }
            Event::ServerParked { server, tools } => {
                self.server(run, &server).start = Start::Parked { tools };
            }
            Event::ServerReady { server, era, tools, took_ns, phases_ns: phases, .. } => {
                let took_ms = millis(took_ns);
                let first = Start::Ready { at_ms, took_ms, tools, era, phases };
                match &mut self.server(run, &server).start {
                    start @ Start::Unknown => *start = first,
                    _ => self.mark(run, &server, at_ms, false, format!("started in {took_ms:.0} ms")),
                }
            }
            Event::ServerFailed { server, took_ns, error } => {
                let took_ms = millis(took_ns);
                match &mut self.server(run, &server).start {
                    start @ Start::Unknown => *start = Start::Failed { at_ms, took_ms, error },
                    _ => self.mark(run, &server, at_ms, true, error.message),
                }
            }
            Event::ServerLost { server, error, .. } => self.mark(run, &server, at_ms, true, error.message),
            Event::ServerRestarted { server, restarts, took_ns, .. } => {
                let words = format!("restart {restarts}: ready after {:.0} ms", millis(took_ns));
                self.mark(run, &server, at_ms, false, words);
            }
            Event::ServerRestartFailed { server, error, .. } => {
                self.mark(run, &server, at_ms, true, format!("did not come back: {}", error.message));
            }
            Event::ServerGaveUp { server, error, .. } => {
                self.mark(run, &server, at_ms, true, format!("given up: {}", error.message));
            }
            Event::TaskStarted { task, attempt } => drop(self.task(run, &task, attempt, at_ms)),
            Event::TaskEnded { task, attempt, status, .. } => {
                let task = self.ended(run, &task, attempt, at_ms);
                task.end_ms = at_ms;
                task.status = serde_json::to_value(status)
                    .ok()
                    .and_then(|status| status.as_str().map(str::to_owned))
                    .unwrap_or_default();
            }
            Event::ModelStarted { task, agent, turn, .. } => {
                let span = Span { turn, agent: agent.clone(), start_ms: at_ms, what: What::Model(None) };
                self.open(run, (task, agent, true, turn), span);
            }
            Event::ModelEnded(ended) => {
                let key = (ended.task.clone(), ended.agent.clone(), true, ended.turn);
                if let Some(What::Model(end)) = self.close(run, &key) {
                    *end = Some(ended);
                }
            }
            Event::CallStarted { task, agent, turn, call, server, tool, .. } => {
                let what = What::Call { server, tool, end: None };
                let span = Span { turn, agent: agent.clone(), start_ms: at_ms, what };
                self.open(run, (task, agent, false, call), span);
            }
            Event::CallEnded(ended) => {
                let key = (ended.task.clone(), ended.agent.clone(), false, ended.call);
                if let Some(What::Call { end, .. }) = self.close(run, &key) {
                    *end = Some(ended);
                }
            }
            _ => {}
        }
    }

    fn result(&mut self, run: &mut Run, line: Line) {
        let last = run.wall_ms;
        let known = self.latest.contains_key(&line.task);
        let task = self.ended(run, &line.task, line.attempt.max(1), last);
        if !known {
            // Not begun, or its events were too many.
            (task.start_ms, task.end_ms) = (last, last);
        }
        task.status.clone_from(&line.status);
        task.result = line;
    }
}
