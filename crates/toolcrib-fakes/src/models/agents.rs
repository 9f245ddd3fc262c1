//! The model server of the agent benchmark: answers take a fixed time, or the time of an engine that works on all of
//! them at once.

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

use super::{Reply, Server};

/// Tokens of every answer of the engine, and the time from one to the next when it has a single request: half a
/// second for an answer.
const TOKENS: u32 = 32;
const STEP: Duration = Duration::from_micros(15_625);
/// The part of a step that every further request adds to it: with four of them an answer takes 1.5 times as long, as the
/// project that this copies says of its engine.
const EACH: f64 = 0.5 / 3.0;

/// How long answers take.
pub enum Service {
    /// Times as dealt: by step, then by agent.
    Dealt(Vec<Vec<Duration>>),
    /// Each token of all running requests in one go, which takes longer the more there are.
    Engine,
}

type Prompts = Arc<Mutex<BTreeMap<(usize, usize), usize>>>;

/// A server for one crew of agents. Ends with its owner.
pub struct Model {
    server: Server,
    prompts: Prompts,
}

/// Requests and connections that arrived.
pub struct Seen {
    /// Prompts by step and agent.
    pub prompts: BTreeMap<(usize, usize), usize>,
    /// Requests, each with one prompt or several.
    pub requests: usize,
    /// Connections that were opened.
    pub connections: usize,
    /// Most requests in flight at once.
    pub peak: usize,
    /// How many were in flight from each moment on.
    pub changes: Vec<(Instant, usize)>,
}

impl Model {
    /// Serves on a free port.
    ///
    /// # Errors
    /// There is no port, or no thread.
    pub fn start(service: Service) -> io::Result<Self> {
        let prompts = Prompts::default();
        let (counted, (engine, work)) = (Arc::clone(&prompts), mpsc::unbounded_channel());
        let scene = move |body: &Value| {
            let Some(asked) = read(body) else { return Reply::error(400, "not a question of an agent") };
            for prompt in &asked {
                *lock(&counted).entry(*prompt).or_default() += 1;
            }
            let reply = Reply::json(200, &answer(&asked));
            let time = |(step, agent): &(usize, usize)| match &service {
                Service::Dealt(times) => times.get(*step).and_then(|times| times.get(*agent)).copied(),
                Service::Engine => None,
            };
            // A request with several prompts takes as long as the slowest of them.
            if let Some(time) = asked.iter().filter_map(time).max() {
                return reply.after(time);
            }
            // All of them go to the engine together, which runs them side by side.
            let (sent, waits): (Vec<_>, Vec<_>) = asked.iter().map(|_| oneshot::channel()).unzip();
            let _ = sent.into_iter().try_for_each(|done| engine.send(done));
            reply.once(async {
                for wait in waits {
                    let _ = wait.await;
                }
            })
        };
        let server = Server::start_beside(move |arrival| scene(&arrival.body), run_engine(work))?;
        Ok(Self { server, prompts })
    }

    /// The address, up to and including `/v1`.
    pub fn url(&self) -> &str {
        self.server.url()
    }

    /// Requests and connections that the model has seen so far.
    pub fn seen(&self) -> Seen {
        let seen = self.server.seen();
        Seen {
            prompts: lock(&self.prompts).clone(),
            requests: seen.requests.len(),
            connections: seen.connections,
            peak: seen.peak,
            changes: seen.changes,
        }
    }
}

fn lock(prompts: &Prompts) -> std::sync::MutexGuard<'_, BTreeMap<(usize, usize), usize>> {
    prompts.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The number of each agent, in both formats.
fn answer(asked: &[(usize, usize)]) -> Value {
    let choice = |(index, (_, agent)): (usize, &(usize, usize))| {
        let text = agent.to_string();
        json!({"index": index, "finish_reason": "stop", "text": text,
            "message": {"role": "assistant", "content": text}})
    };
    let choices: Vec<Value> = asked.iter().enumerate().map(choice).collect();
    let usage = json!({"prompt_tokens": 8 * asked.len(), "completion_tokens": TOKENS as usize * asked.len()});
    json!({"model": "loopback", "choices": choices, "usage": usage})
}

/// The question of an agent, and what it is read from again.
pub fn question(step: usize, agent: usize) -> String {
    format!("step {step} agent {agent}")
}

/// Step and agent of each prompt: the message of a chat request, or the texts of a completion request.
fn read(body: &Value) -> Option<Vec<(usize, usize)>> {
    match body.get("prompt").or_else(|| body.pointer("/messages/0/content"))? {
        Value::Array(prompts) => prompts.iter().map(|prompt| numbers(prompt.as_str()?)).collect(),
        prompt => Some(vec![numbers(prompt.as_str()?)?]),
    }
}

fn numbers(question: &str) -> Option<(usize, usize)> {
    let (step, agent) = question.strip_prefix("step ")?.split_once(" agent ")?;
    Some((step.parse().ok()?, agent.parse().ok()?))
}

/// Continuous batching: a request joins at the next token, and leaves when its own tokens are done.
async fn run_engine(mut work: mpsc::UnboundedReceiver<oneshot::Sender<()>>) {
    let mut running: Vec<(u32, oneshot::Sender<()>)> = Vec::new();
    let mut at = tokio::time::Instant::now();
    loop {
        if running.is_empty() {
            let Some(next) = work.recv().await else { return };
            running.push((TOKENS, next));
            at = tokio::time::Instant::now();
        }
        while let Ok(next) = work.try_recv() {
            running.push((TOKENS, next));
        }
        // From one moment to the next, so that what a late timer costs does not add up.
        at += STEP.mul_f64(1.0 + EACH * (running.len() - 1) as f64);
        tokio::time::sleep_until(at).await;
        for (left, _) in &mut running {
            *left -= 1;
        }
        for (_, done) in running.extract_if(.., |(left, _)| *left == 0) {
            let _ = done.send(());
        }
    }
}
