//! The channel: agents write without waiting, one reader reads, and its size is limited in bytes.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Instant,
};

use tokio::sync::Notify;

use super::{DroppedEvents, FeedEvent, LiveEvent, Rank};
use crate::duration::nanos;

/// Sender of the events of agents. Clones are the same feed; the stream ends when the last one is gone, and with it every
/// [`Agent`](crate::Agent) that holds one.
///
/// Writing costs one push under a lock that is never held for longer, and nothing once the reader is gone. A reader
/// that is slow, or never reads, delays no agent: what the feed holds is limited, and what does not fit makes room.
/// First go the oldest pieces of answers, then the oldest other events, the ends of tasks last. The next event that is
/// read says how many of each are [missing](FeedEvent::missed).
///
/// # Example
/// ```
/// # mod toolcrib { pub use {toolcrib_core::*, toolcrib_net::*, toolcrib_servers::*, toolcrib_models::*, toolcrib_runs::*}; }
/// use toolcrib::{Agent, LlmClient, Task, Toolbox, config::AgentConfig, recording::{Feed, LiveEvent}};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> toolcrib::Result<()> {
/// let llm = LlmClient::script_text("doc", "[[steps]]\nsay = \"It is noon.\"\n")?;
/// let (feed, mut events) = Feed::open(1 << 20);
/// let agent = Agent::new(llm, Toolbox::default(), AgentConfig::default()).watched(feed);
/// let task = Task::question("a", "What time is it?");
/// // The agent goes with its run: that ends the stream.
/// let work = async move { agent.run(&task).await };
/// let watch = async {
///     while let Some(live) = events.next().await {
///         match live.event {
///             LiveEvent::Text { text, .. } => print!("{text}"),
///             LiveEvent::CallStarted { server, tool, .. } => println!("calls {server}.{tool}"),
///             LiveEvent::TaskEnded { answer, error, .. } => println!("{answer:?} {error:?}"),
///             _ => {}
///         }
///     }
/// };
/// let (report, ()) = tokio::join!(work, watch);
/// assert_eq!(report.answer.as_deref(), Some("It is noon."));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Feed(Arc<Open>);

/// The reading end of a [`Feed`]. Dropping it stops no agent, and later events are discarded: to end what is watched,
/// cancel the token that it runs under.
#[derive(Debug)]
pub struct LiveEvents(Arc<FeedState>);

/// Dropped with the last feed.
#[derive(Debug)]
struct Open(Arc<FeedState>);

#[derive(Debug)]
struct FeedState {
    opened: Instant,
    /// Whether the reader is there.
    heard: AtomicBool,
    // Std mutex: held for a push or a pop.
    queue: Mutex<Queue>,
    more: Notify,
}

#[derive(Debug)]
struct Queue {
    /// Events by [`Rank`], each in order, each event with its place among all and its bytes.
    ranks: [VecDeque<(u64, usize, FeedEvent)>; 3],
    next: u64,
    bytes: usize,
    max_bytes: usize,
    missed: DroppedEvents,
    ended: bool,
}

impl Feed {
    /// A feed that holds this many bytes of unread events, and one event more if that is longer.
    pub fn open(max_bytes: usize) -> (Self, LiveEvents) {
        let shared = Arc::new(FeedState {
            opened: Instant::now(),
            heard: AtomicBool::new(true),
            queue: Mutex::new(Queue {
                ranks: Default::default(),
                next: 0,
                bytes: 0,
                max_bytes,
                missed: DroppedEvents::default(),
                ended: false,
            }),
            more: Notify::new(),
        });
        (Self(Arc::new(Open(Arc::clone(&shared)))), LiveEvents(shared))
    }

    /// Whether the reader still exists.
    pub(crate) fn has_reader(&self) -> bool {
        self.0.0.heard.load(Relaxed)
    }

    /// Tells what happened just now to `agent` in `task`.
    #[doc(hidden)]
    pub fn tell(&self, task: &Arc<str>, agent: &Arc<str>, event: LiveEvent) {
        let shared = &*self.0.0;
        if !self.has_reader() {
            return;
        }
        let (rank, weight) = (event.rank(), event.weight() + size_of::<(u64, usize, FeedEvent)>());
        let (task, agent) = (Arc::clone(task), Arc::clone(agent));
        let mut queue = shared.queue();
        // The clock is read under the lock: later events have later times.
        let ns = nanos(shared.opened.elapsed());
        queue.push(rank, weight, FeedEvent { ns, task, agent, missed: DroppedEvents::default(), event });
        drop(queue);
        shared.more.notify_one();
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.queue().ended = true;
        self.0.more.notify_one();
    }
}

impl LiveEvents {
    /// The next event; `None` once every [`Feed`] is gone and all was read. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<FeedEvent> {
        loop {
            {
                let mut queue = self.0.queue();
                if let Some(live) = queue.pop() {
                    return Some(live);
                }
                if queue.ended {
                    return None;
                }
            }
            self.0.more.notified().await;
        }
    }
}

impl Drop for LiveEvents {
    fn drop(&mut self) {
        self.0.heard.store(false, Relaxed);
        self.0.queue().ranks = Default::default();
    }
}

impl FeedState {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    fn push(&mut self, rank: Rank, weight: usize, live: FeedEvent) {
        self.bytes += weight;
        self.ranks[rank as usize].push_back((self.next, weight, live));
        self.next += 1;
        while self.bytes > self.max_bytes {
            // One that is longer than all the room is kept while it is alone, unless it is a piece.
            let alone = self.ranks.iter().map(VecDeque::len).sum::<usize>() == 1;
            if alone && rank != Rank::Piece {
                return;
            }
            let Some((first, weight)) = self.ranks.iter_mut().enumerate().find_map(|(rank, events)| {
                let (_, weight, _) = events.pop_front()?;
                Some((rank, weight))
            }) else {
                return;
            };
            self.bytes -= weight;
            match first {
                0 => self.missed.pieces += 1,
                _ => self.missed.events += 1,
            }
        }
    }

    /// The oldest event.
    fn pop(&mut self) -> Option<FeedEvent> {
        let place =
            |events: &&mut VecDeque<(u64, usize, FeedEvent)>| events.front().map(|(place, ..)| *place);
        let oldest = self.ranks.iter_mut().filter(|events| !events.is_empty()).min_by_key(place)?;
        let (_, weight, mut live) = oldest.pop_front()?;
        self.bytes -= weight;
        live.missed = std::mem::take(&mut self.missed);
        Some(live)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::Outcome;

    fn text(text: &str) -> LiveEvent {
        LiveEvent::Text { turn: 1, text: text.to_owned() }
    }

    fn started(messages: usize) -> LiveEvent {
        LiveEvent::ModelStarted { turn: 1, messages, bytes: 0 }
    }

    fn ended(answer: &str) -> LiveEvent {
        LiveEvent::TaskEnded {
            status: Outcome::Unscored,
            answer: Some(answer.to_owned()),
            error: None,
            took_ns: 0,
        }
    }

    fn tell(feed: &Feed, event: LiveEvent) {
        feed.tell(&"t".into(), &"main".into(), event);
    }

    /// All that can be read, in short, and the bytes that are left then.
    async fn all(feed: Feed, mut events: LiveEvents) -> (Vec<String>, usize) {
        drop(feed);
        let mut told = Vec::new();
        while let Some(live) = events.next().await {
            let DroppedEvents { pieces, events } = live.missed;
            let what = match live.event {
                LiveEvent::Text { text, .. } => text,
                LiveEvent::ModelStarted { messages, .. } => format!("asked {messages}"),
                LiveEvent::TaskEnded { answer, .. } => answer.unwrap(),
                other => panic!("{other:?}"),
            };
            told.push(if live.missed.is_nothing() { what } else { format!("{what} -{pieces} -{events}") });
        }
        let left = events.0.queue().bytes;
        (told, left)
    }

    const ROOM: usize = 3 * size_of::<(u64, usize, FeedEvent)>() + 100;

    #[tokio::test]
    async fn events_come_in_order_and_the_stream_ends_with_its_feed() {
        let (feed, events) = Feed::open(ROOM);
        let other = feed.clone();
        tell(&feed, started(1));
        tell(&other, text("a"));
        drop(other);
        tell(&feed, ended("b"));
        assert_eq!(all(feed, events).await, (vec!["asked 1".into(), "a".into(), "b".into()], 0));
    }

    #[tokio::test]
    async fn a_full_feed_drops_text_first_and_reports_the_gap() {
        let (feed, events) = Feed::open(ROOM);
        tell(&feed, started(1));
        for piece in ["a", "b", "c", "d"] {
            tell(&feed, text(piece));
        }
        let (told, left) = all(feed, events).await;
        assert_eq!((told, left), (vec!["asked 1 -2 -0".into(), "c".into(), "d".into()], 0));

        let (feed, events) = Feed::open(ROOM);
        tell(&feed, ended("one"));
        tell(&feed, text("a"));
        (1..=5).for_each(|n| tell(&feed, started(n)));
        tell(&feed, text("late"));
        let (told, _) = all(feed, events).await;
        assert_eq!(told, ["one -2 -3", "asked 4", "asked 5"]);
    }

    #[tokio::test]
    async fn feed_memory_is_bounded_and_the_last_end_is_kept() {
        let (feed, events) = Feed::open(ROOM);
        for n in 0..1000 {
            tell(&feed, text(&"x".repeat(1000)));
            tell(&feed, ended(&format!("{n}")));
        }
        assert!(events.0.queue().bytes <= ROOM);
        tell(&feed, ended(&"y".repeat(10_000)));
        let (told, left) = all(feed, events).await;
        assert_eq!((told, left), (vec![format!("{} -1000 -1000", "y".repeat(10_000))], 0));
    }

    #[tokio::test]
    async fn without_a_reader_no_event_is_kept() {
        let (feed, events) = Feed::open(ROOM);
        let shared = Arc::clone(&events.0);
        tell(&feed, started(1));
        drop(events);
        tell(&feed, started(2));
        assert!(!feed.has_reader() && shared.queue().ranks.iter().all(VecDeque::is_empty));
    }
}
