//! Counts, gauges, summaries and histograms in the text format of Prometheus.
//!
//! The families are fixed ([`FAMILIES`], docs/metrics.md). Values of labels come from configurations, servers and models, so
//! that each family has at most [`MAX_SERIES`] series: what comes later counts as `other`. So that a server with many tools
//! takes no room from the others, its own tools count as `other` beyond [`MAX_TOOL_SERIES`].

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Series of one family.
pub(super) const MAX_SERIES: usize = 500;
/// Series of one family with the tools of one server.
const MAX_TOOL_SERIES: usize = 100;
/// Bytes of a value of a label.
const MAX_LABEL: usize = 100;
/// Upper bounds of the buckets of histograms, in seconds.
const BUCKETS: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 600.0];

/// The kind of a family.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
    /// The sum and the number of times, without quantiles.
    Summary,
}

/// Name, kind, labels and help text.
type Family = (&'static str, Kind, &'static [&'static str], &'static str);

/// All families.
const FAMILIES: &[Family] = &[
    ("process_cpu_seconds_total", Kind::Counter, &[], "CPU time of this process."),
    ("process_open_fds", Kind::Gauge, &[], "Open file descriptors of this process."),
    ("process_resident_memory_bytes", Kind::Gauge, &[], "Resident memory of this process."),
    ("toolcrib_build_info", Kind::Gauge, &["version"], "Always 1; the version of toolcrib."),
    (
        "toolcrib_gateway_sessions",
        Kind::Gauge,
        &[],
        "Clients of the gateway over HTTP: sessions, and callers without one.",
    ),
    (
        "toolcrib_http_connections_opened_total",
        Kind::Counter,
        &[],
        "HTTP connections that this process made.",
    ),
    ("toolcrib_http_requests", Kind::Gauge, &[], "HTTP requests of this process that are under way."),
    (
        "toolcrib_llm_request_seconds",
        Kind::Histogram,
        &["model"],
        "Time of model requests with all their attempts.",
    ),
    (
        "toolcrib_llm_requests_total",
        Kind::Counter,
        &["model", "outcome"],
        "Model requests that ended: ok, or the class of the failure.",
    ),
    (
        "toolcrib_llm_retries_total",
        Kind::Counter,
        &["reason"],
        "Attempts of model requests that failed and were repeated.",
    ),
    (
        "toolcrib_llm_retry_wait_seconds_total",
        Kind::Counter,
        &[],
        "Time between the attempts of model requests.",
    ),
    ("toolcrib_llm_tokens_total", Kind::Counter, &["direction"], "Tokens, as model servers counted them."),
    (
        "toolcrib_owned_processes",
        Kind::Gauge,
        &[],
        "Processes of all servers, lent and spare instances included, guards excluded.",
    ),
    ("toolcrib_owned_resident_memory_bytes", Kind::Gauge, &[], "Resident memory of these processes."),
    (
        "toolcrib_process_cpu_seconds_total",
        Kind::Counter,
        &["server"],
        "CPU time of the processes of a server; starts at zero with each restart.",
    ),
    (
        "toolcrib_process_resident_memory_bytes",
        Kind::Gauge,
        &["server"],
        "Resident memory of the processes of a server.",
    ),
    ("toolcrib_queue_seconds", Kind::Histogram, &["server"], "Waits for a place under max_concurrent_calls."),
    (
        "toolcrib_reconnect_wait_seconds",
        Kind::Summary,
        &["server"],
        "Waits of servers that are down, before the next attempt to start or reach them.",
    ),
    (
        "toolcrib_server_forks_total",
        Kind::Counter,
        &["server"],
        "Starts of a server as a fork of a template.",
    ),
    (
        "toolcrib_server_instances",
        Kind::Gauge,
        &["server", "use"],
        "Instances of a server that is not shared: lent, or spare.",
    ),
    (
        "toolcrib_server_not_forked_total",
        Kind::Counter,
        &["server", "why"],
        "Ordinary starts of a Python server that could have been forked from a template.",
    ),
    ("toolcrib_server_processes", Kind::Gauge, &["server"], "Processes of a server."),
    (
        "toolcrib_server_restarts_total",
        Kind::Counter,
        &["server", "reason"],
        "Later starts of a server that succeeded.",
    ),
    ("toolcrib_server_start_failures_total", Kind::Counter, &["server"], "Starts of a server that failed."),
    (
        "toolcrib_server_start_phase_seconds",
        Kind::Summary,
        &["server", "phase"],
        "Phases of starts: queue, template, spawn, first_byte, handshake, list.",
    ),
    ("toolcrib_server_start_seconds", Kind::Histogram, &["server"], "Time of starts that succeeded."),
    (
        "toolcrib_server_state",
        Kind::Gauge,
        &["server", "state"],
        "1 for the state of a server, 0 for others.",
    ),
    ("toolcrib_server_tools", Kind::Gauge, &["server"], "Tools that a server lists."),
    ("toolcrib_server_up", Kind::Gauge, &["server"], "1 if a server serves calls, as a parked one does."),
    ("toolcrib_tasks_in_flight", Kind::Gauge, &[], "Tasks under way."),
    ("toolcrib_tasks_total", Kind::Counter, &["outcome"], "Tasks that ended."),
    ("toolcrib_template_starts_total", Kind::Counter, &["outcome"], "Starts of templates that ended."),
    (
        "toolcrib_tool_call_seconds",
        Kind::Histogram,
        &["server", "tool"],
        "Time of tool calls, failed ones included.",
    ),
    ("toolcrib_tool_calls_in_flight", Kind::Gauge, &["server"], "Tool calls under way."),
    (
        "toolcrib_tool_calls_total",
        Kind::Counter,
        &["server", "tool", "outcome"],
        "Tool calls that ended: ok, tool_error, timeout, lost, cancelled or error.",
    ),
    (
        "toolcrib_tool_calls_waiting",
        Kind::Gauge,
        &["server"],
        "Tool calls that wait for a place under max_concurrent_calls.",
    ),
];

/// Families whose first labels are a server and a tool.
const TOOL_FAMILIES: [&str; 2] = ["toolcrib_tool_call_seconds", "toolcrib_tool_calls_total"];

/// The value of one series.
#[derive(Default)]
struct Series {
    /// Value of a counter or a gauge; the sum of a histogram.
    value: f64,
    count: u64,
    buckets: [u64; BUCKETS.len()],
}

type Families = BTreeMap<&'static str, BTreeMap<Vec<String>, Series>>;

/// All series. What is counted takes a lock for a moment.
pub struct Metrics {
    families: Mutex<Families>,
    bounded: bool,
}

impl Metrics {
    /// Makes the series that are always there.
    #[expect(clippy::new_without_default, reason = "it is not empty")]
    pub fn new() -> Self {
        let metrics = Self { families: Mutex::default(), bounded: true };
        metrics.add("toolcrib_build_info", &[env!("CARGO_PKG_VERSION")], 1.0);
        metrics
    }

    /// Nothing at all. The number of series is the caller's matter.
    pub(super) fn unbounded() -> Self {
        Self { families: Mutex::default(), bounded: false }
    }

    /// Adds to a counter or a gauge. `labels` are the values of those of the family, in its order.
    pub fn add(&self, family: &'static str, labels: &[&str], amount: f64) {
        self.change(family, labels, |series| series.value += amount);
    }

    /// Counts a time in a histogram or a summary.
    pub fn observe(&self, family: &'static str, labels: &[&str], seconds: f64) {
        self.change(family, labels, |series| {
            series.value += seconds;
            series.count += 1;
            for (bucket, bound) in series.buckets.iter_mut().zip(BUCKETS) {
                *bucket += u64::from(seconds <= bound);
            }
        });
    }

    fn change(&self, family: &'static str, labels: &[&str], change: impl FnOnce(&mut Series)) {
        let mut families = self.lock();
        let all = families.entry(family).or_default();
        let mut values: Vec<String> = labels.iter().map(|value| bounded(value)).collect();
        if self.bounded && !all.contains_key(&values) {
            if all.len() >= MAX_SERIES {
                values.fill("other".to_owned());
            } else if TOOL_FAMILIES.contains(&family)
                && all.keys().filter(|known| known[0] == values[0]).count() >= MAX_TOOL_SERIES
            {
                "other".clone_into(&mut values[1]);
            }
        }
        change(all.entry(values).or_default());
    }

    fn lock(&self) -> MutexGuard<'_, Families> {
        self.families.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The text of all families that have a series here or in `sampled`.
    pub(super) fn text(&self, sampled: &Self) -> String {
        let (families, sampled) = (self.lock(), sampled.lock());
        let mut text = String::new();
        for (name, kind, labels, help) in FAMILIES {
            let Some(all) = families.get(name).or_else(|| sampled.get(name)) else { continue };
            let word = match kind {
                Kind::Counter => "counter",
                Kind::Gauge => "gauge",
                Kind::Histogram => "histogram",
                Kind::Summary => "summary",
            };
            // Writing to a text cannot fail.
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {word}");
            for (values, series) in all {
                let pairs: Vec<String> = labels
                    .iter()
                    .zip(values)
                    .map(|(label, value)| format!("{label}=\"{}\"", escaped(value)))
                    .collect();
                let mut line = |suffix: &str, bound: Option<&str>, value: &dyn std::fmt::Display| {
                    let bound = bound.map(|bound| format!("le=\"{bound}\""));
                    let pairs: Vec<&str> = pairs.iter().map(String::as_str).chain(bound.as_deref()).collect();
                    let pairs =
                        if pairs.is_empty() { String::new() } else { format!("{{{}}}", pairs.join(",")) };
                    let _ = writeln!(text, "{name}{suffix}{pairs} {value}");
                };
                if *kind == Kind::Histogram {
                    for (bucket, bound) in series.buckets.iter().zip(BUCKETS) {
                        line("_bucket", Some(&bound.to_string()), bucket);
                    }
                    line("_bucket", Some("+Inf"), &series.count);
                }
                if matches!(kind, Kind::Histogram | Kind::Summary) {
                    line("_sum", None, &series.value);
                    line("_count", None, &series.count);
                } else {
                    line("", None, &series.value);
                }
            }
        }
        text
    }
}

fn bounded(value: &str) -> String {
    let mut end = value.len().min(MAX_LABEL);
    while !value.is_char_boundary(end) {
        end -= 1;
    }
    value[..end].to_owned()
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(metrics: &Metrics) -> String {
        metrics.text(&Metrics::unbounded())
    }

    #[test]
    fn families_have_no_more_series_than_the_limit() {
        let metrics = Metrics::new();
        for number in 0..MAX_SERIES + 100 {
            metrics.add("toolcrib_llm_requests_total", &[&format!("model{number}"), "ok"], 1.0);
        }
        let text = text(&metrics);
        assert_eq!(text.matches("toolcrib_llm_requests_total{").count(), MAX_SERIES + 1);
        assert!(text.contains("{model=\"other\",outcome=\"other\"} 100\n"), "{text}");
    }

    #[test]
    fn many_tools_of_one_server_leave_room_for_others() {
        let metrics = Metrics::new();
        for number in 0..10_000 {
            let tool = format!("tool{number}");
            let outcome = if number % 2 == 0 { "ok" } else { "tool_error" };
            metrics.add("toolcrib_tool_calls_total", &["hostile", &tool, outcome], 1.0);
            metrics.observe("toolcrib_tool_call_seconds", &["hostile", &tool], 0.1);
        }
        metrics.add("toolcrib_tool_calls_total", &["honest", "echo", "ok"], 1.0);
        let text = text(&metrics);
        assert_eq!(text.matches("toolcrib_tool_calls_total{").count(), MAX_TOOL_SERIES + 3);
        assert_eq!(text.matches("toolcrib_tool_call_seconds_count{").count(), MAX_TOOL_SERIES + 1);
        for line in [
            "{server=\"hostile\",tool=\"other\",outcome=\"ok\"} 4950\n",
            "{server=\"hostile\",tool=\"tool7\",outcome=\"tool_error\"} 1\n",
            "{server=\"honest\",tool=\"echo\",outcome=\"ok\"} 1\n",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }

    #[test]
    fn texts_are_escaped_and_buckets_are_cumulative() {
        let metrics = Metrics::new();
        metrics.observe("toolcrib_llm_request_seconds", &["a\"b\\c\nd"], 0.3);
        metrics.observe("toolcrib_llm_request_seconds", &["a\"b\\c\nd"], 1000.0);
        let text = text(&metrics);
        let series = r#"toolcrib_llm_request_seconds_bucket{model="a\"b\\c\nd",le="#;
        for (bound, count) in [("0.25", 0), ("0.5", 1), ("600", 1), ("+Inf", 2)] {
            assert!(text.contains(&format!("{series}\"{bound}\"}} {count}\n")), "{text}");
        }
        assert!(text.contains("_sum{model=\"a\\\"b\\\\c\\nd\"} 1000.3\n"), "{text}");
    }
}
