//! A model endpoint of which one node of one answer is odd, asked by an agent with real tools.

use std::{
    ops::Range,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use serde_json::{Value, json};
use toolcrib::{
    Agent, Config, Endpoint, HttpClients, LlmClient, LlmConfig, Manager, RetryPolicy, ServerConfig,
    ServerName, Task, Toolbox,
    config::{AgentConfig, HttpConfig},
};
use toolcrib_fakes::{
    models::{Reply, Server},
    oddities::{Change, Oddity, Step},
};

use super::Fault;

/// How many agents ask at once, an endpoint each.
pub(super) const AT_ONCE: u64 = 8;
/// How long a request to an odd endpoint may take.
const REQUEST_LIMIT: Duration = Duration::from_secs(5);
const ANSWER: &str = "The answer is 4242.";
/// The calls of the first answer, and what is in their results.
const CALLS: [(&str, &str); 2] = [("1000+1", "1001"), ("2000+2", "2002")];

/// Agents on endpoints of their own, which share their tools and HTTP clients.
pub(super) struct Models {
    manager: Manager,
    http: HttpClients,
}

/// The answer of an endpoint that is odd.
struct Plan {
    stream: bool,
    answer: Answer,
    change: Change,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// The one that asks for two calls.
    Calls,
    /// The last one; of a stream the piece with this number.
    Last(usize),
}

impl Models {
    pub(super) async fn new() -> anyhow::Result<Self> {
        let calc = Endpoint::Builtin { name: "calc".into(), args: vec![], base: ".".into() };
        let config = Config::new([ServerConfig::new(ServerName::new("calc")?, calc)]);
        let manager = Manager::start(&config).await?;
        Ok(Self { manager, http: HttpClients::new(&HttpConfig::default())? })
    }

    pub(super) async fn round(&self, seeds: Range<u64>) -> anyhow::Result<Vec<Fault>> {
        let toolbox = self.manager.toolbox();
        let asking = seeds.map(|seed| self.ask(&toolbox, seed));
        let found = futures_util::future::join_all(asking).await;
        Ok(found.into_iter().collect::<anyhow::Result<Vec<_>>>()?.into_iter().flatten().collect())
    }

    pub(super) async fn end(self) {
        self.manager.shutdown().await;
    }

    /// Runs an agent on the endpoint of `seed`.
    async fn ask(&self, toolbox: &Toolbox, seed: u64) -> anyhow::Result<Vec<Fault>> {
        let Some(plan) = Plan::of(seed) else { return Ok(Vec::new()) };
        let (keeps_answer, keeps_calls) = (plan.keeps_answer(), plan.keeps_calls());
        let what =
            format!("{:?}{} {}", plan.answer, if plan.stream { " of a stream" } else { "" }, plan.change);
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let heard = Arc::clone(&asked);
        let stream = plan.stream;
        let server = Server::start(move |arrival| {
            let is_last = arrival.body["messages"].as_array().is_some_and(|all| all.iter().any(is_result));
            heard.lock().unwrap_or_else(PoisonError::into_inner).push(arrival.body.to_string());
            plan.reply(is_last)
        })?;
        let mut config = LlmConfig::new(Some(server.url().to_owned()), "odd");
        config.stream = stream;
        config.request_timeout = REQUEST_LIMIT;
        config.retry = RetryPolicy::fast();
        config.retry.max_attempts = 2;
        let llm = LlmClient::new(&config, &self.http, Path::new("."))?;
        let agent = AgentConfig { max_turns: 4, ..AgentConfig::default() };
        let report = Agent::new(llm, toolbox.clone(), agent).run(&Task::question("odd", "What is it?")).await;
        let mut faults = Vec::new();
        let mut broken = |said: String| faults.push(Fault { seed, change: what.clone(), what: said });
        let answer = report.answer.as_deref().unwrap_or_default();
        if keeps_answer && !answer.contains(ANSWER) {
            let error = report.error.as_ref().map(|error| error.message.clone()).unwrap_or_default();
            broken(format!("the answer is lost: {:?} `{answer}` {error}", report.status));
        }
        let asked = asked.lock().unwrap_or_else(PoisonError::into_inner);
        for (call, (_, result)) in CALLS.iter().enumerate() {
            if keeps_calls[call] && !asked.iter().any(|body| body.contains(result)) {
                broken(format!("call {call} was not made"));
            }
        }
        Ok(faults)
    }
}

fn is_result(message: &Value) -> bool {
    message["role"] == "tool"
}

impl Plan {
    fn of(seed: u64) -> Option<Self> {
        let stream = seed % 2 == 1;
        let answers = if stream { 1 + pieces().len() } else { 2 };
        let kind = usize::try_from(seed / 2).unwrap_or(0) % answers;
        let answer = kind.checked_sub(1).map_or(Answer::Calls, Answer::Last);
        let message = match answer {
            Answer::Calls => calls(stream),
            Answer::Last(piece) if stream => pieces().swap_remove(piece),
            Answer::Last(_) => last(),
        };
        Some(Self { stream, answer, change: Change::of(&message, seed)? })
    }

    fn reply(&self, is_last: bool) -> Reply {
        let messages = match (is_last, self.stream) {
            (false, stream) => vec![calls(stream)],
            (true, true) => pieces(),
            (true, false) => vec![last()],
        };
        let odd = match (self.answer, is_last) {
            (Answer::Calls, false) => Some(0),
            (Answer::Last(piece), true) => Some(piece),
            _ => None,
        };
        let texts = messages.iter().enumerate().map(|(at, message)| match odd == Some(at) {
            true => self.change.apply(message),
            false => message.to_string(),
        });
        if !self.stream {
            return Reply::text(200, texts.collect::<String>());
        }
        let done = "[DONE]".to_owned();
        let events: Vec<String> = texts.chain([done]).map(|text| format!("data: {text}\n\n")).collect();
        Reply::text(200, events.concat()).header("content-type", "text/event-stream")
    }

    /// Whether the node is the text of an answer, or the way to it, and takes the text with it.
    fn is_text(&self) -> bool {
        let part = if self.stream { "delta" } else { "message" };
        let is_gone = !matches!(self.change.oddity, Oddity::Huge | Oddity::Doubled);
        is_gone && self.change.leads_to(&["choices", "0", part, "content"])
    }

    fn keeps_answer(&self) -> bool {
        match self.answer {
            _ if self.change.is_harmless() => true,
            // What is made of broken calls is the agent's own matter; that it ends is checked.
            Answer::Calls => false,
            Answer::Last(_) => !self.is_text(),
        }
    }

    fn keeps_calls(&self) -> [bool; 2] {
        let part = if self.stream { "delta" } else { "message" };
        if self.answer != Answer::Calls || self.change.is_harmless() {
            return [true; 2];
        }
        let change = &self.change;
        let calls = ["choices", "0", part, "tool_calls"];
        match (change.is_within(&calls), change.path.get(4)) {
            // An argument that is huge, or an unknown item, may count for the list.
            (true, Some(Step::Index(call))) => [0, 1].map(|other| other != *call),
            (true, _) => [false; 2],
            // The way to the calls.
            (false, _) if change.leads_to(&calls) => [false; 2],
            (false, _) => [true; 2],
        }
    }
}

fn envelope(kind: &str, choices: &Value) -> Value {
    json!({
        "id": "chatcmpl-1", "object": kind, "created": 1_700_000_000, "model": "odd", "choices": choices,
        "usage": {
            "prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15,
            "prompt_tokens_details": {"cached_tokens": 2}, "completion_tokens_details": {"reasoning_tokens": 1},
        },
        "system_fingerprint": "fp", "service_tier": "default",
    })
}

fn calls(stream: bool) -> Value {
    let call = |(number, (expression, _)): (usize, &(&str, &str))| {
        let arguments = json!({"expression": expression}).to_string();
        let function = json!({"name": "calc__evaluate", "arguments": arguments});
        json!({"index": number, "id": format!("call-{number}"), "type": "function", "function": function})
    };
    let calls: Vec<Value> = CALLS.iter().enumerate().map(call).collect();
    let message = json!({
        "role": "assistant", "content": null, "refusal": null, "reasoning_content": "Two calls.", "tool_calls": calls,
    });
    let (part, kind) =
        if stream { ("delta", "chat.completion.chunk") } else { ("message", "chat.completion") };
    envelope(kind, &json!([{"index": 0, part: message, "logprobs": null, "finish_reason": "tool_calls"}]))
}

fn last() -> Value {
    let message = json!({
        "role": "assistant", "content": ANSWER, "refusal": null, "annotations": [], "audio": null,
        "reasoning_content": "It is known.", "tool_calls": [],
    });
    let choice = json!({"index": 0, "message": message, "logprobs": null, "finish_reason": "stop"});
    envelope("chat.completion", &json!([choice]))
}

/// The last answer as a stream: its beginning, its text, its end.
fn pieces() -> Vec<Value> {
    let piece = |delta: Value, finish: Value| {
        let choice = json!({"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish});
        envelope("chat.completion.chunk", &json!([choice]))
    };
    vec![
        piece(json!({"role": "assistant", "content": "", "reasoning_content": "It is known."}), Value::Null),
        piece(json!({"content": ANSWER, "tool_calls": null}), Value::Null),
        piece(json!({}), json!("stop")),
    ]
}
