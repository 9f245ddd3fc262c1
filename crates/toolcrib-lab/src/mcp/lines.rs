//! A bare client over the stdin and stdout of a process.

use std::{
    collections::HashMap,
    path::Path,
    process::Stdio,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::Context as _;
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{Child, ChildStdin, ChildStdout, Command},
    sync::oneshot,
    task::JoinSet,
};

use super::{Answer, Era, INITIALIZED, Identity, Message, Request, nobody, sort};

/// Requests that wait for their answers, by id.
type Waiting = Arc<Mutex<HashMap<u64, oneshot::Sender<Answer>>>>;

pub(crate) struct LineClient {
    pub(crate) identity: Identity,
    /// Killed with this client.
    _child: Child,
    /// The task that reads, which ends with this client.
    _reading: JoinSet<()>,
    // Tokio's mutex: a line is written across an await.
    input: tokio::sync::Mutex<ChildStdin>,
    waiting: Waiting,
    next_id: AtomicU64,
}

impl LineClient {
    /// Starts `command` and opens a session, where the era has sessions.
    pub(crate) async fn open(command: &[String], folder: &Path, identity: Identity) -> anyhow::Result<Self> {
        let (program, words) = command.split_first().context("there is no command")?;
        let mut command = Command::new(program);
        command.args(words).current_dir(folder).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::null()).kill_on_drop(true).spawn()?;
        let input = tokio::sync::Mutex::new(child.stdin.take().context("no stdin")?);
        let output = child.stdout.take().context("no stdout")?;
        let waiting = Waiting::default();
        let mut reading = JoinSet::new();
        reading.spawn(read(output, waiting.clone()));
        let client =
            Self { identity, _child: child, _reading: reading, input, waiting, next_id: AtomicU64::new(1) };
        if client.identity.era == Era::Legacy {
            let answer = client.request(&client.identity.initialize()).await?;
            answer.map_err(|error| anyhow::anyhow!("initialize: {error}"))?;
            client.input.lock().await.write_all(format!("{INITIALIZED}\n").as_bytes()).await?;
        }
        Ok(client)
    }

    pub(crate) async fn request(&self, request: &Request) -> anyhow::Result<Answer> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(id, answer);
        let line = request.text(id) + "\n";
        self.input.lock().await.write_all(line.as_bytes()).await?;
        answered.await.with_context(|| format!("{}: the process has ended", request.method))
    }
}

/// Hands each answer to its request. What the server asks on its own stays without an answer.
async fn read(output: ChildStdout, waiting: Waiting) {
    let waiting = || waiting.lock().unwrap_or_else(PoisonError::into_inner);
    let mut lines = BufReader::new(output).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let Ok(message) = serde_json::from_str::<Value>(&line) else { continue };
        let id = message.get("id").and_then(Value::as_u64);
        if let Message::Answer(answer) = sort(message, None, &nobody)
            && let Some(sender) = id.and_then(|id| waiting().remove(&id))
        {
            // Who waits no more does not need it.
            let _ = sender.send(answer);
        }
    }
    // Who still waits hears that there is no answer.
    waiting().clear();
}
