//! Answers tool calls of the chaos server, and injects the fault at the chosen call.

use std::{
    collections::HashSet,
    io::Write,
    ops::ControlFlow,
    path::PathBuf,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::{
    Server,
    fault::{Fault, Moment, Told},
    protocol,
    wire::{self, Input, Output},
};

/// State that all calls of the process share.
pub(super) struct Calls {
    number: u64,
    count: Option<PathBuf>,
    /// Tools that were added since the start.
    pub(super) extra_tools: u64,
    /// The subscription that wants to hear of changes.
    pub(super) listener: Option<Value>,
    cancels: Arc<Cancels>,
}

#[derive(Default)]
struct Cancels {
    ids: Mutex<HashSet<String>>,
    news: Condvar,
}

impl Cancels {
    fn ids(&self) -> MutexGuard<'_, HashSet<String>> {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits so long, or until the call is cancelled: then it says so.
    fn within(&self, id: &Value, time: Duration) -> bool {
        let until = Instant::now() + time;
        let mut ids = self.ids();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if ids.contains(&id.to_string()) || left.is_zero() {
                return ids.contains(&id.to_string());
            }
            ids = self.news.wait_timeout(ids, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Calls {
    pub(super) fn new(count: Option<PathBuf>) -> Self {
        Self { number: 0, count, extra_tools: 0, listener: None, cancels: Arc::default() }
    }

    pub(super) fn cancelled(&self, id: &Value) {
        self.cancels.ids().insert(id.to_string());
        self.cancels.news.notify_all();
    }

    /// Runs the tool; none if a thread answers later.
    fn run(&self, id: &Value, params: &Value, output: &Output) -> Option<Value> {
        let arguments = &params["arguments"];
        Some(match params["name"].as_str().unwrap_or_default() {
            "echo" => protocol::text(arguments["text"].as_str().unwrap_or_default()),
            "pid" => protocol::text(&std::process::id().to_string()),
            "count" => protocol::text(&self.append(&arguments["n"])),
            "sleep" => {
                let time = Duration::from_millis(arguments["ms"].as_u64().unwrap_or(0));
                let (cancels, output, id) = (self.cancels.clone(), output.clone(), id.clone());
                thread::spawn(move || {
                    if !cancels.within(&id, time) {
                        output.write(
                            format!("{}\n", protocol::result(&id, protocol::text("slept"))).as_bytes(),
                        );
                    }
                });
                return None;
            }
            extra if extra.starts_with("extra_") => protocol::text("new here"),
            other => {
                let mut result = protocol::text(&format!("there is no tool {other}"));
                result["isError"] = json!(true);
                result
            }
        })
    }

    /// Appends the number of the call, if it has one, or our process id.
    fn append(&self, number: &Value) -> String {
        let Some(path) = &self.count else { return "counted nowhere".to_owned() };
        let number = number.as_u64().unwrap_or_else(|| u64::from(std::process::id()));
        let line = format!("{number}\n");
        let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
        match file.and_then(|mut file| file.write_all(line.as_bytes())) {
            Ok(()) => "counted".to_owned(),
            Err(error) => format!("not counted: {error}"),
        }
    }
}

impl Server {
    /// Runs a call, or breaks at it. Breaks off with an exit code.
    pub(super) fn call(&mut self, id: &Value, params: &Value, input: &mut Input) -> ControlFlow<u8> {
        self.calls.number += 1;
        let faults = if self.calls.number == self.plan.at { self.plan.once.clone() } else { vec![] };
        let code = self.plan.code;
        let crash = |moment| {
            let crashes = faults.contains(&Fault::Crash(moment));
            if crashes {
                wire::say(&format!("exits with code {code} ({moment:?} the call)"));
            }
            crashes
        };
        if crash(Moment::Before) {
            return ControlFlow::Break(code);
        }
        let result = self.calls.run(id, params, &self.output);
        if crash(Moment::During) {
            return ControlFlow::Break(code);
        }
        let answer = result.map(|result| protocol::result(id, result));
        let mut answered = false;
        for fault in &faults {
            wire::say(&format!("{fault:?} at call {}", self.calls.number));
            answered |= self.break_at(fault, id, params, answer.as_ref(), input);
        }
        if let Some(answer) = answer.filter(|_| !answered) {
            self.send(&answer);
        }
        if crash(Moment::After) {
            return ControlFlow::Break(code);
        }
        ControlFlow::Continue(())
    }

    /// Does what `fault` does to a call; says whether that takes the place of the answer.
    fn break_at(
        &mut self,
        fault: &Fault,
        id: &Value,
        params: &Value,
        answer: Option<&Value>,
        input: &mut Input,
    ) -> bool {
        let line = answer.map(|answer| format!("{answer}\n")).unwrap_or_default();
        let open = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"resultType":"complete","content":["#);
        let text = r#"{"type":"text","text":""#;
        let x = || std::iter::repeat_with(|| "x".repeat(1024));
        match fault {
            Fault::HalfMessage => self.output.write(&line.as_bytes()[..line.len() / 2]),
            Fault::GiantLine(bytes) => {
                self.output.write_long(&format!("{open}{text}"), x(), *bytes, "\"}]}}\n");
            }
            Fault::HugeImage(bytes) => {
                let image = r#"{"type":"image","mimeType":"image/png","data":""#;
                self.output.write_long(&format!("{open}{image}"), x(), *bytes, "\"}]}}\n");
            }
            Fault::HugeData(bytes) => {
                let rows = r#"],"structuredContent":{"rows":["#;
                let zeros = std::iter::repeat_with(|| "0,".repeat(512));
                self.output.write_long(&format!("{open}{rows}"), zeros, bytes & !1, "0]}}}\n");
            }
            Fault::HugeResult(bytes) => {
                // Every line has sixteen bytes of text, and seventeen on the wire.
                let lines = (1_u64..).map(|number| format!("line {number:010}\\n"));
                let wire = bytes / 16 * 17;
                self.output.write_long(&format!("{open}{text}"), lines, wire, "\"}]}}\n");
            }
            Fault::InvalidUtf8 => {
                self.output.write(&[open.as_bytes(), text.as_bytes(), b"\xff\xfe\"}]}}\n"].concat());
            }
            Fault::Malformed => {
                self.output
                    .write(format!("{}\n", json!({"jsonrpc": "2.0", "id": id, "reslt": 1})).as_bytes());
            }
            Fault::StdoutClosed => self.output.close(),
            Fault::NeverAnswers => {}
            Fault::Late(time) => self.later(*time, true, id, line),
            Fault::IgnoresCancel(time) => self.later(*time, false, id, line),
            Fault::Progress(pause) => self.progress(*pause, id, &params["_meta"]["progressToken"]),
            _ => {
                self.disturb(fault, &line, input);
                return false;
            }
        }
        true
    }

    /// Makes a fault beside an answer that is given all the same.
    fn disturb(&mut self, fault: &Fault, line: &str, input: &mut Input) {
        match fault {
            Fault::Duplicate(times) => (0..*times).for_each(|_| self.output.write(line.as_bytes())),
            Fault::UnknownId(times) => {
                for id in 0..*times {
                    let answer = protocol::result(&json!(1_000_000 + id), protocol::text("who asked?"));
                    self.output.write(format!("{answer}\n").as_bytes());
                }
            }
            Fault::StdinClosed => input.close(),
            Fault::NeverReads => input.slow = Some(super::for_ever()),
            Fault::StderrFlood(bytes) => wire::flood_stderr(*bytes),
            Fault::ToolsChange(told) => {
                self.calls.extra_tools += 1;
                if *told == Told::Yes {
                    self.send(&protocol::changed(self.calls.listener.as_ref()));
                }
            }
            _ => {}
        }
    }

    fn later(&self, time: Duration, listens: bool, id: &Value, line: String) {
        let (cancels, output, id) = (self.calls.cancels.clone(), self.output.clone(), id.clone());
        thread::spawn(move || {
            let cancelled = if listens {
                cancels.within(&id, time)
            } else {
                thread::sleep(time);
                false
            };
            if !cancelled {
                output.write(line.as_bytes());
            }
        });
    }

    fn progress(&self, pause: Duration, id: &Value, token: &Value) {
        let (cancels, output) = (self.calls.cancels.clone(), self.output.clone());
        let (id, token) = (id.clone(), token.clone());
        thread::spawn(move || {
            for step in 1.. {
                if cancels.within(&id, pause) {
                    return;
                }
                output.write(format!("{}\n", protocol::progress(&token, step)).as_bytes());
            }
        });
    }
}
