//! The turn of one start: held until its server only waits, and given up while it waits for a template.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use futures_util::future::BoxFuture;
use tokio::sync::{Notify, watch};

use super::{Turn, Turns};
use crate::{
    config::StartJobs,
    forking::StartTurn,
    process::{Activity, activity},
    session::SpawnedProcess,
};

/// How long a start keeps its slot where it cannot be seen what it does.
const UNSEEN: Duration = Duration::from_secs(1);
/// Time from the creation of a process to the first look at it, and from a look that saw it wait to the next one.
const SOON: Duration = Duration::from_millis(1);
/// Greatest wait between two looks at a server that works: a look costs some 50 us.
const LATE: Duration = Duration::from_millis(20);
/// How long a process is young: a process that will only wait mostly does so by then.
const YOUNG: Duration = Duration::from_millis(10);

/// The turn of one start, if it needs any.
pub(in crate::start) struct HeldTurn {
    turns: Turns,
    /// The time that the start is expected to take, by earlier starts.
    expected: Option<Duration>,
    held: Mutex<HeldSlot>,
    changed: Notify,
}

enum HeldSlot {
    Taken {
        _turn: Turn,
    },
    GivenUp {
        _counted: GivenUp,
    },
    /// It waits for one again.
    WantedAgain,
    /// None is needed, or any more.
    None,
}

/// Counts a start that has given up its slot, until it is dropped.
struct GivenUp(Turns);

impl Drop for GivenUp {
    fn drop(&mut self) {
        self.0.line().given_up -= 1;
    }
}

impl HeldTurn {
    pub(in crate::start) fn new(turns: &Turns, expected: Option<Duration>, turn: Option<Turn>) -> Self {
        turns.line().under_way += 1;
        let held = Mutex::new(turn.map_or(HeldSlot::None, |turn| HeldSlot::Taken { _turn: turn }));
        Self { turns: turns.clone(), expected, held, changed: Notify::new() }
    }

    fn held(&self) -> MutexGuard<'_, HeldSlot> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, slot: HeldSlot) {
        // A turn gives its slot to another start on drop, which is not to happen with this lock.
        let before = std::mem::replace(&mut *self.held(), slot);
        drop(before);
        self.changed.notify_one();
    }

    /// Ends the turn once the server only waits, if that is how slots are counted. `seen` is its process, once
    /// there is one.
    pub(in crate::start) async fn end_when_idle(&self, seen: watch::Receiver<Option<SpawnedProcess>>) {
        if self.turns.jobs != StartJobs::Cores {
            std::future::pending::<()>().await;
        }
        loop {
            if matches!(&*self.held(), HeldSlot::None) {
                return;
            }
            let is_idle = async {
                if matches!(&*self.held(), HeldSlot::GivenUp { .. } | HeldSlot::WantedAgain) {
                    std::future::pending::<()>().await;
                }
                self.turns.is_idle(seen.clone()).await;
            };
            tokio::select! {
                () = is_idle => self.set(HeldSlot::None),
                () = self.changed.notified() => {}
            }
        }
    }
}

impl Drop for HeldTurn {
    fn drop(&mut self) {
        self.turns.line().under_way -= 1;
    }
}

impl StartTurn for HeldTurn {
    fn at_once(&self) -> usize {
        self.turns.at_once()
    }

    fn give_up(&self) {
        let is_taken = matches!(&*self.held(), HeldSlot::Taken { .. });
        if self.turns.jobs == StartJobs::Cores && is_taken {
            self.turns.line().given_up += 1;
            self.set(HeldSlot::GivenUp { _counted: GivenUp(self.turns.clone()) });
        }
    }

    fn has_given_up(&self) -> bool {
        matches!(&*self.held(), HeldSlot::GivenUp { .. } | HeldSlot::WantedAgain)
    }

    fn take_again(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            if !self.has_given_up() {
                return;
            }
            // In the line it is counted as one that waits.
            self.set(HeldSlot::WantedAgain);
            if let Some(turn) = self.turns.next(self.expected, true, |_| ()).await {
                self.set(HeldSlot::Taken { _turn: turn });
            }
        })
    }
}

impl Turns {
    /// Waits until a server that starts only waits.
    async fn is_idle(&self, mut seen: watch::Receiver<Option<SpawnedProcess>>) {
        let began = Instant::now();
        let _ = tokio::time::timeout(UNSEEN, seen.wait_for(Option::is_some)).await.map(drop);
        let born = Instant::now();
        let mut pause = SOON;
        let mut before = None;
        loop {
            tokio::time::sleep(pause).await;
            if !self.has_waiting() {
                (pause, before) = (LATE, None);
                continue;
            }
            let root = seen.borrow().as_ref().map(|booting| booting.root);
            let now = root.map_or(Activity::Unknown, activity);
            match now {
                Activity::Waiting(_) if before == Some(now) => return,
                Activity::Unknown if began.elapsed() >= UNSEEN => return,
                Activity::Waiting(_) => pause = SOON,
                Activity::Busy if born.elapsed() < YOUNG => {}
                Activity::Busy | Activity::Unknown => pause = (pause * 2).min(LATE),
            }
            before = Some(now);
        }
    }
}
