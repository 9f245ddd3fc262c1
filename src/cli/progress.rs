//! Progress of a run: a live line on a terminal, plain lines elsewhere, totals at the end.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    process::ExitCode,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use toolcrib::{FailureReason, LlmStats, ModelTrouble, Outcome, Reason, RunReport, Timings, Usage};

use super::{
    log, output,
    report::pass_rate,
    requests,
    ui::{Ui, counted, seconds},
};

/// How often a run without a terminal says that it is alive.
const HEARTBEAT: Duration = Duration::from_secs(30);
/// How often the model is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// So many of the tasks that were cancelled are named.
const NAMED: usize = 5;

/// Counts of a run.
#[derive(Default, Clone)]
pub(super) struct Totals {
    tasks: usize,
    passed: usize,
    failed: usize,
    errored: usize,
    unscored: usize,
    cancelled: usize,
    time: Timings,
    tokens: Usage,
    scripted: bool,
    /// Why tasks failed or errored, and how many for each.
    reasons: BTreeMap<String, usize>,
    /// What the requests to the models took, as [`requests::document`]; null without a model.
    llm: Value,
    /// Model requests that were repeated, and why.
    retries: BTreeMap<String, u32>,
    /// How many of them went to another client.
    fallbacks: u32,
}

/// Shows how a run goes.
pub(super) struct Progress<'a> {
    ui: &'a Ui,
    bar: Option<ProgressBar>,
    total: usize,
    began: Instant,
    totals: RefCell<Totals>,
    /// Tasks that were ended from outside: all of them are one line.
    cancelled: RefCell<Vec<String>>,
}

impl<'a> Progress<'a> {
    pub(super) fn new(ui: &'a Ui, total: usize, began: Instant) -> Self {
        let bar = ui.live().then(|| {
            let style =
                ProgressStyle::with_template("     {spinner} [{elapsed}] {pos}/{len} {wide_bar} {msg}");
            let bar = ProgressBar::new(total as u64);
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.enable_steady_tick(Duration::from_millis(120));
            log::beside(&bar);
            bar
        });
        Self { ui, bar, total, began, totals: RefCell::default(), cancelled: RefCell::default() }
    }

    /// The line that moves, where there is one.
    pub(super) fn bar(&self) -> Option<&ProgressBar> {
        self.bar.as_ref()
    }

    /// One task is finished.
    pub(super) fn done(&self, report: &RunReport) {
        self.totals.borrow_mut().add(report);
        let time = format!("[{:>8}]", seconds(Duration::from_secs_f64(report.wall_ms / 1e3)));
        let work = format!(
            "{}  {}",
            counted(report.turns as usize, "turn"),
            counted(report.tool_calls as usize, "call")
        );
        let show = || match report.status {
            Outcome::Passed => self.ui.status("PASS", format!("{time} {}  {work}", report.task)),
            Outcome::Unscored => self.ui.status("DONE", format!("{time} {}  {work}", report.task)),
            Outcome::Failed => {
                let answer = report.answer.as_deref().unwrap_or_default();
                let target = report.target.as_ref().map_or_else(String::new, |target| {
                    format!("  expected {}", quoted(&target.all().join("\" or \"")))
                });
                let text = match (&report.error, &report.reason) {
                    (Some(error), _) => format!("{}{}", reason(report), error.message),
                    (None, Some(Reason::Failed(FailureReason::WrongAnswer)) | None) => {
                        format!("answer {}{target}", quoted(answer))
                    }
                    (None, Some(_)) => format!("{}answer {}{target}", reason(report), quoted(answer)),
                };
                self.ui.bad("FAIL", format!("{time} {}  {work}  {text}", report.task));
            }
            Outcome::Errored => {
                let why = report.error.as_ref().map_or("", |error| error.message.as_str());
                self.ui.bad("ERROR", format!("{time} {}  {work}  {}{why}", report.task, reason(report)));
            }
            Outcome::Cancelled => self.cancelled.borrow_mut().push(report.task.clone()),
        };
        match &self.bar {
            Some(bar) => {
                bar.suspend(show);
                bar.inc(1);
                bar.set_message(self.totals.borrow().words());
            }
            None => show(),
        }
    }

    /// Waits for `work`, with a sign of life now and then where no line moves, and a word when the model gives no
    /// answers (`trouble`) or gives some again.
    pub(super) async fn beside<T>(
        &self,
        work: impl Future<Output = T>,
        trouble: impl Fn() -> Option<ModelTrouble>,
    ) -> T {
        let mut work = std::pin::pin!(work);
        let mut told: Option<ModelTrouble> = None;
        let mut looks = tokio::time::interval(LOOK);
        let mut heartbeat = tokio::time::interval(HEARTBEAT);
        heartbeat.reset();
        loop {
            tokio::select! {
                done = &mut work => return done,
                _ = heartbeat.tick(), if self.bar.is_none() => {
                    let totals = self.totals.borrow();
                    let time = seconds(self.began.elapsed());
                    let held = trouble().map_or_else(String::new, |trouble| format!(" | {trouble}"));
                    let words = totals.words();
                    self.ui.status("Running", format!("[{time}] {}/{} {words}{held}", totals.tasks, self.total));
                }
                _ = looks.tick() => {
                    let now = trouble();
                    if let Some(bar) = &self.bar {
                        let words = self.totals.borrow().words();
                        bar.set_message(now.as_ref().map_or(words, |trouble| output::one_line(&trouble.to_string())));
                    }
                    let cause = |trouble: &ModelTrouble| (trouble.reason, trouble.message.clone());
                    if now.as_ref().map(cause) != told.as_ref().map(cause) {
                        match &now {
                            Some(why) => self.say(|| self.ui.warn(format!("requests wait for the model: {why}"))),
                            None => self.say(|| self.ui.status("Answering", "the model gives answers again")),
                        }
                        told = now;
                    }
                }
            }
        }
    }

    /// Prints beside the bar.
    pub(super) fn say(&self, show: impl FnOnce()) {
        match &self.bar {
            Some(bar) => bar.suspend(show),
            None => show(),
        }
    }

    pub(super) fn finish(&self) -> Totals {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        let cancelled = self.cancelled.take();
        if !cancelled.is_empty() {
            let named = cancelled.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
            let more = if cancelled.len() > NAMED { ", ..." } else { "" };
            self.ui.bad("CANCELLED", format!("{}: {named}{more}", counted(cancelled.len(), "task")));
        }
        self.totals.borrow().clone()
    }
}

impl Totals {
    fn add(&mut self, report: &RunReport) {
        self.tasks += 1;
        *match report.status {
            Outcome::Passed => &mut self.passed,
            Outcome::Failed => &mut self.failed,
            Outcome::Errored => &mut self.errored,
            Outcome::Unscored => &mut self.unscored,
            Outcome::Cancelled => &mut self.cancelled,
        } += 1;
        self.time += report.time_ms;
        self.tokens += report.tokens;
        if let Some(reason) = &report.reason {
            *self.reasons.entry(reason.to_string()).or_default() += 1;
        }
        self.scripted |= report.model_scripted;
        for (reason, count) in &report.llm_retry_reasons {
            *self.retries.entry(reason.clone()).or_default() += count;
        }
        self.fallbacks += report.llm_fallbacks;
    }

    /// Takes over what the client of the models counted.
    pub(super) fn requests(&mut self, stats: &LlmStats) {
        self.llm = requests::document(stats);
    }

    /// Which part of the tasks passed, of those that were judged.
    fn rate(&self) -> Option<String> {
        let judged = self.passed + self.failed;
        let percent = |of: usize| 100.0 * self.passed as f64 / of as f64;
        let words = format!("{:.1}% of {judged} judged", percent(judged));
        match judged {
            0 => None,
            _ if self.tasks == 1 => None,
            _ if self.errored + self.cancelled == 0 || self.unscored > 0 => Some(words),
            _ => Some(format!("{words}, {:.1}% of all {}", percent(self.tasks), self.tasks)),
        }
    }

    /// Model requests that were repeated, why, and how long that was waited for; `None` where there were none.
    fn retried(&self) -> Option<String> {
        let all: u32 = self.retries.values().sum();
        if all == 0 {
            return None;
        }
        let mut reasons: Vec<_> = self.retries.iter().collect();
        reasons.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let reasons: Vec<String> =
            reasons.iter().map(|(reason, count)| format!("{count} after {reason}")).collect();
        let waited = seconds(Duration::from_secs_f64(self.time.retry_wait / 1e3));
        let times = counted(all as usize, "time");
        let mut words = format!("model requests {times}: {} | waited {waited} in all", reasons.join(", "));
        if self.fallbacks > 0 {
            words.push_str(&format!(" | {} with another client", counted(self.fallbacks as usize, "time")));
        }
        Some(words)
    }

    fn words(&self) -> String {
        let mut words = format!("{} passed, {} failed, {} errored", self.passed, self.failed, self.errored);
        for (count, name) in [(self.unscored, "not judged"), (self.cancelled, "cancelled")] {
            if count > 0 {
                words.push_str(&format!(", {count} {name}"));
            }
        }
        words
    }

    /// The closing lines.
    pub(super) fn summarize(&self, ui: &Ui, run: &str, wall: Duration) {
        let scripted = if self.scripted { " | the model was SCRIPTED" } else { "" };
        let text = format!(
            "[{}] {}: {}{} | run {run}{scripted}",
            seconds(wall),
            counted(self.tasks, "task"),
            self.words(),
            self.rate().map_or_else(String::new, |rate| format!(" | {rate}"))
        );
        if self.failed + self.errored + self.cancelled == 0 {
            ui.status("Summary", text);
        } else {
            ui.bad("Summary", text);
        }
        if !self.reasons.is_empty() {
            let mut reasons: Vec<_> = self.reasons.iter().collect();
            reasons.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
            let reasons: Vec<String> =
                reasons.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
            ui.status("Reasons", reasons.join(", "));
        }
        if let Some(requests) = requests::line(&self.llm) {
            ui.status("Requests", requests);
        }
        if let Some(tokens) = requests::tokens(&self.tokens) {
            ui.status("Tokens", tokens);
        }
        if let Some(retried) = self.retried() {
            ui.status("Retried", retried);
        }
        let Timings { queue, model, tools, retry_wait, other, .. } = self.time;
        let all = self.time.sum();
        let parts = [
            ("model", model),
            ("tools", tools),
            ("retry-wait", retry_wait),
            ("queue", queue),
            ("other", other),
        ];
        let parts: Vec<String> = parts
            .iter()
            .map(|(name, time)| (name, 100.0 * time / all))
            .filter(|(_, percent)| *percent > 1.0)
            .map(|(name, percent)| format!("{name} {percent:.0}%"))
            .collect();
        // Where all went to one thing, that is no news.
        if parts.len() > 1 {
            ui.status("time goes to", parts.join("  "));
        }
    }

    /// The counts as JSON.
    pub(super) fn document(&self) -> Value {
        json!({"schema": 1, "tasks": self.tasks, "passed": self.passed, "failed": self.failed,
            "errored": self.errored, "unscored": self.unscored, "cancelled": self.cancelled,
            "pass_rate": pass_rate(self.passed, self.passed + self.failed), "reasons": self.reasons,
            "time_ms": self.time, "tokens": self.tokens.total(), "usage": self.tokens, "llm": self.llm,
            "llm_retry_reasons": self.retries, "llm_fallbacks": self.fallbacks})
    }

    /// 101 when something broke, 100 when an answer was wrong.
    pub(super) fn exit(&self) -> ExitCode {
        ExitCode::from(match (self.errored, self.failed) {
            (1.., _) => 101,
            (0, 1..) => 100,
            (0, 0) => 0,
        })
    }
}

/// Why a task failed or errored, before more words.
fn reason(report: &RunReport) -> String {
    report.reason.map_or_else(String::new, |reason| format!("{reason}: "))
}

fn quoted(answer: &str) -> String {
    let short: String = answer.chars().take(60).collect();
    format!("{short:?}")
}
