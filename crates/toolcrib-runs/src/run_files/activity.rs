//! The present activity of a run's tasks, known from the events that are written.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use super::Event;
use crate::error::HoldReason;

/// Activity of a run at one moment.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct RunActivity {
    /// The tasks in work, the one that began first before others.
    pub tasks: Vec<TaskInWork>,
    /// Tool calls under way.
    pub calls_in_flight: usize,
    /// Tool calls that have ended since the run began or was continued.
    pub calls_ended: u64,
}

/// A task in work.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TaskInWork {
    /// Its id.
    pub task: String,
    /// How long it has been in work.
    pub time: Duration,
    /// The step that it waits for; of several, the one that began last. `None`: it is between two steps.
    pub step: Option<StepInWork>,
}

/// A request to the model or a tool call that has no end yet.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StepInWork {
    /// The request of its agent to which it belongs.
    pub turn: u32,
    /// `SERVER.TOOL` of a call; nothing for a request to the model.
    pub call: Option<String>,
    /// How long it has taken by now.
    pub time: Duration,
    /// Tries of the request that failed.
    pub failed_tries: u32,
    /// Why the last of these failed.
    pub last_failure: Option<String>,
    /// Why the endpoint is not asked for now.
    pub held: Option<HoldReason>,
}

impl std::fmt::Display for StepInWork {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let time = crate::text::seconds(self.time);
        match &self.call {
            Some(call) => return write!(f, "turn {}: waits {time} for {call}", self.turn),
            None => write!(f, "turn {}: waits {time} for the model", self.turn)?,
        }
        if let Some(reason) = &self.last_failure {
            write!(f, ", try {} after {reason}", self.failed_tries + 1)?;
        }
        match self.held {
            None => Ok(()),
            Some(HoldReason::Suspected | HoldReason::Down) => f.write_str(", its endpoint is down"),
            Some(HoldReason::Asked) => f.write_str(", its endpoint asked for a pause"),
            Some(HoldReason::Refused) => f.write_str(", its endpoint refused the key"),
        }
    }
}

/// Follows events.
#[derive(Debug, Default)]
pub(super) struct ActivityTracker {
    tasks: HashMap<String, Task>,
    calls_ended: u64,
}

#[derive(Debug)]
struct Task {
    began: Instant,
    /// Steps by agent, whether it is a call, and number; the one that began last comes last.
    steps: Vec<((String, bool, u32), Step)>,
}

#[derive(Debug)]
struct Step {
    began: Instant,
    turn: u32,
    call: Option<String>,
    failed_tries: u32,
    last_failure: Option<String>,
    held: Option<HoldReason>,
}

impl ActivityTracker {
    pub(super) fn saw(&mut self, event: &Event) {
        match event {
            Event::TaskStarted { task, .. } => {
                self.tasks.insert(task.clone(), Task { began: Instant::now(), steps: Vec::new() });
            }
            Event::TaskEnded { task, .. } => drop(self.tasks.remove(task)),
            Event::ModelStarted { task, agent, turn, .. } => {
                self.begin(task, (agent, false, *turn), *turn, None);
            }
            Event::CallStarted { task, agent, turn, call, server, tool, .. } => {
                self.begin(task, (agent, true, *call), *turn, Some(format!("{server}.{tool}")));
            }
            Event::ModelAttemptFailed { task, agent, turn, attempt } => {
                if let Some(step) = self.step(task, (agent, false, *turn)) {
                    step.failed_tries += 1;
                    (step.last_failure, step.held) = (Some(attempt.reason()), None);
                }
            }
            Event::ModelHeld { task, agent, turn, reason, .. } => {
                if let Some(step) = self.step(task, (agent, false, *turn)) {
                    step.held = Some(*reason);
                }
            }
            Event::ModelEnded(end) => self.end(&end.task, (&end.agent, false, end.turn)),
            Event::CallEnded(end) => {
                self.end(&end.task, (&end.agent, true, end.call));
                self.calls_ended += 1;
            }
            _ => {}
        }
    }

    fn begin(
        &mut self,
        task: &str,
        (agent, is_call, number): (&str, bool, u32),
        turn: u32,
        call: Option<String>,
    ) {
        let began = Instant::now();
        let step = Step { began, turn, call, failed_tries: 0, last_failure: None, held: None };
        if let Some(task) = self.tasks.get_mut(task) {
            task.steps.push(((agent.to_owned(), is_call, number), step));
        }
    }

    fn step(&mut self, task: &str, key: (&str, bool, u32)) -> Option<&mut Step> {
        let steps = &mut self.tasks.get_mut(task)?.steps;
        steps.iter_mut().find(|(known, _)| (known.0.as_str(), known.1, known.2) == key).map(|(_, step)| step)
    }

    fn end(&mut self, task: &str, key: (&str, bool, u32)) {
        if let Some(task) = self.tasks.get_mut(task) {
            task.steps.retain(|(known, _)| (known.0.as_str(), known.1, known.2) != key);
        }
    }

    pub(super) fn now(&self) -> RunActivity {
        let mut tasks: Vec<TaskInWork> = self
            .tasks
            .iter()
            .map(|(name, task)| TaskInWork {
                task: name.clone(),
                time: task.began.elapsed(),
                step: task.steps.last().map(|(_, step)| StepInWork {
                    turn: step.turn,
                    call: step.call.clone(),
                    time: step.began.elapsed(),
                    failed_tries: step.failed_tries,
                    last_failure: step.last_failure.clone(),
                    held: step.held,
                }),
            })
            .collect();
        tasks.sort_by(|a, b| b.time.cmp(&a.time).then_with(|| a.task.cmp(&b.task)));
        let steps = self.tasks.values().flat_map(|task| &task.steps);
        RunActivity {
            tasks,
            calls_in_flight: steps.filter(|(_, step)| step.call.is_some()).count(),
            calls_ended: self.calls_ended,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_files::AttemptRow;

    #[test]
    fn steps_are_told_until_they_end() {
        let mut tracker = ActivityTracker::default();
        let (task, agent) = ("t".to_owned(), "main".to_owned());
        tracker.saw(&Event::TaskStarted { task: task.clone(), attempt: 1 });
        assert!(tracker.now().tasks[0].step.is_none());
        tracker.saw(&Event::ModelStarted {
            task: task.clone(),
            agent: agent.clone(),
            turn: 2,
            messages: 1,
            bytes: 1,
        });
        let attempt = AttemptRow {
            client: None,
            class: Some("rate_limited".to_owned()),
            status: Some(429),
            waited_ns: 0,
            queued_ns: 0,
            took_ns: 0,
            hint_ns: None,
            message: None,
        };
        tracker.saw(&Event::ModelAttemptFailed {
            task: task.clone(),
            agent: agent.clone(),
            turn: 2,
            attempt,
        });
        let reason = HoldReason::Asked;
        tracker.saw(&Event::ModelHeld {
            task: task.clone(),
            agent: agent.clone(),
            turn: 2,
            reason,
            next_try_ns: None,
        });
        let words = tracker.now().tasks[0].step.clone().unwrap().to_string();
        assert_eq!(
            words,
            "turn 2: waits 0.00s for the model, try 2 after 429, its endpoint asked for a pause"
        );
        let (server, tool) = ("s".to_owned(), "x".to_owned());
        tracker.saw(&Event::CallStarted {
            task: task.clone(),
            agent,
            turn: 2,
            call: 7,
            server,
            tool,
            bytes: 0,
        });
        let now = tracker.now();
        assert_eq!((now.calls_in_flight, now.calls_ended), (1, 0));
        assert!(now.tasks[0].step.clone().unwrap().to_string().ends_with("for s.x"));
        let error = None;
        tracker.saw(&Event::TaskEnded {
            task,
            attempt: 1,
            status: crate::Outcome::Passed,
            took_ns: 1,
            error,
        });
        assert!(tracker.now().tasks.is_empty());
    }
}
