//! Actions that a tap reports at their begin and at any end.

use std::{sync::atomic::Ordering::Relaxed, time::Instant};

use serde_json::{Map, Value};

use super::Tap;
use crate::{
    cassette::Whose,
    error::{Error, Result},
    journal::{AttemptRow, CallEnded, Event, ModelEnded, nanos},
    live::{AgentEvent, LiveError, LiveEvent},
    llm::{Attempt, ChatAnswer, Delta, LlmError, ModelTrouble},
    task::{Outcome, RunReport, Usage},
    tool::ToolResult,
};

/// The end of what nobody waited for.
fn cancelled(whom: &str) -> LiveError {
    LiveError::new("cancelled", format!("no caller waited for the {whom} any more"))
}

impl Tap {
    /// An agent begins; it is that of the task itself, if it is `first`.
    pub(crate) fn agent_started(&self, first: bool, model: Option<&str>) -> AgentSpan {
        if first {
            self.tell(|| LiveEvent::TaskStarted);
        }
        self.tell(|| LiveEvent::AgentStarted { model: model.map(str::to_owned) });
        AgentSpan { tap: self.clone(), began: Instant::now(), first, ends: None }
    }

    /// An agent decided something; `line` is the same for its log.
    pub(crate) fn happened(&self, event: &AgentEvent, line: &Value) {
        let Whose { task, agent, .. } = &self.0.whose;
        self.write(|| Event::Agent { task: task.clone(), agent: agent.clone(), happened: line.clone() });
        self.tell(|| LiveEvent::Agent(event.clone()));
    }

    /// The model is asked, with so many messages of so many bytes.
    pub(crate) fn model_started(&self, messages: usize, bytes: usize) -> ModelSpan {
        let turn = self.0.turns.fetch_add(1, Relaxed) + 1;
        let Whose { task, agent, .. } = self.0.whose.clone();
        self.write(|| Event::ModelStarted {
            task: task.clone(),
            agent: agent.clone(),
            turn,
            messages,
            bytes,
        });
        self.tell(|| LiveEvent::ModelStarted { turn, messages, bytes });
        let row = ModelEnded {
            task,
            agent,
            turn,
            took_ns: 0,
            attempts: Vec::new(),
            tokens: Usage::default(),
            bytes: 0,
            tool_calls: 0,
            finish: None,
            error: self.brief("cancelled", "no caller waited for the answer any more"),
        };
        ModelSpan { tap: self.clone(), began: Instant::now(), row, end: None }
    }

    /// A tool is called, with these arguments.
    pub(crate) fn call_started(&self, server: &str, tool: &str, arguments: &Map<String, Value>) -> CallSpan {
        let (call, turn) = (self.0.calls.fetch_add(1, Relaxed) + 1, self.0.turns.load(Relaxed));
        let Whose { task, agent, .. } = self.0.whose.clone();
        let (server, tool) = (server.to_owned(), tool.to_owned());
        self.write(|| Event::CallStarted {
            task: task.clone(),
            agent: agent.clone(),
            turn,
            call,
            server: server.clone(),
            tool: tool.clone(),
            bytes: serde_json::to_string(arguments).map_or(0, |text| text.len()),
        });
        self.tell(|| LiveEvent::CallStarted {
            turn,
            call,
            server: server.clone(),
            tool: tool.clone(),
            arguments: arguments.clone(),
        });
        let row = CallEnded {
            task,
            agent,
            turn,
            call,
            server,
            tool,
            took_ns: 0,
            bytes: 0,
            is_error: true,
            error: self.brief("cancelled", "no caller waited for the result any more"),
        };
        CallSpan { tap: self.clone(), began: Instant::now(), row, outcome: None }
    }

    /// An attempt as the journal tells of it.
    fn row(&self, attempt: &Attempt) -> AttemptRow {
        let row = row(attempt);
        let message = row.message.and_then(|message| self.brief("", &message)).map(|brief| brief.message);
        AttemptRow { message, ..row }
    }
}

/// An agent at work. Its end is told when it is dropped, and with that of the first one the end of the task.
pub(crate) struct AgentSpan {
    tap: Tap,
    began: Instant,
    first: bool,
    /// The ends of agent and task, but for their time.
    ends: Option<(LiveEvent, LiveEvent)>,
}

impl AgentSpan {
    pub(crate) fn ended(mut self, report: &RunReport) {
        if self.tap.is_watched() {
            let &RunReport { status, turns, tool_calls, tokens, .. } = report;
            let error = report.error.as_ref().map(|error| LiveError::new(&error.code, &error.message));
            self.ends = Some((
                LiveEvent::AgentEnded { status, turns, tool_calls, tokens, took_ns: 0 },
                LiveEvent::TaskEnded { status, answer: report.answer.clone(), error, took_ns: 0 },
            ));
        }
    }
}

impl Drop for AgentSpan {
    fn drop(&mut self) {
        if !self.tap.is_watched() {
            return;
        }
        let status = Outcome::Cancelled;
        let (mut agent, mut task) = self.ends.take().unwrap_or_else(|| {
            let tokens = Usage::default();
            let error = Some(cancelled("agent"));
            (
                LiveEvent::AgentEnded { status, turns: 0, tool_calls: 0, tokens, took_ns: 0 },
                LiveEvent::TaskEnded { status, answer: None, error, took_ns: 0 },
            )
        });
        for event in [&mut agent, &mut task] {
            if let LiveEvent::AgentEnded { took_ns, .. } | LiveEvent::TaskEnded { took_ns, .. } = event {
                *took_ns = nanos(self.began.elapsed());
            }
        }
        self.tap.tell(|| agent);
        if self.first {
            self.tap.tell(|| task);
        }
    }
}

/// A request to a model under way. Its end is written when it is dropped, however that comes.
pub(crate) struct ModelSpan {
    tap: Tap,
    began: Instant,
    row: ModelEnded,
    /// The event for watchers, without its time.
    end: Option<Box<LiveEvent>>,
}

impl ModelSpan {
    /// A piece of the answer.
    pub(crate) fn piece(&self, delta: Delta<'_>) {
        let turn = self.row.turn;
        match delta {
            Delta::Text(text) => self.tap.tell(|| LiveEvent::Text { turn, text: text.to_owned() }),
            Delta::Reasoning(text) => self.tap.tell(|| LiveEvent::Thinking { turn, text: text.to_owned() }),
            Delta::Restarted => self.tap.tell(|| LiveEvent::Restarted { turn }),
            // Calls are told when they are made.
            Delta::Call { .. } | Delta::Arguments { .. } => {}
        }
    }

    /// An attempt failed.
    pub(crate) fn failed(&self, attempt: &Attempt) {
        let ModelEnded { task, agent, turn, .. } = &self.row;
        self.tap.write(|| Event::ModelAttemptFailed {
            task: task.clone(),
            agent: agent.clone(),
            turn: *turn,
            attempt: self.tap.row(attempt),
        });
        self.tap.tell(|| LiveEvent::ModelAttemptFailed { turn: *turn, attempt: row(attempt) });
    }

    /// The request waits for an endpoint that answers nobody.
    pub(crate) fn held(&self, trouble: &ModelTrouble) {
        let ModelEnded { task, agent, turn, .. } = &self.row;
        let next_try_ns = trouble.next_try.map(nanos);
        self.tap.write(|| Event::ModelHeld {
            task: task.clone(),
            agent: agent.clone(),
            turn: *turn,
            reason: trouble.reason,
            next_try_ns,
        });
        self.tap.tell(|| LiveEvent::ModelHeld {
            turn: *turn,
            reason: trouble.reason,
            message: trouble.message.clone(),
            next_try_ns,
        });
    }

    /// The request is answered, or has failed.
    pub(crate) fn ended(mut self, outcome: &std::result::Result<ChatAnswer, LlmError>) {
        let (tap, row) = (&self.tap, &mut self.row);
        let rows = |attempts: &[Attempt]| attempts.iter().map(|attempt| tap.row(attempt)).collect();
        match outcome {
            Ok(answer) => {
                row.attempts = rows(&answer.attempts);
                row.tokens = answer.usage;
                row.bytes = answer.content.len();
                row.tool_calls = answer.tool_calls.len();
                row.finish = serde_json::to_value(answer.finish)
                    .ok()
                    .and_then(|finish| finish.as_str().map(str::to_owned));
                row.error = None;
            }
            Err(error) => {
                row.attempts = rows(&error.attempts);
                row.error = tap.brief(error.class.name(), &error.message);
            }
        }
        self.end = tap.is_watched().then(|| Box::new(model_ended(row.turn, Some(outcome))));
    }
}

impl Drop for ModelSpan {
    fn drop(&mut self) {
        self.row.took_ns = nanos(self.began.elapsed());
        let (turn, took, end) = (self.row.turn, self.row.took_ns, self.end.take());
        self.tap.tell(|| {
            let mut event = end.map_or_else(|| model_ended(turn, None), |end| *end);
            if let LiveEvent::ModelEnded { took_ns, .. } = &mut event {
                *took_ns = took;
            }
            event
        });
        self.tap.write(|| Event::ModelEnded(self.row.clone()));
    }
}

/// The end of a request, but for its time; without an `outcome`, of one that nobody waited for.
fn model_ended(turn: u32, outcome: Option<&std::result::Result<ChatAnswer, LlmError>>) -> LiveEvent {
    let (answer, attempts, error) = match outcome {
        Some(Ok(answer)) => (Some(answer), answer.attempts.as_slice(), None),
        Some(Err(error)) => {
            let told = LiveError::new(error.class.name(), &error.message);
            (None, error.attempts.as_slice(), Some(told))
        }
        None => (None, [].as_slice(), Some(cancelled("answer"))),
    };
    LiveEvent::ModelEnded {
        turn,
        took_ns: 0,
        attempts: attempts.iter().map(row).collect(),
        tokens: answer.map(|answer| answer.usage).unwrap_or_default(),
        text: answer.map(|answer| answer.content.clone()).unwrap_or_default(),
        thinking: answer.and_then(|answer| answer.reasoning.clone()),
        tool_calls: answer.map(|answer| answer.tool_calls.clone()).unwrap_or_default(),
        finish: answer.map(|answer| answer.finish),
        error,
    }
}

/// A tool call under way. Its end is written when it is dropped, however that comes.
pub(crate) struct CallSpan {
    tap: Tap,
    began: Instant,
    row: CallEnded,
    /// For watchers.
    outcome: Option<std::result::Result<String, LiveError>>,
}

impl CallSpan {
    /// The call has a result, or has failed.
    pub(crate) fn ended(mut self, outcome: &Result<ToolResult>) {
        let (tap, row) = (&self.tap, &mut self.row);
        let told = match outcome {
            Ok(result) => {
                let text = result.text();
                row.bytes = text.len();
                row.is_error = result.is_error;
                row.error = if result.is_error { tap.brief("tool_error", &text) } else { None };
                Ok(text)
            }
            Err(error) => {
                row.error = tap.brief(&error.code(), &error.to_string());
                Err(told(error))
            }
        };
        self.outcome = tap.is_watched().then_some(told);
    }
}

impl Drop for CallSpan {
    fn drop(&mut self) {
        self.row.took_ns = nanos(self.began.elapsed());
        let CallEnded { turn, call, server, tool, took_ns, is_error, .. } = &self.row;
        let outcome = self.outcome.take();
        self.tap.tell(|| {
            let (text, error) = match outcome.unwrap_or_else(|| Err(cancelled("result"))) {
                Ok(text) => (Some(text), None),
                Err(error) => (None, Some(error)),
            };
            LiveEvent::CallEnded {
                turn: *turn,
                call: *call,
                server: server.clone(),
                tool: tool.clone(),
                took_ns: *took_ns,
                is_error: *is_error,
                text,
                error,
            }
        });
        self.tap.write(|| Event::CallEnded(self.row.clone()));
    }
}

/// An error with its causes.
fn told(error: &Error) -> LiveError {
    let words: Vec<String> = std::iter::once(error.to_string()).chain(error.causes()).collect();
    LiveError::new(&error.code(), words.join(": "))
}

/// An attempt with all that was said.
fn row(attempt: &Attempt) -> AttemptRow {
    AttemptRow {
        client: attempt.client.clone(),
        class: attempt.class.map(|class| class.name().to_owned()),
        status: attempt.status,
        waited_ns: nanos(attempt.waited),
        queued_ns: nanos(attempt.queued),
        took_ns: nanos(attempt.took),
        hint_ns: attempt.hint.map(nanos),
        message: attempt.message.clone(),
    }
}
