//! The run as OpenTelemetry traces, in the JSON of OTLP: one trace for each task and one for the servers, with the names
//! and attributes of docs/tracing.md.

use std::{
    collections::{HashMap, HashSet},
    io::Write,
    time::{SystemTime, UNIX_EPOCH},
};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{ExportSummary, output, run_reader::RunReader};
use crate::{
    error::Result,
    run_files::{CallEnded, Event, EventLine, ModelEnded},
    task::{Outcome, Usage},
    text::hex,
};

/// Spans in one line.
const BATCH: usize = 256;
/// Values of the protocol: kinds of spans, and the status of what failed.
const INTERNAL: u32 = 1;
const CLIENT: u32 = 3;
const FAILED: u32 = 2;

struct Traces<'a> {
    out: &'a mut dyn Write,
    run: String,
    resource: Value,
    scope: Value,
    wanted: Option<HashSet<String>>,
    /// Nanoseconds of the clock at which the run's own time began.
    began: u64,
    last_ns: u64,
    tasks: HashMap<String, OpenTask>,
    spans: Vec<Value>,
    /// Tasks that were written: one that was interrupted ends several times.
    ended: HashSet<String>,
}

/// A task that is under way.
#[derive(Default)]
struct OpenTask {
    began: u64,
    tokens: Usage,
    requests: u32,
    calls: u32,
    /// Requests and calls without an end, by the name of their span: agent, operation and number.
    steps: HashMap<(String, String, u32), u64>,
}

/// A span in the making.
struct Span<'a> {
    trace: &'a str,
    id: String,
    parent: Option<String>,
    name: String,
    kind: u32,
    ns: (u64, u64),
    attributes: Vec<(&'static str, Value)>,
    error: Option<String>,
}

pub(super) fn write(run: &RunReader, out: &mut dyn Write) -> Result<ExportSummary> {
    let resource = attributes([
        ("service.name", json!("toolcrib")),
        ("service.version", json!(run.version())),
        ("toolcrib.run", json!(run.run())),
    ]);
    let mut traces = Traces {
        out,
        run: run.run().to_owned(),
        resource: json!({"attributes": resource}),
        scope: json!({"name": "toolcrib", "version": run.version()}),
        wanted: run.wanted_tasks()?,
        began: 0,
        last_ns: 0,
        tasks: HashMap::new(),
        spans: Vec::new(),
        ended: HashSet::new(),
    };
    let model = run.manifest["model"].as_str().map(str::to_owned);
    run.each_event(|line| traces.event(line, model.as_deref()))?;
    let open: Vec<String> = traces.tasks.keys().cloned().collect();
    for task in open {
        let end = traces.last_ns;
        traces.end_task(&task, end, "unfinished", model.as_deref())?;
    }
    traces.flush()?;
    Ok(ExportSummary { tasks: traces.ended.len(), ..ExportSummary::default() })
}

impl Traces<'_> {
    fn event(&mut self, line: EventLine, model: Option<&str>) -> Result<()> {
        let ns = line.ns;
        self.last_ns = self.last_ns.max(ns);
        if self.began == 0 {
            let at = humantime::parse_rfc3339(&line.at).unwrap_or(SystemTime::UNIX_EPOCH);
            let at = at.duration_since(UNIX_EPOCH).unwrap_or_default();
            self.began = u64::try_from(at.as_nanos()).unwrap_or(u64::MAX).saturating_sub(ns);
        }
        match line.event {
            Event::TaskStarted { task, .. } => {
                if self.wanted.as_ref().is_none_or(|wanted| wanted.contains(&task)) {
                    self.tasks.entry(task).or_insert(OpenTask { began: ns, ..OpenTask::default() });
                }
                Ok(())
            }
            Event::TaskEnded { task, status, .. } => self.end_task(&task, ns, status.name(), model),
            Event::ModelStarted { task, agent, turn, .. } => {
                self.begin_step(&task, agent, "chat", turn, ns);
                Ok(())
            }
            Event::CallStarted { task, agent, call, .. } => {
                self.begin_step(&task, agent, "tools/call", call, ns);
                Ok(())
            }
            Event::ModelEnded(ended) => self.request(&ended, ns, model),
            Event::CallEnded(ended) => self.call(&ended, ns),
            Event::ServerReady { server, pid, era, tools, took_ns, .. } => {
                let fields = vec![
                    ("process.pid", json!(pid)),
                    ("mcp.protocol.version", json!(era)),
                    ("toolcrib.tools", json!(tools)),
                ];
                self.server("server.start", &server, (ns.saturating_sub(took_ns), ns), fields, None)
            }
            Event::ServerFailed { server, took_ns, error } => {
                let code = error.code.to_string();
                self.server("server.start", &server, (ns.saturating_sub(took_ns), ns), Vec::new(), Some(code))
            }
            Event::ServerStopped { server, pid, outcome, took_ns, .. } => {
                let fields = vec![("process.pid", json!(pid)), ("toolcrib.outcome", json!(outcome))];
                self.server("server.stop", &server, (ns.saturating_sub(took_ns), ns), fields, None)
            }
            _ => Ok(()),
        }
    }

    fn begin_step(&mut self, task: &str, agent: String, operation: &str, number: u32, ns: u64) {
        if let Some(task) = self.tasks.get_mut(task) {
            task.steps.insert((agent, operation.to_owned(), number), ns);
        }
    }

    fn request(&mut self, ended: &ModelEnded, ns: u64, model: Option<&str>) -> Result<()> {
        let ModelEnded { task, agent, turn, took_ns, attempts, tokens, finish, error, .. } = ended;
        let Some(open) = self.tasks.get_mut(task) else { return Ok(()) };
        open.steps.remove(&(agent.clone(), "chat".to_owned(), *turn));
        open.tokens += *tokens;
        open.requests += 1;
        let start = ns.saturating_sub(*took_ns).max(open.began);
        let (trace, root) = (self.trace_of(task), self.root_of(task));
        let id = self.id(&[task, agent, "chat", &turn.to_string(), &start.to_string()]);
        let mut at = start;
        for (number, row) in (1u32..).zip(attempts) {
            at = at.saturating_add(row.waited_ns);
            let end = at.saturating_add(row.queued_ns).saturating_add(row.took_ns).min(ns.max(at));
            let attempt = Span {
                trace: &trace,
                id: self.id(&[&id, &number.to_string()]),
                parent: Some(id.clone()),
                name: "attempt".to_owned(),
                kind: CLIENT,
                ns: (at, end),
                attributes: vec![
                    ("toolcrib.attempt", json!(number)),
                    ("http.request.resend_count", json!((number > 1).then(|| number - 1))),
                    ("http.response.status_code", json!(row.status)),
                ],
                error: row.class.clone(),
            };
            at = end;
            self.span(attempt)?;
        }
        let clients = attempts.last().and_then(|row| row.client.clone());
        self.span(Span {
            trace: &trace,
            id,
            parent: Some(root),
            name: format!("chat {}", model.unwrap_or_default()),
            kind: CLIENT,
            ns: (start, ns),
            attributes: vec![
                ("gen_ai.operation.name", json!("chat")),
                ("gen_ai.request.model", json!(model)),
                ("gen_ai.agent.name", json!(agent)),
                (
                    "gen_ai.response.finish_reasons",
                    finish.as_ref().map_or(Value::Null, |finish| json!([finish])),
                ),
                ("gen_ai.usage.input_tokens", json!(tokens.input)),
                ("gen_ai.usage.output_tokens", json!(tokens.output)),
                ("toolcrib.client", json!(clients)),
                ("toolcrib.attempts", json!(attempts.len())),
            ],
            error: error.as_ref().map(|error| error.code.clone()),
        })
    }

    fn call(&mut self, ended: &CallEnded, ns: u64) -> Result<()> {
        let CallEnded { task, agent, call, server, tool, took_ns, is_error, error, .. } = ended;
        let Some(open) = self.tasks.get_mut(task) else { return Ok(()) };
        open.steps.remove(&(agent.clone(), "tools/call".to_owned(), *call));
        open.calls += 1;
        let start = ns.saturating_sub(*took_ns).max(open.began);
        let trace = self.trace_of(task);
        let failed = error.as_ref().map(|error| error.code.clone());
        self.span(Span {
            trace: &trace,
            id: self.id(&[task, agent, "tools/call", &call.to_string(), &start.to_string()]),
            parent: Some(self.root_of(task)),
            name: format!("tools/call {tool}"),
            kind: CLIENT,
            ns: (start, ns),
            attributes: vec![
                ("mcp.method.name", json!("tools/call")),
                ("gen_ai.operation.name", json!("execute_tool")),
                ("gen_ai.agent.name", json!(agent)),
                ("gen_ai.tool.name", json!(tool)),
                ("toolcrib.server", json!(server)),
            ],
            error: failed.or_else(|| is_error.then(|| "tool_error".to_owned())),
        })
    }

    fn end_task(&mut self, task: &str, ns: u64, outcome: &str, model: Option<&str>) -> Result<()> {
        let Some(open) = self.tasks.remove(task) else { return Ok(()) };
        let trace = self.trace_of(task);
        for ((agent, operation, number), start) in open.steps {
            let id = self.id(&[task, &agent, &operation, &number.to_string(), &start.to_string()]);
            self.span(Span {
                trace: &trace,
                id,
                parent: Some(self.root_of(task)),
                name: operation,
                kind: CLIENT,
                ns: (start, ns),
                attributes: vec![("gen_ai.agent.name", json!(agent))],
                error: Some("unfinished".to_owned()),
            })?;
        }
        self.ended.insert(task.to_owned());
        let failed =
            ![Outcome::Passed, Outcome::Failed, Outcome::Unscored].iter().any(|end| end.name() == outcome);
        self.span(Span {
            trace: &trace,
            id: self.root_of(task),
            parent: None,
            name: "invoke_agent main".to_owned(),
            kind: INTERNAL,
            ns: (open.began, ns),
            attributes: vec![
                ("gen_ai.operation.name", json!("invoke_agent")),
                ("gen_ai.agent.name", json!("main")),
                ("gen_ai.request.model", json!(model.filter(|_| open.requests > 0))),
                ("gen_ai.usage.input_tokens", json!(open.tokens.input)),
                ("gen_ai.usage.output_tokens", json!(open.tokens.output)),
                ("toolcrib.task", json!(task)),
                ("toolcrib.outcome", json!(outcome)),
                ("toolcrib.tool_calls", json!(open.calls)),
            ],
            error: failed.then(|| outcome.to_owned()),
        })
    }

    fn server(
        &mut self,
        what: &str,
        server: &str,
        ns: (u64, u64),
        mut fields: Vec<(&'static str, Value)>,
        error: Option<String>,
    ) -> Result<()> {
        fields.push(("toolcrib.server", json!(server)));
        let trace = hex(&Sha256::digest(format!("toolcrib\0{}", self.run))[..16]);
        self.span(Span {
            trace: &trace,
            id: self.id(&[what, server, &ns.1.to_string()]),
            parent: None,
            name: format!("{what} {server}"),
            kind: INTERNAL,
            ns,
            attributes: fields,
            error,
        })
    }

    fn span(&mut self, span: Span<'_>) -> Result<()> {
        let Span { trace, id, parent, name, kind, ns: (from, to), attributes: mut fields, error } = span;
        let at = |ns: u64| self.began.saturating_add(ns).to_string();
        let mut written = json!({
            "traceId": trace, "spanId": id, "parentSpanId": parent.unwrap_or_default(), "name": name, "kind": kind,
            "startTimeUnixNano": at(from), "endTimeUnixNano": at(to.max(from)),
        });
        if let Some(error) = error {
            written["status"] = json!({"code": FAILED});
            fields.push(("error.type", error.into()));
        }
        written["attributes"] = attributes(fields);
        self.spans.push(written);
        if self.spans.len() >= BATCH { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        if self.spans.is_empty() {
            return Ok(());
        }
        let spans = std::mem::take(&mut self.spans);
        let line = json!({"resourceSpans": [{
            "resource": self.resource, "scopeSpans": [{"scope": self.scope, "spans": spans}],
        }]});
        output::line(self.out, &line)
    }

    fn trace_of(&self, task: &str) -> String {
        hex(&Sha256::digest(format!("toolcrib\0{}\0{task}", self.run))[..16])
    }

    fn root_of(&self, task: &str) -> String {
        self.id(&[task, "invoke_agent"])
    }

    /// The id of a span: the same run has the same ids each time it is exported.
    fn id(&self, parts: &[&str]) -> String {
        hex(&Sha256::digest(format!("{}\0{}", self.run, parts.join("\0")))[..8])
    }
}

/// Attributes as the protocol writes them; those without a value are left out.
fn attributes(fields: impl IntoIterator<Item = (&'static str, Value)>) -> Value {
    fields
        .into_iter()
        .filter(|(_, value)| !value.is_null())
        .map(|(key, value)| json!({"key": key, "value": attribute(value)}))
        .collect()
}

fn attribute(value: Value) -> Value {
    match value {
        Value::Bool(value) => json!({"boolValue": value}),
        // Whole numbers are texts in the JSON form of the protocol.
        Value::Number(number) if number.is_f64() => json!({"doubleValue": number}),
        Value::Number(number) => json!({"intValue": number.to_string()}),
        Value::Array(values) => {
            json!({"arrayValue": {"values": values.into_iter().map(attribute).collect::<Vec<_>>()}})
        }
        Value::String(text) => json!({"stringValue": text}),
        other => json!({"stringValue": other.to_string()}),
    }
}
