//! Scores answers within a limit of time: a task may come from elsewhere, and its answer from a model. What is small is compared
//! at once, the rest on threads of its own, so that it holds up nobody.

use std::{
    thread,
    time::{Duration, Instant},
};

use tokio::{
    sync::{Semaphore, oneshot},
    time::timeout,
};

use super::{
    contains::FormedAnswer, extract::last_boxed, json_schema::STACK, judge_within, normal_form, scorer,
};
use crate::task::{MadeCall, Score, Task};

/// How long the comparison of one answer may take, and how long it may wait for a thread.
const LIMIT: Duration = Duration::from_secs(10);
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Threads at a time. One that was given up counts until it ends.
const THREADS: usize = 4;
/// What is compared at once: bytes of the answer with all targets and choices, times the number of targets; and bytes of
/// a target.
const FEW_BYTES: usize = 32 << 10;
const SHORT_TARGET: usize = 1 << 10;

/// Until when something may be compared.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeLimit(Instant);

impl TimeLimit {
    pub(super) fn begin() -> Self {
        Self(Instant::now() + LIMIT)
    }

    /// # Errors
    /// It is over.
    pub(super) fn check(self) -> Result<(), String> {
        if Instant::now() < self.0 { Ok(()) } else { Err(too_long()) }
    }
}

fn too_long() -> String {
    format!("to compare this answer takes more than {} s", LIMIT.as_secs())
}

/// 1 for a right answer, 0 for a wrong one. Nothing: there is nothing to compare it with, or its scorer
/// [is external](super::is_external). `calls` are those that the task made.
///
/// # Errors
/// Why the scorer cannot say it.
pub(crate) async fn judge(task: &Task, answer: &str, calls: &[MadeCall]) -> Result<Option<f64>, String> {
    if is_quick(task, answer) {
        return judge_within(task, answer, calls, TimeLimit::begin());
    }
    let (task, answer, calls) = (for_scorer(task), answer.to_owned(), calls.to_vec());
    on_thread(move || judge_within(&task, &answer, &calls, TimeLimit::begin())).await?
}

/// The form in which answers of one task are the same answer, for a vote among its samples. Nothing: that takes too long.
pub(crate) async fn answer_form(task: &Task, answer: &str) -> Option<String> {
    if answer.len() <= FEW_BYTES {
        return Some(normal_form(task, answer));
    }
    let (task, answer) = (for_scorer(task), answer.to_owned());
    on_thread(move || normal_form(&task, &answer)).await.ok()
}

/// What a scorer needs of a task.
fn for_scorer(task: &Task) -> Task {
    Task {
        target: task.target.clone(),
        score: task.score.clone(),
        choices: task.choices.clone(),
        expect: task.expect.clone(),
        ..Task::default()
    }
}

/// Whether an answer is scored in a moment.
fn is_quick(task: &Task, answer: &str) -> bool {
    match scorer(task) {
        Score::Regex | Score::JsonSchema { .. } => return false,
        Score::Command { .. } | Score::Judge | Score::ToolCalled(_) => return true,
        _ => {}
    }
    let targets = task.target.as_ref().map_or(&[][..], |target| target.all());
    let bytes = targets.iter().chain(&task.choices).fold(answer.len(), |bytes, text| bytes + text.len());
    bytes.saturating_mul(targets.len()) <= FEW_BYTES
        && targets.iter().all(|target| target.len() <= SHORT_TARGET)
}

/// # Errors
/// It took too long, or panicked.
async fn on_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
    static FREE: Semaphore = Semaphore::const_new(THREADS);
    let permit = timeout(LONGEST_WAIT, FREE.acquire()).await;
    let Ok(Ok(permit)) = permit else {
        return Err("other answers take too long to be scored".to_owned());
    };
    let (done, result) = oneshot::channel();
    let work = move || {
        let _permit = permit;
        // The task may be gone.
        let _ = done.send(work());
    };
    let thread = thread::Builder::new().name("toolcrib-score".to_owned()).stack_size(STACK).spawn(work);
    thread.map_err(|error| format!("cannot start a thread for the scorer: {error}"))?;
    match timeout(LIMIT + Duration::from_secs(1), result).await {
        Ok(Ok(result)) => Ok(result),
        Ok(Err(_)) => Err("the scorer failed on this answer".to_owned()),
        Err(_) => Err(too_long()),
    }
}

/// Whether a text has a box with its end.
pub(crate) fn has_box(text: &str) -> bool {
    last_boxed(text).is_some()
}

/// Whether one of `targets` is in `answer`.
///
/// # Errors
/// The time is over.
pub(super) fn contains_any(answer: &str, targets: &[String], limit: TimeLimit) -> Result<bool, String> {
    let answer = FormedAnswer::new(answer);
    for target in targets {
        limit.check()?;
        if answer.contains(target, limit)? {
            return Ok(true);
        }
    }
    Ok(false)
}
