//! A tap on one agent of one task: its model and tool traffic goes by here to the journal, to a cassette and to
//! watchers, or comes from a cassette.
//!
//! A model client and a toolbox carry it for the agent, which itself only reports its decisions to it.

mod span;

use std::{
    any::Any,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Instant,
};

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::{
    cassette::{Kind, Pending, Player, Recorder, Replayed, Whose},
    error::Result,
    journal::{Brief, Event, EventLog, nanos},
    live::{Feed, LiveEvent},
    task::RunReport,
};

/// Where traffic is kept, or comes from.
#[derive(Clone, Debug)]
pub enum Tape {
    /// Answers are written down.
    Record(Recorder),
    /// Answers are read; nobody else is asked.
    Replay(Player),
}

/// What listens to one agent of a task. Clones are the same tap.
#[derive(Clone, Debug)]
pub struct Tap(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    whose: Whose,
    began: Instant,
    events: Option<EventLog>,
    tape: Option<Tape>,
    /// Set before the agent begins, if at all.
    watched: OnceLock<Watched>,
    questions: AtomicU32,
    readings: AtomicU32,
    turns: AtomicU32,
    calls: AtomicU32,
    // Std mutex: held for a comparison. Hashes of the messages that the model was asked with last.
    messages: Mutex<Vec<u64>>,
    // Std mutex: held for one digest. The list that was digested last, kept so that no other takes its address.
    digested: Mutex<Option<(Box<dyn Any + Send + Sync>, String)>>,
}

/// A feed, and whose events these are.
#[derive(Debug)]
struct Watched {
    feed: Feed,
    task: Arc<str>,
    agent: Arc<str>,
}

impl Inner {
    fn new(whose: Whose, events: Option<EventLog>, tape: Option<Tape>) -> Self {
        Self {
            whose,
            began: Instant::now(),
            events,
            tape,
            watched: OnceLock::new(),
            questions: AtomicU32::new(0),
            readings: AtomicU32::new(0),
            turns: AtomicU32::new(0),
            calls: AtomicU32::new(0),
            messages: Mutex::default(),
            digested: Mutex::default(),
        }
    }
}

/// Who answers.
pub(crate) enum Answerer {
    /// The world; the cassette is told of it, if there is one.
    World(Option<Pending>),
    /// The cassette.
    Tape(Value),
}

impl Tap {
    /// A tap on the agent of a task, whose beginning it notes.
    pub fn new(task: &str, attempt: u32, events: Option<EventLog>, tape: Option<Tape>) -> Self {
        let whose = Whose { task: task.to_owned(), attempt, agent: "main".to_owned() };
        if let Some(events) = &events {
            events.write(Event::TaskStarted { task: task.to_owned(), attempt });
        }
        Self(Arc::new(Inner::new(whose, events, tape)))
    }

    /// A tap on another agent of the same task, whose name tells it from all others.
    pub(crate) fn delegate(&self, name: &str) -> Self {
        let Inner { whose, events, tape, .. } = &*self.0;
        let agent = format!("{}/{name}", whose.agent);
        let tap = Self(Arc::new(Inner::new(Whose { agent, ..whose.clone() }, events.clone(), tape.clone())));
        if let Some(watched) = self.0.watched.get() {
            tap.watch(&watched.feed);
        }
        tap
    }

    /// What goes by is told to `feed` too, and by the agents that this one calls. The first feed stays.
    pub(crate) fn watch(&self, feed: &Feed) {
        let Whose { task, agent, .. } = &self.0.whose;
        self.0.watched.get_or_init(|| Watched {
            feed: feed.clone(),
            task: task.as_str().into(),
            agent: agent.as_str().into(),
        });
    }

    /// Whether somebody watches.
    pub(crate) fn is_watched(&self) -> bool {
        self.0.watched.get().is_some_and(|watched| watched.feed.is_heard())
    }

    /// Sends an event to watchers.
    fn tell(&self, event: impl FnOnce() -> LiveEvent) {
        if let Some(Watched { feed, task, agent }) = self.0.watched.get()
            && feed.is_heard()
        {
            feed.tell(task, agent, event());
        }
    }

    /// Notes the end of the task. `whole`: it was not ended from outside, so that a replay must have asked for all
    /// that was recorded.
    pub fn ended(&self, report: &RunReport, whole: bool) {
        let Whose { task, attempt, .. } = &self.0.whose;
        if let (Some(Tape::Replay(player)), true) = (&self.0.tape, whole) {
            player.finished(task, *attempt);
        }
        if let Some(events) = &self.0.events {
            events.write(Event::TaskEnded {
                task: task.clone(),
                attempt: (*attempt).max(report.attempt),
                status: report.status,
                took_ns: nanos(self.0.began.elapsed()),
                error: report.error.as_ref().map(|error| events.brief(&error.code, &error.message)),
            });
        }
    }

    pub(crate) fn has_tape(&self) -> bool {
        self.0.tape.is_some()
    }

    pub(crate) fn is_replay(&self) -> bool {
        matches!(self.0.tape, Some(Tape::Replay(_)))
    }

    /// Who answers a question. `request` is only made where it is kept or compared.
    pub(crate) async fn ask(&self, kind: Kind, request: impl FnOnce() -> Value) -> Result<Answerer> {
        let Inner { whose, began, tape, questions, .. } = &*self.0;
        let (recorder, player) = match tape {
            None => return Ok(Answerer::World(None)),
            Some(Tape::Record(recorder)) => (Some(recorder), None),
            Some(Tape::Replay(player)) => (None, Some(player)),
        };
        let n = questions.fetch_add(1, Relaxed) + 1;
        let request = request();
        if let Some(recorder) = recorder {
            return Ok(Answerer::World(Some(recorder.ask(whose.clone(), n, kind, request, *began))));
        }
        let Some(player) = player else { return Ok(Answerer::World(None)) };
        match player.ask(whose, kind, request, *began)? {
            Replayed::Answer(answer) => Ok(Answerer::Tape(answer)),
            Replayed::Silence(time) => {
                tokio::time::sleep(time).await;
                Err(player.silent(whose))
            }
        }
    }

    /// The messages that are new since the model was last asked, after so many that are the same.
    pub(crate) fn new_messages<'a>(&self, messages: &'a [Value]) -> (usize, &'a [Value]) {
        let hashes: Vec<u64> = messages
            .iter()
            .map(|message| {
                let mut hasher = DefaultHasher::new();
                message.to_string().hash(&mut hasher);
                hasher.finish()
            })
            .collect();
        let mut last = self.0.messages.lock().unwrap_or_else(PoisonError::into_inner);
        let same = last.iter().zip(&hashes).take_while(|(a, b)| a == b).count();
        *last = hashes;
        (same, &messages[same..])
    }

    /// A short name for a value, the same wherever it is the same with its secrets hidden.
    pub(crate) fn digest(&self, mut value: Value) -> String {
        match &self.0.tape {
            Some(Tape::Record(recorder)) => recorder.secrets().hide_in(&mut value),
            Some(Tape::Replay(player)) => player.secrets().hide_in(&mut value),
            None => {}
        }
        let digest = Sha256::digest(value.to_string().as_bytes());
        digest.iter().take(8).fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
    }

    /// The digest of what `value` makes of a list. It is made once for the same list time after time: of many tools
    /// it takes longer than all else that is recorded of a turn.
    pub(crate) fn digest_of<T: Send + Sync + 'static>(
        &self,
        list: &Arc<[T]>,
        value: impl FnOnce() -> Value,
    ) -> String {
        let mut digested = self.0.digested.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((last, digest)) = &*digested
            && last.downcast_ref::<Arc<[T]>>().is_some_and(|last| Arc::ptr_eq(last, list))
        {
            return digest.clone();
        }
        let digest = self.digest(value());
        *digested = Some((Box::new(list.clone()), digest.clone()));
        digest
    }

    /// The number of this look at the tools.
    pub(crate) fn reading(&self) -> u32 {
        self.0.readings.fetch_add(1, Relaxed) + 1
    }

    /// At reading `n` the agent saw other tools than before.
    pub(crate) fn saw(&self, n: u32, servers: Value) {
        if let Some(Tape::Record(recorder)) = &self.0.tape {
            let id = self.digest(servers.clone());
            recorder.saw(self.0.whose.clone(), n, id, servers);
        }
    }

    /// The tools that were seen at reading `n` of the recording, and their id; only the id if it is `known`.
    pub(crate) fn recorded_tools(&self, n: u32, known: &str) -> Option<(String, Option<Value>)> {
        match &self.0.tape {
            Some(Tape::Replay(player)) => player.tools(&self.0.whose, n, known),
            _ => None,
        }
    }

    /// An error as the journal tells of it; `None` where there is none.
    pub(crate) fn brief(&self, code: &(impl ToString + ?Sized), message: &str) -> Option<Brief> {
        self.0.events.as_ref().map(|events| events.brief(code, message))
    }

    fn write(&self, event: impl FnOnce() -> Event) {
        if let Some(events) = &self.0.events {
            events.write(event());
        }
    }
}
