//! Limits how often changed files restart a server, so that one that writes its own files does not restart for ever.

use std::time::Duration;

use tokio::time::Instant;

/// A change so soon after a restart may be the server's own doing.
const SOON: Duration = Duration::from_secs(3);
/// So many of them in a row are believed to be a person's.
const BELIEVED: u32 = 3;
/// Longest wait.
const SLOWEST: Duration = Duration::from_secs(60);

/// The restarts of one server.
#[derive(Default)]
pub(super) struct RestartBackoff {
    under_way: u32,
    last: Option<Instant>,
    in_a_row: u32,
}

impl RestartBackoff {
    /// How long to wait with the restart for a change that is seen at `now`.
    pub(super) fn changed(&mut self, now: Instant) -> Duration {
        let soon = self.under_way > 0 || self.last.is_some_and(|last| now.duration_since(last) < SOON);
        self.in_a_row = if soon { self.in_a_row + 1 } else { 0 };
        match self.in_a_row.checked_sub(BELIEVED) {
            None => Duration::ZERO,
            Some(beyond) => Duration::from_secs(2).saturating_mul(1 << beyond.min(16)).min(SLOWEST),
        }
    }

    /// A restart begins.
    pub(super) fn restarting(&mut self) {
        self.under_way += 1;
    }

    /// A restart is over.
    pub(super) fn restarted(&mut self, now: Instant) {
        self.under_way = self.under_way.saturating_sub(1);
        self.last = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_changes_right_after_restarts_are_delayed() {
        let mut backoff = RestartBackoff::default();
        let mut waits = Vec::new();
        for pause in [1, 1, 1, 1, 1, 60, 1] {
            let wait = backoff.changed(Instant::now());
            tokio::time::advance(wait).await;
            backoff.restarted(Instant::now());
            tokio::time::advance(Duration::from_secs(pause)).await;
            waits.push(wait.as_secs());
        }
        assert_eq!(waits, [0, 0, 0, 2, 4, 8, 0]);
        backoff.restarting();
        tokio::time::advance(Duration::from_secs(600)).await;
        assert_eq!(
            backoff.changed(Instant::now()),
            Duration::ZERO,
            "the second one in a row, however long it takes"
        );
        let many = (0..100).map(|_| {
            backoff.restarted(Instant::now());
            backoff.changed(Instant::now())
        });
        assert_eq!(many.last(), Some(SLOWEST));
    }
}
