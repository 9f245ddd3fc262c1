//! The place for the connection of a session: at most one, numbered, replaced once for each death, and none after
//! closing.
//!
//! Knows no protocol, process or clock: `tests/interleavings.rs` compiles this very file against locks that try all
//! interleavings. The task that claims, installs or stays down holds the restart lock of the session.

use super::sync::{Mutex, MutexGuard, lock};

/// `C` is a connection, `D` what is known while there is none.
pub(crate) struct Slot<C, D> {
    // Held for a look or a swap, never across an await.
    state: Mutex<State<C, D>>,
}

pub(crate) enum State<C, D> {
    Ready { generation: u64, connection: C },
    Down { generation: u64, down: D },
    Closed,
}

/// Result of the claim to replace a connection.
pub(super) enum Claim<C, D> {
    /// There will be none any more.
    Closed,
    /// Another caller has replaced it.
    Replaced,
    /// It is down, and not to be tried now.
    Refused,
    /// The caller is to replace it: with what died, or with what was known of it if it was down already.
    Mine { died: Option<C>, before: Option<D> },
}

impl<C, D> Slot<C, D> {
    pub(crate) fn new(connection: C) -> Self {
        Self { state: Mutex::new(State::Ready { generation: 0, connection }) }
    }

    /// Creates a slot without a connection: the first one will be generation 1.
    pub(super) fn empty(down: D) -> Self {
        Self { state: Mutex::new(State::Down { generation: 0, down }) }
    }

    /// The present state.
    pub(crate) fn state(&self) -> MutexGuard<'_, State<C, D>> {
        lock(&self.state)
    }

    /// Takes generation `dead` out, if it is there still. `meanwhile` is what is known until it is replaced; none
    /// if it is not to be replaced now.
    pub(super) fn claim(&self, dead: u64, meanwhile: impl FnOnce(&State<C, D>) -> Option<D>) -> Claim<C, D> {
        let mut state = self.state();
        match &*state {
            State::Closed => return Claim::Closed,
            State::Ready { generation, .. } if *generation != dead => return Claim::Replaced,
            State::Ready { .. } | State::Down { .. } => {}
        }
        let Some(down) = meanwhile(&state) else { return Claim::Refused };
        let (generation, claim) = match std::mem::replace(&mut *state, State::Closed) {
            State::Ready { generation, connection } => {
                (generation, Claim::Mine { died: Some(connection), before: None })
            }
            State::Down { generation, down } => (generation, Claim::Mine { died: None, before: Some(down) }),
            State::Closed => return Claim::Closed,
        };
        *state = State::Down { generation, down };
        claim
    }

    /// Puts a new connection in, under the next number. It is given back if the slot was closed meanwhile.
    pub(super) fn install(&self, connection: C) -> Result<(), C> {
        let mut state = self.state();
        match *state {
            State::Down { generation, .. } => {
                *state = State::Ready { generation: generation + 1, connection };
                Ok(())
            }
            State::Ready { .. } | State::Closed => Err(connection),
        }
    }

    /// Changes what is known of the connection that is not there; whether there is still one to be had.
    pub(super) fn update_down(&self, change: impl FnOnce(&mut D)) -> bool {
        match &mut *self.state() {
            State::Down { down, .. } => change(down),
            State::Ready { .. } | State::Closed => return false,
        }
        true
    }

    /// Takes out what is there, for good.
    pub(crate) fn close(&self) -> Option<C> {
        match std::mem::replace(&mut *self.state(), State::Closed) {
            State::Ready { connection, .. } => Some(connection),
            State::Down { .. } | State::Closed => None,
        }
    }
}
