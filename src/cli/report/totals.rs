//! The figures of a run: what is in the tables, and in the document for scripts.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use toolcrib::{Timings, Usage};

use super::load::{Run, Start, Task, What, millis};
use crate::cli::{bench::times::at_percent, ui::counted};

/// Ways for a task to end, in the order in which they are shown.
pub(super) const STATUSES: [&str; 7] =
    ["passed", "unscored", "failed", "errored", "cancelled", "unfinished", NOT_BEGUN];

/// The status of tasks that the run was killed before.
const NOT_BEGUN: &str = "not_begun";

/// Times of one tool, or of the model.
#[derive(Default)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) n: usize,
    pub(super) errors: usize,
    pub(super) p50_ms: f64,
    pub(super) p95_ms: f64,
    pub(super) max_ms: f64,
    pub(super) total_ms: f64,
}

/// All figures.
pub(super) struct Sums {
    /// How many tasks ended in each of [`STATUSES`].
    pub(super) counts: [usize; 7],
    /// Lower end, rate and upper end of the 95 % interval of what passed among what was judged.
    pub(super) rate: Option<[f64; 3]>,
    pub(super) time: Timings,
    pub(super) tokens: Usage,
    pub(super) tools: Vec<Row>,
    pub(super) model: Row,
    pub(super) tries: usize,
    /// Why requests were tried again, and how often for each.
    pub(super) retries: Vec<(String, usize)>,
    pub(super) retry_wait_ms: f64,
    /// Why tasks failed or errored, and how many for each.
    pub(super) reasons: Vec<(String, usize)>,
    /// Codes of errored tasks with the server, and how many ended so.
    pub(super) errors: Vec<(String, usize)>,
}

impl Sums {
    pub(super) fn of(run: &Run) -> Self {
        let mut counts = [0; 7];
        let mut time = Timings::default();
        let mut tokens = Usage::default();
        let mut reasons = BTreeMap::<String, usize>::new();
        let mut errors = BTreeMap::<String, usize>::new();
        let mut tools = BTreeMap::<String, (Vec<f64>, usize)>::new();
        let (mut asked, mut model_errors, mut tries, mut retry_wait_ms) = (Vec::new(), 0, 0, 0.0);
        let mut retries = BTreeMap::<String, usize>::new();
        for task in &run.tasks {
            if let Some(index) = STATUSES.iter().position(|status| *status == task.status) {
                counts[index] += 1;
            }
            let line = &task.result;
            time += line.time_ms;
            tokens += line.tokens;
            if let Some(reason) = &line.reason {
                *reasons.entry(reason.clone()).or_default() += 1;
            }
            if let Some(error) = line.error.as_ref().filter(|_| task.status == "errored") {
                let server = error.server.as_ref().map_or_else(String::new, |server| format!(" {server}"));
                *errors.entry(format!("{}{server}", error.code)).or_default() += 1;
            }
            for span in &task.spans {
                match &span.what {
                    What::Model(Some(end)) => {
                        asked.push(millis(end.took_ns));
                        model_errors += usize::from(end.error.is_some());
                        tries += end.attempts.len();
                        let failed = end.attempts.len().saturating_sub(1);
                        for attempt in &end.attempts[..failed] {
                            *retries.entry(attempt.reason()).or_default() += 1;
                        }
                        retry_wait_ms +=
                            end.attempts.iter().map(|attempt| millis(attempt.waited_ns)).sum::<f64>();
                    }
                    What::Call { server, tool, end: Some(end), .. } => {
                        let (times, errors) = tools.entry(format!("{server}.{tool}")).or_default();
                        times.push(millis(end.took_ns));
                        *errors += usize::from(end.is_error);
                    }
                    What::Model(None) | What::Call { end: None, .. } => {}
                }
            }
        }
        let mut tools: Vec<Row> =
            tools.into_iter().map(|(name, (times, errors))| Row::of(name, times, errors)).collect();
        tools.sort_by(|a, b| b.total_ms.total_cmp(&a.total_ms));
        counts[6] = run.tasks_total.saturating_sub(run.tasks.len());
        let judged = counts[0] + counts[2];
        Self {
            rate: (judged > 0).then(|| wilson(counts[0], judged)),
            counts,
            time,
            tokens,
            tools,
            model: Row::of("model".to_owned(), asked, model_errors),
            tries,
            retries: most_first(retries),
            retry_wait_ms,
            reasons: most_first(reasons),
            errors: most_first(errors),
        }
    }

    /// How the tasks ended, in words.
    pub(super) fn words(&self, run: &Run) -> String {
        let ends = STATUSES.iter().zip(self.counts).filter(|(_, n)| *n > 0);
        let ends: Vec<String> = ends.map(|(status, n)| format!("{n} {}", status_words(status))).collect();
        format!("{}: {}", counted(run.tasks_total, "task"), ends.join(", "))
    }

    /// The parts of the time, those that took none left out.
    pub(super) fn parts(time: &Timings) -> Vec<(&'static str, &'static str, f64)> {
        let all = [
            ("model", "model", time.model),
            ("tools", "tools", time.tools),
            ("wait", "waiting to try again", time.retry_wait),
            ("queue", "queue", time.queue),
            ("init", "start of servers", time.init),
            ("other", "other", time.other),
        ];
        all.into_iter().filter(|(_, _, ms)| *ms > 0.0).collect()
    }

    fn model_document(&self) -> Value {
        let mut document = self.model.document();
        document["tries"] = self.tries.into();
        document["retries"] = self.retries.iter().map(|(why, n)| json!({"after": why, "n": n})).collect();
        document["retry_wait_ms"] = round(self.retry_wait_ms).into();
        document
    }

    /// The document for scripts; `tasks` are those that have a row.
    pub(super) fn document(&self, run: &Run, tasks: &[&Task]) -> Value {
        let counts: serde_json::Map<String, Value> = STATUSES
            .iter()
            .zip(self.counts)
            .map(|(name, count)| ((*name).to_owned(), count.into()))
            .collect();
        let time = &self.time;
        json!({
            "schema": 1, "run": run.manifest["run"], "toolcrib": run.manifest["toolcrib"],
            "model": run.manifest["model"], "model_scripted": run.manifest["model_scripted"],
            "jobs": run.jobs, "started": run.started, "wall_ms": round(run.wall_ms),
            "end": run.end, "events_dropped": run.dropped,
            "tasks_total": run.tasks_total, "counts": counts,
            "pass_rate": pass_rate(self.counts[0], self.counts[0] + self.counts[2]),
            "reasons": self.reasons.iter().cloned().collect::<BTreeMap<_, _>>(),
            "time_ms": {"init": round(time.init), "queue": round(time.queue), "model": round(time.model),
                "tools": round(time.tools), "retry_wait": round(time.retry_wait), "other": round(time.other)},
            "tokens": self.tokens, "model_requests": self.model_document(),
            "llm": run.manifest["totals"]["llm"],
            "tools": self.tools.iter().map(Row::document).collect::<Vec<_>>(),
            "errors": self.errors.iter().map(|(what, n)| json!({"what": what, "n": n})).collect::<Vec<_>>(),
            "servers": run.servers.iter().map(server).collect::<Vec<_>>(),
            "tasks": tasks.iter().map(|entry| task(entry)).collect::<Vec<_>>(),
        })
    }
}

/// A status for people.
pub(super) fn status_words(status: &str) -> &str {
    if status == NOT_BEGUN { "never began" } else { status }
}

impl Row {
    fn of(name: String, mut times: Vec<f64>, errors: usize) -> Self {
        times.sort_by(f64::total_cmp);
        Self {
            name,
            n: times.len(),
            errors,
            p50_ms: at_percent(&times, 50),
            p95_ms: at_percent(&times, 95),
            max_ms: times.last().copied().unwrap_or_default(),
            total_ms: times.iter().sum(),
        }
    }

    fn document(&self) -> Value {
        json!({"name": self.name, "n": self.n, "errors": self.errors,
            "p50_ms": round(self.p50_ms), "p95_ms": round(self.p95_ms), "max_ms": round(self.max_ms),
            "total_ms": round(self.total_ms)})
    }
}

/// What happened most often comes first.
fn most_first(counts: BTreeMap<String, usize>) -> Vec<(String, usize)> {
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    counts
}

fn server(server: &super::load::Server) -> Value {
    let marks: Vec<Value> = server
        .marks
        .iter()
        .map(|mark| json!({"at_ms": round(mark.at_ms), "bad": mark.bad, "what": mark.words}))
        .collect();
    let mut document = match &server.start {
        Start::Unknown => json!({"state": "unknown"}),
        Start::Parked { tools } => json!({"state": "parked", "tools": tools}),
        Start::Ready { took_ms, tools, era, phases, .. } => json!({
            "state": "ready", "tools": tools, "era": era, "ms": round(*took_ms),
            "phases_ms": {"queue": round(millis(phases.queue)), "spawn": round(millis(phases.spawn)),
                "first_byte": round(millis(phases.first_byte)), "handshake": round(millis(phases.handshake)),
                "list": round(millis(phases.list))},
        }),
        Start::Failed { took_ms, error, .. } => {
            json!({"state": "failed", "ms": round(*took_ms), "error": error})
        }
    };
    document["name"] = server.name.clone().into();
    document["marks"] = marks.into();
    document
}

fn task(task: &Task) -> Value {
    let line = &task.result;
    json!({
        "task": task.task, "attempt": task.attempt, "status": task.status, "start_ms": round(task.start_ms),
        "wall_ms": round(task.end_ms - task.start_ms), "turns": line.turns, "tool_calls": line.tool_calls,
        "tool_errors": line.tool_errors, "llm_retries": line.llm_retries,
        "tokens": line.tokens.input.saturating_add(line.tokens.output),
        "reason": line.reason, "error": line.error.as_ref().map(|error| &error.code),
    })
}

/// To the microsecond.
fn round(ms: f64) -> f64 {
    (ms * 1e3).round() / 1e3
}

/// The part that passed of so many judged tasks, with its 95 % interval. Null where none was judged.
pub(in crate::cli) fn pass_rate(passed: usize, judged: usize) -> Value {
    let rate = (judged > 0).then(|| wilson(passed, judged));
    rate.map_or(Value::Null, |[low, rate, high]| json!({"value": rate, "low": low, "high": high}))
}

/// Wilson's score interval of 95 %: lower end, rate, upper end.
fn wilson(good: usize, all: usize) -> [f64; 3] {
    let z = 1.96_f64;
    let (n, rate) = (all as f64, good as f64 / all as f64);
    let middle = rate + z * z / (2.0 * n);
    let reach = z * (rate * (1.0 - rate) / n + z * z / (4.0 * n * n)).sqrt();
    let scale = 1.0 + z * z / n;
    [((middle - reach) / scale).max(0.0), rate, ((middle + reach) / scale).min(1.0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_measured_values() {
        let times: Vec<f64> = (1..=20).map(f64::from).collect();
        let known =
            [at_percent(&times, 50), at_percent(&times, 95), at_percent(&[], 50), at_percent(&[7.0], 95)];
        assert_eq!(known.map(f64::to_bits), [10.0, 19.0, 0.0, 7.0].map(f64::to_bits));
    }

    #[test]
    fn confidence_intervals_match_published_tables() {
        // Newcombe 1998, table I: 81 of 263 and 0 of 20.
        let [low, _, high] = wilson(81, 263);
        assert!((low - 0.2553).abs() < 1e-4 && (high - 0.3662).abs() < 1e-4, "{low} {high}");
        let [low, _, high] = wilson(0, 20);
        assert!(low.abs() < 1e-9 && (high - 0.1611).abs() < 1e-4, "{low} {high}");
    }
}
