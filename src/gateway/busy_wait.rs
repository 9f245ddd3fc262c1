//! Waits without sleep for what comes at once: the answer of a fast tool, the next request of a program that calls in a loop.
//! On a machine with nothing else to do, a thread that sleeps takes longer to wake up than a small tool takes to answer.

use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use tokio::sync::Notify;

/// The longest wait for one answer of a server.
pub(super) const FOR_ANSWER: Duration = Duration::from_micros(60);
/// The longest wait for the next request of a client over HTTP.
pub(super) const FOR_REQUEST: Duration = Duration::from_micros(120);
/// After waits in vain so many go without one, at most: what slow servers and clients cost stays below a microsecond a call.
const MOST_SKIPPED: u32 = 128;

/// Keeps the thread awake while something is due.
pub(super) struct BusyWait {
    longest: Duration,
    /// Until when. Held for a look or a change.
    until: Mutex<Option<Instant>>,
    begun: Notify,
    /// Waits in vain since the last one that was not: twice as many go without one after each.
    in_vain: AtomicU32,
    /// How many are still to go without one.
    skipped: AtomicU32,
}

/// Something that is due.
#[derive(Clone, Copy)]
pub(super) struct Awaited {
    began: Instant,
    is_busy: bool,
}

impl BusyWait {
    pub(super) fn new(longest: Duration) -> Self {
        let (until, begun, in_vain, skipped) = Default::default();
        Self { longest, until, begun, in_vain, skipped }
    }

    /// Something is due from now on.
    pub(super) fn begin(&self) -> Awaited {
        let began = Instant::now();
        let left = self.skipped.load(Relaxed);
        let is_busy = left == 0;
        if is_busy {
            *self.until() = Some(began + self.longest);
            self.begun.notify_one();
        } else {
            // Lost updates of other threads do no harm.
            self.skipped.store(left - 1, Relaxed);
        }
        Awaited { began, is_busy }
    }

    /// Keeps the thread awake whenever something is due, for as long as it is polled. Other tasks have their turn.
    pub(super) async fn work(&self) {
        loop {
            self.begun.notified().await;
            while self.until().is_some_and(|until| Instant::now() < until) {
                tokio::task::yield_now().await;
            }
        }
    }

    /// It has come.
    pub(super) fn came(&self, awaited: Awaited) {
        let Awaited { began, is_busy } = awaited;
        if !is_busy {
            return;
        }
        *self.until() = None;
        if began.elapsed() <= self.longest {
            self.in_vain.store(0, Relaxed);
        } else {
            let in_vain = (self.in_vain.load(Relaxed) + 1).min(MOST_SKIPPED.ilog2());
            self.in_vain.store(in_vain, Relaxed);
            self.skipped.store(1 << in_vain, Relaxed);
        }
    }

    fn until(&self) -> MutexGuard<'_, Option<Instant>> {
        self.until.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of `requests` are waited for.
    fn busy(wait: &BusyWait, requests: usize, answer: Duration) -> usize {
        let awaited = (0..requests).map(|_| {
            let mut awaited = wait.begin();
            awaited.began = Instant::now().checked_sub(answer).unwrap();
            wait.came(awaited);
            usize::from(awaited.is_busy)
        });
        awaited.sum()
    }

    #[test]
    fn slow_servers_are_seldom_waited_for() {
        let wait = BusyWait::new(FOR_ANSWER);
        assert_eq!(busy(&wait, 100, Duration::ZERO), 100);
        let slow = Duration::from_millis(5);
        assert!(busy(&wait, 1000, slow) < 16);
        assert_eq!(busy(&wait, 12_800, slow), 12_800 / 129, "one in so many is tried");
        let again = (0..200).find(|_| busy(&wait, 1, Duration::ZERO) == 1);
        assert!(again.is_some_and(|after| after <= MOST_SKIPPED), "{again:?}");
        assert_eq!(busy(&wait, 100, Duration::ZERO), 100, "a fast answer ends that");
    }

    #[tokio::test]
    async fn a_wait_ends_with_the_answer_or_by_itself() {
        let wait = BusyWait::new(FOR_ANSWER);
        let long_enough = async {
            let awaited = wait.begin();
            tokio::task::yield_now().await;
            assert!(wait.until().is_some());
            wait.came(awaited);
            assert!(wait.until().is_none());
            let _ = wait.begin();
            tokio::time::sleep(FOR_ANSWER * 2).await;
        };
        tokio::select! {
            () = wait.work() => unreachable!("it never ends"),
            () = long_enough => {}
        }
    }
}
