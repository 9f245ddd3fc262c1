//! Tells requests that their answers are late. One clock for all of them: a timer for each would cost a system call each.

use std::{
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::Duration,
};

use tokio::sync::Notify;

/// A request that takes two to three of these is late.
const TICK: Duration = Duration::from_millis(100);

/// The clock. It stands still while nobody waits.
#[derive(Default)]
pub(super) struct LateClock {
    waiting: AtomicUsize,
    first: Notify,
    tick: Notify,
}

impl LateClock {
    /// Waits 200 to 300 ms. Safe to cancel.
    pub(super) async fn late(&self) {
        if self.waiting.fetch_add(1, Relaxed) == 0 {
            self.first.notify_one();
        }
        let _waiting = Waiting(self);
        for _ in 0..3 {
            self.tick.notified().await;
        }
    }

    /// Ticks for as long as it is polled.
    pub(super) async fn work(&self) {
        loop {
            self.first.notified().await;
            while self.waiting.load(Relaxed) > 0 {
                tokio::time::sleep(TICK).await;
                self.tick.notify_waiters();
            }
        }
    }
}

/// Dropped, one waits less.
struct Waiting<'a>(&'a LateClock);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_is_told_after_two_to_three_ticks() {
        let clock = LateClock::default();
        let waits = async {
            for pause in [0, 30, 250, 99] {
                tokio::time::sleep(Duration::from_millis(pause)).await;
                let began = Instant::now();
                tokio::join!(clock.late(), clock.late());
                let took = began.elapsed();
                assert!((TICK * 2..=TICK * 3).contains(&took), "{took:?}");
            }
        };
        tokio::select! {
            () = clock.work() => unreachable!("it never ends"),
            () = waits => {}
        }
        assert_eq!(clock.waiting.load(Relaxed), 0);
    }
}
