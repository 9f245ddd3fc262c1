//! A trace for Perfetto, in JSON of the Chrome trace format. Tasks that ran at the same time have a track each, with
//! the requests and calls below them; every server has a track too.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    io::Write,
};

use serde_json::{Value, json};

use super::{ExportSummary, output, run_reader::RunReader};
use crate::{
    error::Result,
    run_files::{AttemptRow, CallEnded, Event, EventLine, ModelEnded},
};

/// The groups of tracks.
const TASKS: u32 = 1;
const SERVERS: u32 = 2;
/// Numbers of tracks are unique in the whole trace, and none is that of a group.
const TRACKS: usize = 1_000_000;
/// Tracks that each task running at the same time may have: one of its own, the others for what runs side by side in it.
const LANES: usize = 64;

/// A request or a call: its task, its agent, whether it is a request, and its number.
type StepKey = (String, String, bool, u32);

struct Trace<'a> {
    out: &'a mut dyn Write,
    wanted: Option<HashSet<String>>,
    /// The tasks that are under way, each at the place of its tracks.
    slots: Vec<Option<OpenTask>>,
    /// The places that are free again.
    free: BTreeSet<usize>,
    /// Places of the tasks that are under way, by name.
    places: HashMap<String, usize>,
    named: HashSet<(u32, usize)>,
    servers: HashMap<String, usize>,
    /// Tasks of which something was written: one that was interrupted has several parts.
    tasks: HashSet<String>,
    last_ns: u64,
}

struct OpenTask {
    id: String,
    attempt: u32,
    began: u64,
    steps: HashMap<StepKey, OpenStep>,
    lanes: Vec<bool>,
}

struct OpenStep {
    name: String,
    began: u64,
    lane: usize,
}

pub(super) fn write(run: &RunReader, out: &mut dyn Write) -> Result<ExportSummary> {
    write!(
        out,
        "{{\"displayTimeUnit\":\"ms\",\"otherData\":{},\"traceEvents\":[",
        json!({"run": run.run(), "toolcrib": run.version()})
    )
    .map_err(output::failed)?;
    let mut trace = Trace {
        out,
        wanted: run.wanted_tasks()?,
        slots: Vec::new(),
        free: BTreeSet::new(),
        places: HashMap::new(),
        named: HashSet::new(),
        servers: HashMap::new(),
        tasks: HashSet::new(),
        last_ns: 0,
    };
    trace.process(TASKS, "tasks", true)?;
    trace.process(SERVERS, "servers", false)?;
    run.each_event(|line| trace.event(line))?;
    for slot in 0..trace.slots.len() {
        trace.end_task(slot, json!({"status": "unfinished"}))?;
    }
    let tasks = trace.tasks.len();
    writeln!(out, "\n]}}").map_err(output::failed)?;
    Ok(ExportSummary { tasks, ..ExportSummary::default() })
}

impl Trace<'_> {
    fn line(&mut self, event: &Value, first: bool) -> Result<()> {
        write!(self.out, "{}\n{event}", if first { "" } else { "," }).map_err(output::failed)
    }

    fn process(&mut self, pid: u32, name: &str, first: bool) -> Result<()> {
        self.line(&json!({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}), first)
    }

    /// Names a track at its first use.
    fn track(&mut self, pid: u32, tid: usize, name: impl FnOnce() -> String) -> Result<()> {
        if !self.named.insert((pid, tid)) {
            return Ok(());
        }
        let name = name();
        let args = json!({"name": name});
        self.line(
            &json!({"ph": "M", "name": "thread_name", "pid": pid, "tid": thread((pid, tid)), "args": args}),
            false,
        )?;
        let args = json!({"sort_index": tid});
        self.line(
            &json!({"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": thread((pid, tid)), "args": args}),
            false,
        )
    }

    fn slice(
        &mut self,
        track: (u32, usize),
        name: &str,
        cat: &str,
        ns: (u64, u64),
        args: &Value,
    ) -> Result<()> {
        let (from, to) = ns;
        self.line(
            &json!({
                "ph": "X", "name": name, "cat": cat, "pid": track.0, "tid": thread(track), "ts": micros(from),
                "dur": micros(to.saturating_sub(from)), "args": args,
            }),
            false,
        )
    }

    fn event(&mut self, line: EventLine) -> Result<()> {
        let ns = line.ns;
        self.last_ns = self.last_ns.max(ns);
        match line.event {
            Event::TaskStarted { task, attempt } => self.begin_task(task, attempt, ns),
            Event::TaskEnded { task, attempt, status, error, .. } => match self.places.get(&task) {
                Some(slot) => {
                    let args = json!({"status": status, "attempt": attempt, "error": error});
                    self.end_task(*slot, args)
                }
                None => Ok(()),
            },
            Event::ModelStarted { task, agent, turn, .. } => {
                self.begin_step((task, agent, true, turn), format!("request {turn}"), ns)
            }
            Event::ModelEnded(ModelEnded {
                task,
                agent,
                turn,
                took_ns,
                attempts,
                tokens,
                finish,
                error,
                ..
            }) => {
                let args = json!({
                    "tokens": tokens, "finish": finish, "error": error, "tries": attempts.len(),
                    "retry_reasons": attempts.iter().rev().skip(1).rev().map(AttemptRow::reason).collect::<Vec<_>>(),
                });
                self.end_step(&(task, agent, true, turn), (ns.saturating_sub(took_ns), ns), args)
            }
            Event::CallStarted { task, agent, call, server, tool, .. } => {
                self.begin_step((task, agent, false, call), format!("{server}.{tool}"), ns)
            }
            Event::CallEnded(CallEnded { task, agent, call, took_ns, bytes, is_error, error, .. }) => {
                let args = json!({"bytes": bytes, "is_error": is_error, "error": error});
                self.end_step(&(task, agent, false, call), (ns.saturating_sub(took_ns), ns), args)
            }
            event => self.server_event(event, ns),
        }
    }

    fn begin_task(&mut self, id: String, attempt: u32, ns: u64) -> Result<()> {
        let unwanted = self.wanted.as_ref().is_some_and(|wanted| !wanted.contains(&id));
        // A later attempt goes on in the task.
        if unwanted || self.places.contains_key(&id) {
            return Ok(());
        }
        let slot = self.free.pop_first().unwrap_or(self.slots.len());
        self.places.insert(id.clone(), slot);
        let task = OpenTask { id, attempt, began: ns, steps: HashMap::new(), lanes: vec![true] };
        match self.slots.get_mut(slot) {
            Some(place) => *place = Some(task),
            None => self.slots.push(Some(task)),
        }
        self.track(TASKS, slot * LANES, || format!("tasks {}", slot + 1))
    }

    fn end_task(&mut self, slot: usize, mut args: Value) -> Result<()> {
        let Some(task) = self.slots.get_mut(slot).and_then(Option::take) else { return Ok(()) };
        self.places.remove(&task.id);
        self.free.insert(slot);
        let end = self.last_ns;
        for ((_, agent, ..), step) in task.steps {
            let args = json!({"agent": agent, "unfinished": true});
            let track = (TASKS, slot * LANES + step.lane);
            self.slice(track, &step.name, "step", (step.began, end), &args)?;
        }
        self.tasks.insert(task.id.clone());
        args["task"] = task.id.clone().into();
        args["first_attempt"] = task.attempt.into();
        self.slice((TASKS, slot * LANES), &task.id, "task", (task.began, end), &args)
    }

    fn begin_step(&mut self, key: StepKey, name: String, ns: u64) -> Result<()> {
        let Some(slot) = self.places.get(&key.0).copied() else { return Ok(()) };
        let Some(task) = &mut self.slots[slot] else { return Ok(()) };
        let lane = task.lanes.iter().position(|busy| !busy).unwrap_or(task.lanes.len());
        // What finds no lane of its own shares the last one.
        let lane = lane.min(LANES - 1);
        if lane == task.lanes.len() {
            task.lanes.push(true);
        }
        task.lanes[lane] = true;
        task.steps.insert(key, OpenStep { name, began: ns, lane });
        self.track(TASKS, slot * LANES + lane, || format!("tasks {}, steps {lane}", slot + 1))
    }

    fn end_step(&mut self, key: &StepKey, ns: (u64, u64), mut args: Value) -> Result<()> {
        let Some(slot) = self.places.get(&key.0).copied() else { return Ok(()) };
        let Some(task) = &mut self.slots[slot] else { return Ok(()) };
        let Some(step) = task.steps.remove(key) else { return Ok(()) };
        task.lanes[step.lane] = false;
        args["agent"] = key.1.clone().into();
        let cat = if key.2 { "model" } else { "tool" };
        // The end knows better when it began, but no slice begins before that of its task.
        let from = ns.0.max(task.began).min(step.began);
        self.slice((TASKS, slot * LANES + step.lane), &step.name, cat, (from, ns.1), &args)
    }

    fn server_event(&mut self, event: Event, ns: u64) -> Result<()> {
        let (server, what, took, args) = match event {
            Event::ServerReady { server, era, tools, took_ns, .. } => {
                (server, "start", Some(took_ns), json!({"era": era, "tools": tools}))
            }
            Event::ServerFailed { server, took_ns, error } => {
                (server, "failed start", Some(took_ns), json!({"error": error.message}))
            }
            Event::ServerRestarted { server, restarts, took_ns, .. } => {
                (server, "restart", Some(took_ns), json!({"restarts": restarts}))
            }
            Event::ServerStopped { server, outcome, took_ns, .. } => {
                (server, "stop", Some(took_ns), json!({"outcome": outcome}))
            }
            Event::ServerLost { server, error, .. } => {
                (server, "lost", None, json!({"error": error.message}))
            }
            Event::ServerGaveUp { server, error, .. } => {
                (server, "given up", None, json!({"error": error.message}))
            }
            _ => return Ok(()),
        };
        let next = self.servers.len();
        let tid = *self.servers.entry(server.clone()).or_insert(next);
        self.track(SERVERS, tid, || server)?;
        match took {
            Some(took) => self.slice((SERVERS, tid), what, "server", (ns.saturating_sub(took), ns), &args),
            None => self.line(
                &json!({
                    "ph": "i", "s": "t", "name": what, "cat": "server", "pid": SERVERS, "tid": thread((SERVERS, tid)),
                    "ts": micros(ns), "args": args,
                }),
                false,
            ),
        }
    }
}

/// The number of a track.
fn thread((group, index): (u32, usize)) -> usize {
    group as usize * TRACKS + index
}

/// The format has microseconds.
fn micros(ns: u64) -> f64 {
    ns as f64 / 1e3
}
