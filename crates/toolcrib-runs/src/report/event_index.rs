//! Assigns the lines of a run's files to its servers, its tasks, and their requests and calls.

use std::collections::HashMap;

use super::folder::{
    RunFolder, RunServer, RunServerStart, RunTask, ServerIncident, SpanKind, TaskLine, TaskSpan, millis,
};
use crate::{
    run_files::{Event, EventLine},
    task::sample_name,
};

/// Where things are in the run that is being read.
#[derive(Default)]
pub(super) struct EventIndex {
    servers: HashMap<String, usize>,
    /// Positions of tasks by name, then by attempt.
    tasks: HashMap<String, HashMap<u32, usize>>,
    /// The last attempt at each task: events of its agents do not repeat its number.
    latest: HashMap<String, usize>,
    /// Spans of each task that have no end yet.
    open: HashMap<String, HashMap<Key, usize>>,
}

/// A span by task, agent, whether it is a request to the model, and number.
type Key = (String, String, bool, u32);

impl EventIndex {
    pub(super) fn server<'a>(&mut self, run: &'a mut RunFolder, name: &str) -> &'a mut RunServer {
        let index = *self.servers.entry(name.to_owned()).or_insert_with(|| {
            run.servers.push(RunServer { name: name.to_owned(), ..RunServer::default() });
            run.servers.len() - 1
        });
        &mut run.servers[index]
    }

    fn incident(&mut self, run: &mut RunFolder, server: &str, at_ms: f64, bad: bool, words: String) {
        self.server(run, server).incidents.push(ServerIncident { at_ms, bad, words });
    }

    fn task<'a>(&mut self, run: &'a mut RunFolder, task: &str, attempt: u32, at_ms: f64) -> &'a mut RunTask {
        let attempts = self.tasks.entry(task.to_owned()).or_default();
        let index = *attempts.entry(attempt).or_insert_with(|| {
            run.tasks.push(RunTask { task: task.to_owned(), attempt, start_ms: at_ms, ..RunTask::default() });
            run.tasks.len() - 1
        });
        self.latest.insert(task.to_owned(), index);
        &mut run.tasks[index]
    }

    /// The row of a task that ended with this attempt. It may have begun with an earlier one: one row has all attempts.
    fn ended<'a>(&mut self, run: &'a mut RunFolder, task: &str, attempt: u32, at_ms: f64) -> &'a mut RunTask {
        if let Some(latest) = self.latest.get(task) {
            self.tasks.entry(task.to_owned()).or_default().entry(attempt).or_insert(*latest);
        }
        let row = self.task(run, task, attempt, at_ms);
        row.attempt = attempt;
        row
    }

    /// Removes a task from the run, with all that is kept of it.
    pub(super) fn take(&mut self, run: &mut RunFolder, task: &str) -> Option<RunTask> {
        let place = self.latest.remove(task)?;
        self.tasks.remove(task);
        self.open.remove(task);
        let taken = run.tasks.swap_remove(place);
        // The last one stands in its place now.
        let moved = run.tasks.len();
        if let Some(name) = run.tasks.get(place).map(|task| &task.task) {
            let attempts = self.tasks.get_mut(name).into_iter().flat_map(HashMap::values_mut);
            let indexes = self.latest.get_mut(name).into_iter().chain(attempts);
            indexes.filter(|index| **index == moved).for_each(|index| *index = place);
        }
        Some(taken)
    }

    fn open(&mut self, run: &mut RunFolder, key: Key, span: TaskSpan) {
        let Some(task) = self.latest.get(&key.0).map(|index| &mut run.tasks[*index]) else { return };
        task.spans.push(span);
        self.open.entry(key.0.clone()).or_default().insert(key, task.spans.len() - 1);
    }

    fn close<'a>(&mut self, run: &'a mut RunFolder, key: &Key) -> Option<&'a mut SpanKind> {
        let index = self.open.get_mut(&key.0)?.remove(key)?;
        let task = self.latest.get(&key.0).map(|index| &mut run.tasks[*index])?;
        task.spans.get_mut(index).map(|span| &mut span.kind)
    }

    pub(super) fn event(&mut self, run: &mut RunFolder, line: EventLine) {
        if matches!(line.event, Event::RunResumed { .. }) {
            run.resumed(millis(line.ns));
        }
        let at_ms = run.working_ms(millis(line.ns));
        run.wall_ms = run.wall_ms.max(at_ms);
        match line.event {
            Event::RunStarted { jobs, tasks_total, .. } => {
                (run.started, run.jobs, run.tasks_total) = (Some(line.at), jobs, tasks_total);
            }
            Event::RunResumed { .. } => run.end = None,
            Event::RunEnded { status, dropped, .. } => (run.end, run.dropped) = (Some(status), dropped),
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
                let span =
                    TaskSpan { turn, agent: agent.clone(), start_ms: at_ms, kind: SpanKind::Model(None) };
                self.open(run, (task, agent, true, turn), span);
            }
            Event::ModelEnded(ended) => {
                let key = (ended.task.clone(), ended.agent.clone(), true, ended.turn);
                if let Some(SpanKind::Model(end)) = self.close(run, &key) {
                    *end = Some(ended);
                }
            }
            Event::CallStarted { task, agent, turn, call, server, tool, .. } => {
                let kind = SpanKind::Call { server, tool, end: None };
                let span = TaskSpan { turn, agent: agent.clone(), start_ms: at_ms, kind };
                self.open(run, (task, agent, false, call), span);
            }
            Event::CallEnded(ended) => {
                let key = (ended.task.clone(), ended.agent.clone(), false, ended.call);
                if let Some(SpanKind::Call { end, .. }) = self.close(run, &key) {
                    *end = Some(ended);
                }
            }
            event => self.server_event(run, at_ms, event),
        }
    }

    /// Takes in an event of a server. Other events are ignored: a report does not need them.
    fn server_event(&mut self, run: &mut RunFolder, at_ms: f64, event: Event) {
        match event {
            Event::ServerQueued { server, .. } | Event::ServerStarting { server, .. } => {
                self.server(run, &server);
            }
            Event::ServerParked { server, tools } => {
                self.server(run, &server).start = RunServerStart::Parked { tools };
            }
            Event::ServerReady { server, era, tools, took_ns, phases_ns: phases, .. } => {
                let took_ms = millis(took_ns);
                let first = RunServerStart::Ready { at_ms, took_ms, tools, era, phases };
                match &mut self.server(run, &server).start {
                    start @ RunServerStart::Unknown => *start = first,
                    _ => self.incident(run, &server, at_ms, false, format!("started in {took_ms:.0} ms")),
                }
            }
            Event::ServerFailed { server, took_ns, error } => {
                let took_ms = millis(took_ns);
                match &mut self.server(run, &server).start {
                    start @ RunServerStart::Unknown => {
                        *start = RunServerStart::Failed { at_ms, took_ms, error };
                    }
                    _ => self.incident(run, &server, at_ms, true, error.message),
                }
            }
            Event::ServerLost { server, error, .. } => {
                self.incident(run, &server, at_ms, true, error.message);
            }
            Event::ServerRestarted { server, restarts, took_ns, .. } => {
                let words = format!("restart {restarts}: ready after {:.0} ms", millis(took_ns));
                self.incident(run, &server, at_ms, false, words);
            }
            Event::ServerRestartFailed { server, error, .. } => {
                self.incident(run, &server, at_ms, true, format!("did not come back: {}", error.message));
            }
            Event::ServerGaveUp { server, error, .. } => {
                self.incident(run, &server, at_ms, true, format!("given up: {}", error.message));
            }
            _ => {}
        }
    }

    pub(super) fn result(&mut self, run: &mut RunFolder, line: TaskLine) {
        let last = run.wall_ms;
        let name = sample_name(&line.task, line.sample);
        let known = self.latest.contains_key(&*name);
        let task = self.ended(run, &name, line.attempt.max(1), last);
        if !known {
            // Not begun, or its events were too many.
            (task.start_ms, task.end_ms) = (last, last);
        }
        task.status.clone_from(&line.status);
        task.result = line;
    }
}
