//! Waits without sleep for answers that come at once. On a machine with nothing else to do, a thread that sleeps takes longer to
//! wake up than a small tool takes to answer.

use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use tokio::sync::Notify;

/// The longest wait for one answer.
const LONGEST: Duration = Duration::from_micros(60);
/// After waits in vain so many requests are sent without one, at most: what slow servers cost stays below a microsecond a call.
const MOST_SKIPPED: u32 = 128;

/// Keeps the thread awake while an answer is due.
#[derive(Default)]
pub(super) struct BusyWait {
    /// Until when. Held for a look or a change.
    until: Mutex<Option<Instant>>,
    begun: Notify,
    /// Waits in vain since the last one that was not: twice as many requests go without one after each.
    in_vain: AtomicU32,
    /// Requests that go without one.
    skipped: AtomicU32,
}

/// A request that was sent.
pub(super) struct Awaited<'a> {
    wait: &'a BusyWait,
    began: Instant,
    is_busy: bool,
}

impl BusyWait {
    /// A request is sent now.
    pub(super) fn begin(&self) -> Awaited<'_> {
        let began = Instant::now();
        let left = self.skipped.load(Relaxed);
        let is_busy = left == 0;
        if is_busy {
            *self.until() = Some(began + LONGEST);
            self.begun.notify_one();
        } else {
            // Lost updates of other threads do no harm.
            self.skipped.store(left - 1, Relaxed);
        }
        Awaited { wait: self, began, is_busy }
    }

    /// Keeps the thread awake whenever an answer is due, for as long as it is polled. Other tasks have their turn.
    pub(super) async fn work(&self) {
        loop {
            self.begun.notified().await;
            while self.until().is_some_and(|until| Instant::now() < until) {
                tokio::task::yield_now().await;
            }
        }
    }

    fn until(&self) -> MutexGuard<'_, Option<Instant>> {
        self.until.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Awaited<'_> {
    /// The answer is there.
    pub(super) fn answered(self) {
        let Self { wait, began, is_busy } = self;
        if !is_busy {
            return;
        }
        *wait.until() = None;
        if began.elapsed() <= LONGEST {
            wait.in_vain.store(0, Relaxed);
        } else {
            let in_vain = (wait.in_vain.load(Relaxed) + 1).min(MOST_SKIPPED.ilog2());
            wait.in_vain.store(in_vain, Relaxed);
            wait.skipped.store(1 << in_vain, Relaxed);
        }
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
            let is_busy = awaited.is_busy;
            awaited.answered();
            usize::from(is_busy)
        });
        awaited.sum()
    }

    #[test]
    fn slow_servers_are_seldom_waited_for() {
        let wait = BusyWait::default();
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
        let wait = BusyWait::default();
        let long_enough = async {
            let awaited = wait.begin();
            tokio::task::yield_now().await;
            assert!(wait.until().is_some());
            awaited.answered();
            assert!(wait.until().is_none());
            let _ = wait.begin();
            tokio::time::sleep(LONGEST * 2).await;
        };
        tokio::select! {
            () = wait.work() => unreachable!("it never ends"),
            () = long_enough => {}
        }
    }
}
