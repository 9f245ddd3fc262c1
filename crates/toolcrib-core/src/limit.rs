//! A named concurrency limit that reports its waiting callers. Without a limit it still counts.

mod connections;
mod rate;

pub use connections::possible_connections;
pub use rate::Rate;

use std::{
    num::NonZeroUsize,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

/// A limit of how many are under way at once; further ones queue in order. Clones share the count.
#[derive(Debug, Clone)]
pub struct Limit(Arc<LimitState>);

#[derive(Debug)]
struct LimitState {
    name: String,
    max: Option<NonZeroUsize>,
    semaphore: Option<Arc<Semaphore>>,
    in_flight: AtomicUsize,
    peak: AtomicUsize,
    waiting: AtomicUsize,
    acquired: AtomicU64,
    queued_nanos: AtomicU64,
}

/// A place under the limit, given back on drop.
#[derive(Debug)]
#[must_use = "the place is given back when this is dropped"]
pub struct Permit {
    limit: Limit,
    _place: Option<OwnedSemaphorePermit>,
}

/// Counts of a limit so far.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimitStats {
    /// Name of the limited thing.
    pub name: String,
    /// The limit, if there is one.
    pub max: Option<NonZeroUsize>,
    /// Places taken now.
    pub in_flight: usize,
    /// Most places taken at once.
    pub peak: usize,
    /// Waiting for a place now.
    pub waiting: usize,
    /// Places given so far.
    pub acquired: u64,
    /// Time spent waiting for them, all together.
    pub queued: Duration,
}

impl Limit {
    /// A limit; with `None` no caller waits.
    pub fn new(name: impl Into<String>, max: Option<NonZeroUsize>) -> Self {
        // Tokio's ceiling is far above any number of things that exist.
        let places = max.map(|max| max.get().min(Semaphore::MAX_PERMITS));
        Self(Arc::new(LimitState {
            name: name.into(),
            max,
            semaphore: places.map(|places| Arc::new(Semaphore::new(places))),
            in_flight: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            acquired: AtomicU64::new(0),
            queued_nanos: AtomicU64::new(0),
        }))
    }

    /// Waits for a place. Dropping the future leaves the queue.
    pub async fn acquire(&self) -> Permit {
        let inner = &self.0;
        let mut queued = Duration::ZERO;
        let mut place = None;
        if let Some(semaphore) = &inner.semaphore {
            if let Ok(free) = Arc::clone(semaphore).try_acquire_owned() {
                place = Some(free);
            } else {
                let _waiting = Waiting::enter(&inner.waiting);
                let start = Instant::now();
                // The semaphore is never closed, so this is never an error.
                place = Arc::clone(semaphore).acquire_owned().await.ok();
                queued = start.elapsed();
            }
        }
        let now = inner.in_flight.fetch_add(1, Relaxed) + 1;
        inner.peak.fetch_max(now, Relaxed);
        inner.acquired.fetch_add(1, Relaxed);
        inner.queued_nanos.fetch_add(u64::try_from(queued.as_nanos()).unwrap_or(u64::MAX), Relaxed);
        Permit { limit: self.clone(), _place: place }
    }

    /// Counts so far.
    pub fn stats(&self) -> LimitStats {
        let inner = &self.0;
        LimitStats {
            name: inner.name.clone(),
            max: inner.max,
            in_flight: inner.in_flight.load(Relaxed),
            peak: inner.peak.load(Relaxed),
            waiting: inner.waiting.load(Relaxed),
            acquired: inner.acquired.load(Relaxed),
            queued: Duration::from_nanos(inner.queued_nanos.load(Relaxed)),
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.limit.0.in_flight.fetch_sub(1, Relaxed);
    }
}

/// Counts one waiter, also when its future is dropped half way.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn enter(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Relaxed);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn queueing_is_counted() {
        let limit = Limit::new("model", NonZeroUsize::new(2));
        let first = limit.acquire().await;
        let _second = limit.acquire().await;
        assert_eq!(limit.stats().queued, Duration::ZERO);
        let free = async {
            tokio::time::sleep(Duration::from_secs(3)).await;
            let stats = limit.stats();
            assert_eq!((stats.in_flight, stats.waiting, stats.acquired), (2, 1, 2));
            drop(first);
        };
        let (third, ()) = tokio::join!(limit.acquire(), free);
        drop(third);
        let stats = limit.stats();
        assert_eq!((stats.in_flight, stats.peak, stats.waiting), (1, 2, 0));
        assert!(stats.queued >= Duration::from_secs(3));
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_waiter_leaves_the_queue() {
        let limit = Limit::new("model", NonZeroUsize::new(1));
        let held = limit.acquire().await;
        let second = tokio::time::timeout(Duration::from_secs(1), limit.acquire()).await;
        assert!(second.is_err());
        drop(held);
        let stats = limit.stats();
        assert_eq!((stats.in_flight, stats.waiting, stats.acquired), (0, 0, 1));
    }

    #[tokio::test]
    async fn no_limit_never_waits_but_counts() {
        let limit = Limit::new("model", None);
        let mut held = Vec::new();
        for _ in 0..1000 {
            held.push(limit.acquire().await);
        }
        assert_eq!((limit.stats().in_flight, limit.stats().peak), (1000, 1000));
        held.clear();
        assert_eq!((limit.stats().in_flight, limit.stats().queued), (0, Duration::ZERO));
    }
}
