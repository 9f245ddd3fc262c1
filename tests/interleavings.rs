//! Tests the restart protocol of a session in many interleavings: the same file `crates/toolcrib-servers/src/session/recovery/slot.rs`, with
//! locks that let a scheduler decide who goes next.
//!
//! Callers do what `crates/toolcrib-servers/src/session/recovery/restart.rs` does, in its order: take the restart lock, claim, bury the dead
//! connection, connect, install. What is checked: one restart for each death; the old connection is gone before
//! the next one is made; closed stays closed, and nothing that was ever made is left.

#[path = "../crates/toolcrib-servers/src/session/recovery/slot.rs"]
mod slot;

/// Locks that `slot` finds in place of the standard library's.
mod sync {
    pub(super) use shuttle::sync::{Mutex, MutexGuard};

    pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().expect("a thread that panics fails the test")
    }
}

use shuttle::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
};

use slot::{Claim, Slot, State};

/// Schedules that are tried of each model.
const SCHEDULES: usize = 2000;
/// Scheduling points at which the bug-finding scheduler may change its mind.
const DEPTH: usize = 3;

/// Counts of all connections.
#[derive(Default)]
struct World {
    made: AtomicUsize,
    alive: AtomicUsize,
}

struct Connection(Arc<World>);

impl Connection {
    fn make(world: &Arc<World>) -> Self {
        let others = world.alive.fetch_add(1, SeqCst);
        assert_eq!(others, 0, "the old one must be gone before the next one is made");
        world.made.fetch_add(1, SeqCst);
        Self(world.clone())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.alive.fetch_sub(1, SeqCst);
    }
}

struct Session {
    slot: Slot<Connection, usize>,
    restarts: Mutex<()>,
    world: Arc<World>,
}

#[derive(Debug, PartialEq)]
enum Told {
    Usable,
    Down,
    Closed,
}

impl Session {
    fn new() -> Arc<Self> {
        let world = Arc::<World>::default();
        let slot = Slot::new(Connection::make(&world));
        Arc::new(Self { slot, restarts: Mutex::new(()), world })
    }

    /// Restarts like `Session::restart_alone`. `works` says whether connecting does.
    fn restart(&self, dead: u64, works: bool) -> Told {
        let _alone = self.restarts.lock().expect("nobody panics");
        let claim = self.slot.claim(dead, |state| match state {
            State::Ready { .. } => Some(0),
            State::Down { down, .. } => (*down == 0).then_some(0),
            State::Closed => None,
        });
        match claim {
            Claim::Mine { died, before } => {
                assert!(died.is_some() || before.is_some(), "there was something to replace");
                drop(died);
            }
            Claim::Replaced => return Told::Usable,
            Claim::Refused => return Told::Down,
            Claim::Closed => return Told::Closed,
        }
        thread::yield_now();
        if !works {
            return if self.slot.update_down(|down| *down = 1) { Told::Down } else { Told::Closed };
        }
        match self.slot.install(Connection::make(&self.world)) {
            Ok(()) => Told::Usable,
            Err(_) => Told::Closed,
        }
    }

    fn generation(&self) -> Option<u64> {
        match &*self.slot.state() {
            State::Ready { generation, .. } => Some(*generation),
            State::Down { .. } | State::Closed => None,
        }
    }

    /// Closes like `Session::close`: what is there is taken out, then a restart under way is waited for.
    fn close(&self) {
        drop(self.slot.close());
        drop(self.restarts.lock());
    }
}

/// Runs `model` under random schedules, and under those that are good at finding bugs.
fn check(model: impl Fn() + Send + Sync + Clone + 'static) {
    shuttle::check_random(model.clone(), SCHEDULES);
    shuttle::check_pct(model, SCHEDULES, DEPTH);
}

fn callers(session: &Arc<Session>, number: usize, works: bool) -> Vec<thread::JoinHandle<Told>> {
    let call = |_| {
        let session = session.clone();
        thread::spawn(move || session.restart(0, works))
    };
    (0..number).map(call).collect()
}

fn join(callers: Vec<thread::JoinHandle<Told>>) -> Vec<Told> {
    callers.into_iter().map(|caller| caller.join().expect("no caller panics")).collect()
}

#[test]
fn concurrent_callers_cause_one_restart() {
    check(|| {
        let session = Session::new();
        let told = join(callers(&session, 4, true));
        assert!(told.iter().all(|told| *told == Told::Usable), "{told:?}");
        assert_eq!((session.generation(), session.world.made.load(SeqCst)), (Some(1), 2));
    });
}

#[test]
fn concurrent_first_callers_cause_one_start() {
    check(|| {
        let world = Arc::<World>::default();
        let session = Arc::new(Session { slot: Slot::empty(0), restarts: Mutex::new(()), world });
        let told = join(callers(&session, 4, true));
        assert!(told.iter().all(|told| *told == Told::Usable), "{told:?}");
        assert_eq!((session.generation(), session.world.made.load(SeqCst)), (Some(1), 1));
    });
}

#[test]
fn a_failed_restart_is_tried_once_and_fails_all_callers() {
    check(|| {
        let session = Session::new();
        let told = join(callers(&session, 3, false));
        assert!(told.iter().all(|told| *told == Told::Down), "{told:?}");
        assert_eq!(session.world.made.load(SeqCst), 1, "no one else tried before it was due");
    });
}

#[test]
fn a_close_at_any_time_is_final() {
    check(|| {
        let session = Session::new();
        let callers = callers(&session, 3, true);
        let closer = session.clone();
        let closer = thread::spawn(move || closer.close());
        join(callers);
        closer.join().expect("it does not panic");
        assert_eq!(session.restart(0, true), Told::Closed);
        assert_eq!(session.world.alive.load(SeqCst), 0, "nothing was installed after closing");
    });
}

#[test]
fn a_death_during_the_restart_leads_to_the_next_generation() {
    check(|| {
        let session = Session::new();
        let first = callers(&session, 2, true);
        let second = session.clone();
        // Whoever sees the new connection finds it dead at once.
        let second = thread::spawn(move || match second.generation() {
            Some(generation @ 1..) => second.restart(generation, true),
            _ => Told::Usable,
        });
        join(first);
        second.join().expect("it does not panic");
        let generation = session.generation().expect("it is up");
        assert_eq!(session.world.made.load(SeqCst) as u64, generation + 1, "each number is one connection");
    });
}
