//! The steps of a task as its journal records them.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use serde_json::Value;

use super::record::{Entry, JUDGE, Record, StepKey, StepKind};

/// The longest time between two records that counts as work where nothing but the time of day is known: a clock may have jumped, or
/// the machine slept.
const LONGEST_GAP: Duration = Duration::from_secs(20 * 60);

/// The steps of a task that were recorded by earlier owners, and how far the present one has come.
#[derive(Debug, Default)]
pub struct History {
    /// Outcomes that the agent has not asked for yet.
    finished: HashMap<StepKey, Finished>,
    /// Steps that had begun and have no end, each with the claim that began it.
    unknown: HashMap<StepKey, usize>,
    /// How often each request was made by now.
    made: HashMap<StepKey, u32>,
    /// Requests to the model, by agent.
    models: HashMap<String, ModelSteps>,
    /// Servers that earlier owners called, and that may have kept something in memory.
    called: HashSet<String>,
    /// How often the task was claimed, by its present owner too.
    pub claims: usize,
    /// Steps of unknown outcome that earlier owners did again, and those that they did not.
    pub repeated: u32,
    pub given_up: u32,
    /// How long earlier owners have worked on the task, as far as the journal knows.
    pub worked: Duration,
}

/// The records of one claim.
#[derive(Default)]
struct Span {
    /// The latest time of day of one.
    last: u64,
    /// The time between them, by the time of day.
    by_day: Duration,
    /// [`Entry::worked_ms`] of the last one.
    measured: Option<u64>,
}

/// A step that ended.
#[derive(Debug)]
struct Finished {
    /// Position of its record in the journal.
    position: usize,
    outcome: Value,
    /// Whether the request failed, as in [`Record::End`].
    failed: bool,
}

/// The recorded requests of one agent to its model.
#[derive(Debug, Default)]
struct ModelSteps {
    /// Requests that the agent has not made yet.
    left: usize,
    /// Position of the last one in the journal.
    last: usize,
}

/// State of a step in the journal.
#[derive(Debug, PartialEq)]
pub enum StepState {
    /// It was never begun.
    New,
    /// It ended with this outcome.
    Finished(Value),
    /// It had begun when its owner ended.
    Unknown,
}

/// The agent asks for something else than was recorded.
#[derive(Debug, PartialEq)]
pub struct Diverged;

impl History {
    pub fn of(entries: Vec<Entry>) -> Self {
        let mut history = Self::default();
        let mut span = Span::default();
        for (position, Entry { at, worked_ms, record }) in entries.into_iter().enumerate() {
            match record {
                Record::Submit { .. } | Record::Done { .. } => {}
                Record::Claim { retry, .. } => {
                    history.add_work(&span);
                    span = Span { last: at, ..Span::default() };
                    if retry {
                        history.retry();
                    }
                    history.claims += 1;
                }
                Record::Begin { step } => {
                    history.saw(&step, position);
                    if history.unknown.insert(step, history.claims).is_some() {
                        history.repeated += 1;
                    }
                }
                Record::End { step, outcome, failed } => {
                    history.saw(&step, position);
                    // Its owner ended it without doing it.
                    let began = history.unknown.remove(&step);
                    history.given_up += u32::from(began.is_some_and(|claim| claim != history.claims));
                    history.finished.insert(step, Finished { position, outcome, failed });
                }
            }
            let gap = Duration::from_millis(at.saturating_sub(span.last)).min(LONGEST_GAP);
            span.by_day = span.by_day.saturating_add(gap);
            span.last = span.last.max(at);
            span.measured = span.measured.max(worked_ms);
        }
        history.add_work(&span);
        for step in history.finished.keys().chain(history.unknown.keys()) {
            if let Some(models) = history.models.get_mut(&step.agent) {
                models.left += usize::from(step.kind == StepKind::Model);
            }
        }
        history
    }

    fn add_work(&mut self, span: &Span) {
        // Before the first claim nobody worked.
        if self.claims > 0 {
            let work = span.measured.map_or(span.by_day, Duration::from_millis);
            self.worked = self.worked.saturating_add(work);
        }
    }

    fn saw(&mut self, step: &StepKey, position: usize) {
        if let (StepKind::Call, Some(server)) = (step.kind, &step.server) {
            self.called.insert(server.clone());
        }
        if step.kind == StepKind::Model {
            self.models.entry(step.agent.clone()).or_default().last = position;
        }
    }

    /// Steps that ended, as far as the agent has not asked for them yet.
    pub(crate) fn finished_left(&self) -> usize {
        self.finished.len()
    }

    /// Takes a task up again that has ended with an error: failed requests to the model that ended their agents are
    /// forgotten, so that they are made again, and its time begins anew. So are all requests to the judge, whose replies
    /// may have had no grade. A failure after which the agent, or one that
    /// called it, went on stays: what came after it depends on it.
    fn retry(&mut self) {
        self.worked = Duration::ZERO;
        let models = &self.models;
        let went_on = |step: &StepKey, position: usize| {
            models.iter().any(|(agent, models)| {
                let is_above = step
                    .agent
                    .strip_prefix(agent)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
                is_above && models.last > position
            })
        };
        self.finished.retain(|step, end| step.agent != JUDGE && (!end.failed || went_on(step, end.position)));
    }

    /// The key of the next request of this content.
    pub fn key(&mut self, agent: &str, kind: StepKind, server: Option<&str>, request: String) -> StepKey {
        let mut key =
            StepKey { agent: agent.to_owned(), kind, server: server.map(str::to_owned), request, n: 0 };
        let made = self.made.entry(key.clone()).or_default();
        *made += 1;
        key.n = *made;
        key
    }

    /// Whether earlier owners called this server, so that what it kept in memory may be gone. Said once.
    pub(crate) fn take_lost_state(&mut self, server: &str) -> bool {
        self.called.remove(server)
    }

    /// State of a step that the agent asks for now. Each outcome is given once.
    ///
    /// # Errors
    /// The journal does not have the step, and it has a later one of this agent: the agent went another way. Before a
    /// request to the model is made all calls of the turn before it have ended, so a call that is missing is new only
    /// where no further request to the model was recorded.
    pub fn take(&mut self, step: &StepKey) -> Result<StepState, Diverged> {
        if let Some(Finished { outcome, .. }) = self.finished.remove(step) {
            self.count_off(step);
            return Ok(StepState::Finished(outcome));
        }
        if self.unknown.remove(step).is_some() {
            self.count_off(step);
            return Ok(StepState::Unknown);
        }
        match self.models.get(&step.agent) {
            Some(models) if models.left > 0 => Err(Diverged),
            _ => Ok(StepState::New),
        }
    }

    fn count_off(&mut self, step: &StepKey) {
        if step.kind == StepKind::Model
            && let Some(models) = self.models.get_mut(&step.agent)
        {
            models.left = models.left.saturating_sub(1);
        }
    }
}
