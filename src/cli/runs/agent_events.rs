//! Events of agents as they happen: `run --events` writes them as lines of JSON, and a terminal shows a single task.
//!
//! Both on a thread of its own: a slow reader blocks only this thread.

use std::{
    collections::HashMap,
    fs::OpenOptions,
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    sync::Arc,
    time::Duration,
};

use tokio::{runtime::Handle, sync::oneshot};
use toolcrib::{
    CancellationToken, Error,
    config::Secrets,
    recording::{DroppedEvents, Feed, FeedEvent, LiveEvent, LiveEvents},
};

use super::single_task::Shown;
use crate::cli::terminal::{output, stdout, ui::Ui};

/// Events that are kept for a slow reader, in bytes.
const ROOM: usize = 16 << 20;

/// How long a reader may still take after Ctrl-C.
const GRACE: Duration = Duration::from_secs(1);

/// The path that stands for stdout.
const STDOUT: &str = "-";

/// Whether that is where the events go.
pub(crate) fn is_stdout(path: Option<&Path>) -> bool {
    path == Some(Path::new(STDOUT))
}

/// Where events go.
pub(crate) enum Sink {
    Lines(Box<dyn Write + Send>),
    Shown(Shown),
}

impl Sink {
    /// Lines into a file, or to stdout.
    pub(crate) fn lines(path: &Path) -> Result<Self, Error> {
        if is_stdout(Some(path)) {
            return Ok(Self::Lines(Box::new(io::stdout())));
        }
        let opened = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(path);
        let file =
            opened.map_err(|error| Error::io(format!("cannot write events to {}", path.display()), error))?;
        Ok(Self::Lines(Box::new(file)))
    }
}

/// A thread that empties a feed.
pub(crate) struct Reading(oneshot::Receiver<io::Result<()>>);

impl Reading {
    /// A feed, and who reads it.
    pub(crate) fn start(sink: Sink, secrets: Secrets) -> Result<(Feed, Self), Error> {
        let (feed, events) = Feed::open(ROOM);
        let (done, finished) = oneshot::channel();
        let runtime = Handle::current();
        let read = move || {
            let outcome = runtime.block_on(async {
                match sink {
                    Sink::Lines(output) => write(events, output, secrets).await,
                    Sink::Shown(shown) => shown.follow(events, &secrets).await,
                }
            });
            // The run may have ended without waiting.
            let _ = done.send(outcome);
        };
        let thread = std::thread::Builder::new().name("events".to_owned()).spawn(read);
        thread.map_err(|error| Error::io("cannot start a thread", error))?;
        Ok((feed, Self(finished)))
    }

    /// Waits until all was read: every feed is gone. After Ctrl-C not for long.
    pub(crate) async fn finish(self, ui: &Ui, cancel: &CancellationToken) {
        let late = async {
            cancel.cancelled().await;
            tokio::time::sleep(GRACE).await;
        };
        tokio::select! {
            outcome = self.0 => match outcome {
                // Who reads has had enough.
                Ok(Err(error)) if error.kind() == io::ErrorKind::BrokenPipe => {}
                Ok(Err(error)) => stdout::keep("not all events were written", &error),
                _ => {}
            },
            () = late => ui.warn("not all events were written: the reader did not read them"),
        }
    }
}

async fn write(mut events: LiveEvents, mut output: impl Write, secrets: Secrets) -> io::Result<()> {
    let mut lines = Lines { secrets, open: HashMap::new(), missed: DroppedEvents::default() };
    while let Some(live) = events.next().await {
        for live in lines.of(live) {
            let line = serde_json::to_string(&live)?;
            output.write_all((output::json(lines.secrets.hide_json(line)) + "\n").as_bytes())?;
        }
        output.flush()?;
    }
    Ok(())
}

/// Events as they may be shown: a secret may come in two pieces, and then neither can be known by itself.
struct Lines {
    secrets: Secrets,
    /// Requests under way of which no piece was missed: by task and agent, what is held back.
    open: HashMap<(Arc<str>, Arc<str>), HeldText>,
    /// Not shown yet.
    missed: DroppedEvents,
}

#[derive(Default)]
struct HeldText {
    text: String,
    thinking: String,
}

impl Lines {
    fn of(&mut self, mut live: FeedEvent) -> Vec<FeedEvent> {
        if live.missed.pieces > 0 {
            // What comes after the gap may be the second half of something.
            self.open.clear();
        }
        self.missed.pieces += live.missed.pieces;
        self.missed.events += live.missed.events;
        let whose = (Arc::clone(&live.task), Arc::clone(&live.agent));
        let mut lines = Vec::new();
        match &mut live.event {
            LiveEvent::ModelStarted { .. } => {
                self.open.insert(whose, HeldText::default());
            }
            LiveEvent::Restarted { .. } => {
                self.open.entry(whose).and_modify(|held| *held = HeldText::default());
            }
            event @ (LiveEvent::Text { .. } | LiveEvent::Thinking { .. }) => {
                let Some(held) = self.open.get_mut(&whose) else {
                    self.missed.pieces += 1;
                    return lines;
                };
                let (held, piece) = match event {
                    LiveEvent::Thinking { text, .. } => (&mut held.thinking, text),
                    LiveEvent::Text { text, .. } => (&mut held.text, text),
                    _ => return lines,
                };
                held.push_str(piece);
                let rest = held.split_off(self.secrets.settled(held));
                *piece = self.secrets.hide(&std::mem::replace(held, rest));
                if piece.is_empty() {
                    return lines;
                }
            }
            LiveEvent::ModelEnded { turn, .. } => {
                let turn = *turn;
                let HeldText { text, thinking } = self.open.remove(&whose).unwrap_or_default();
                if !thinking.is_empty() {
                    let event = LiveEvent::Thinking { turn, text: self.secrets.hide(&thinking) };
                    lines.push(with(&live, event));
                }
                if !text.is_empty() {
                    let event = LiveEvent::Text { turn, text: self.secrets.hide(&text) };
                    lines.push(with(&live, event));
                }
            }
            _ => {}
        }
        lines.push(live);
        for line in &mut lines {
            line.missed = std::mem::take(&mut self.missed);
        }
        lines
    }
}

/// Another event of the same agent at the same moment.
fn with(live: &FeedEvent, event: LiveEvent) -> FeedEvent {
    let mut other = live.clone();
    other.event = event;
    other
}
