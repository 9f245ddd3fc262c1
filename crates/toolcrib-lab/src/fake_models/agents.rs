//! A model server on the loopback interface, in a thread of its own: answers take as long as was dealt to them, or
//! as long as an engine takes that works on all of them at once. Counts what really arrives.

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    sync::{mpsc, oneshot},
    task::JoinSet,
};

use super::{Loopback, request};

/// Tokens of every answer of the engine, and the time from one to the next when it has a single request: half a
/// second for an answer.
const TOKENS: u32 = 32;
const STEP: Duration = Duration::from_micros(15_625);
/// What every further request adds to a step: with four of them an answer takes 1.5 times as long, as the project
/// that this copies says of its engine.
const EACH: f64 = 0.5 / 3.0;

/// How long answers take.
pub enum Service {
    /// As dealt: by step, then by agent.
    Dealt(Vec<Vec<Duration>>),
    /// Each token of all running requests in one go, which takes longer the more there are.
    Engine,
}

/// Ends with its owner.
pub struct Model {
    server: Loopback,
    seen: Arc<Mutex<Seen>>,
}

/// What arrived since the last [`Model::begin`].
#[derive(Default)]
pub struct Seen {
    service: Option<Service>,
    /// Prompts by step and agent.
    pub prompts: BTreeMap<(usize, usize), usize>,
    /// Requests, each with one prompt or several.
    pub requests: usize,
    /// Connections that were opened.
    pub connections: usize,
    in_flight: usize,
    /// Most requests in flight at once.
    pub peak: usize,
    /// How many were in flight from each moment on.
    pub changes: Vec<(Instant, usize)>,
}

impl Seen {
    fn change(&mut self, in_flight: usize) {
        self.in_flight = in_flight;
        self.peak = self.peak.max(in_flight);
        self.changes.push((Instant::now(), in_flight));
    }
}

impl Model {
    /// Serves on a free port.
    ///
    /// # Errors
    /// There is no port, or no thread.
    pub fn start() -> io::Result<Self> {
        let seen = Arc::<Mutex<Seen>>::default();
        let shared = Arc::clone(&seen);
        Ok(Self { server: Loopback::start(move |listener| serve(listener, shared))?, seen })
    }

    /// The address, up to and including `/v1`.
    pub fn url(&self) -> &str {
        &self.server.url
    }

    /// Forgets what it saw; answers take this long from now on.
    pub fn begin(&self, service: Service) {
        *lock(&self.seen) = Seen { service: Some(service), ..Seen::default() };
    }

    /// What it saw.
    pub fn seen(&self) -> Seen {
        std::mem::take(&mut *lock(&self.seen))
    }
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn serve(listener: TcpListener, seen: Arc<Mutex<Seen>>) {
    let (engine, work) = mpsc::unbounded_channel();
    let mut tasks = JoinSet::new();
    tasks.spawn(run_engine(work));
    // Only out of descriptors does accepting fail, and then the callers are told so by their own sockets.
    while let Ok((socket, _)) = listener.accept().await {
        lock(&seen).connections += 1;
        let _ = socket.set_nodelay(true);
        let (seen, engine) = (Arc::clone(&seen), engine.clone());
        tasks.spawn(async move {
            // An error here is a caller that hung up.
            let _ = answer_all(socket, &seen, &engine).await;
        });
        while tasks.try_join_next().is_some() {}
    }
}

type Engine = mpsc::UnboundedSender<oneshot::Sender<()>>;

/// The requests of one connection, one after the other.
async fn answer_all(socket: TcpStream, seen: &Mutex<Seen>, engine: &Engine) -> io::Result<()> {
    let mut socket = BufReader::new(socket);
    while let Some(body) = request(&mut socket).await? {
        let body: Value = serde_json::from_slice(&body)?;
        let asked = prompts(&body).ok_or(io::ErrorKind::InvalidData)?;
        // A request with several prompts takes as long as the slowest of them.
        let dealt = {
            let mut seen = lock(seen);
            for prompt in &asked {
                *seen.prompts.entry(*prompt).or_default() += 1;
            }
            seen.requests += 1;
            let now = seen.in_flight + 1;
            seen.change(now);
            let time = |(step, agent): &(usize, usize)| match &seen.service {
                Some(Service::Dealt(times)) => times.get(*step).and_then(|times| times.get(*agent)).copied(),
                Some(Service::Engine) | None => None,
            };
            asked.iter().filter_map(time).max()
        };
        match dealt {
            Some(time) => tokio::time::sleep(time).await,
            None => {
                // All of them go to the engine together, which runs them side by side.
                let (sent, waits): (Vec<_>, Vec<_>) = asked.iter().map(|_| oneshot::channel()).unzip();
                let _ = sent.into_iter().try_for_each(|done| engine.send(done));
                for wait in waits {
                    let _ = wait.await;
                }
            }
        }
        {
            let mut seen = lock(seen);
            let now = seen.in_flight.saturating_sub(1);
            seen.change(now);
        }
        let choice = |(index, (_, agent)): (usize, &(usize, usize))| {
            let text = agent.to_string();
            json!({"index": index, "finish_reason": "stop", "text": text,
                "message": {"role": "assistant", "content": text}})
        };
        let choices: Vec<Value> = asked.iter().enumerate().map(choice).collect();
        let usage =
            json!({"prompt_tokens": 8 * asked.len(), "completion_tokens": TOKENS as usize * asked.len()});
        let answer = json!({"model": "loopback", "choices": choices, "usage": usage}).to_string();
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length:";
        socket.write_all(format!("{head} {}\r\n\r\n{answer}", answer.len()).as_bytes()).await?;
    }
    Ok(())
}

/// The question of an agent, and what it is read from again.
pub fn question(step: usize, agent: usize) -> String {
    format!("step {step} agent {agent}")
}

/// Step and agent of each prompt: of a conversation the one message, otherwise one text or several.
fn prompts(body: &Value) -> Option<Vec<(usize, usize)>> {
    match body.get("prompt").or_else(|| body.pointer("/messages/0/content"))? {
        Value::Array(prompts) => prompts.iter().map(|prompt| numbers(prompt.as_str()?)).collect(),
        prompt => Some(vec![numbers(prompt.as_str()?)?]),
    }
}

fn numbers(question: &str) -> Option<(usize, usize)> {
    let (step, agent) = question.strip_prefix("step ")?.split_once(" agent ")?;
    Some((step.parse().ok()?, agent.parse().ok()?))
}

/// Continuous batching: whoever comes joins at the next token, and leaves when its own are done.
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
