//! The manager's end of the socket to one guard: sends orders and receives notices.

use std::{
    io,
    os::{
        fd::{BorrowedFd, OwnedFd},
        unix::process::ExitStatusExt,
    },
    pin::pin,
    process::ExitStatus,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{io::unix::AsyncFd, sync::Notify};

use super::wire::{self, ForkOrder, Notice, Order, Packet};
use crate::{StopOutcome, linux::confine::ConfineError};

/// The manager's end of the socket, and the notices that were received.
pub(crate) struct Control {
    socket: AsyncFd<OwnedFd>,
    state: Mutex<GuardState>,
    /// Notified after each received notice.
    changed: Notify,
}

#[derive(Default)]
pub(super) struct GuardState {
    /// Process id of the fork of a template that becomes the guard. `None`: no fork does, or it is not known yet.
    pub(super) forked: Option<u32>,
    pub(super) started: Option<io::Result<Running>>,
    pub(super) exited: Option<(ExitStatus, StopOutcome)>,
    pub(super) exceeded: Option<String>,
    pub(super) gone: Option<(usize, bool)>,
    /// The socket was closed by the guard.
    pub(super) closed: bool,
}

/// The processes of a started server.
pub(super) struct Running {
    pub(super) guard: i32,
    pub(super) handle: Option<OwnedFd>,
    pub(super) server: i32,
}

impl Control {
    pub(super) fn new(socket: OwnedFd) -> io::Result<Self> {
        #[expect(deprecated, reason = "sound here: an owned descriptor stays the same while registered")]
        let socket = AsyncFd::with_interest(socket, tokio::io::Interest::READABLE)?;
        Ok(Self { socket, state: Mutex::default(), changed: Notify::new() })
    }

    /// Sends an order to the zygote, on the socket of a template.
    pub(super) fn ask(&self, order: &ForkOrder, files: &[BorrowedFd<'_>]) -> io::Result<()> {
        wire::send(self.socket.get_ref(), order, files)
    }

    /// Sends an order. Returns whether the guard's end of the socket is open.
    pub(super) fn send(&self, order: &Order) -> bool {
        wire::send(self.socket.get_ref(), order, &[]).is_ok()
    }

    /// The server's exit status, if it has ended.
    pub(crate) fn exited(&self) -> Option<ExitStatus> {
        self.receive();
        self.state().exited.map(|(status, _)| status)
    }

    /// The budget that the server hit, once it has ended.
    pub(crate) fn exceeded(&self) -> Option<String> {
        self.receive();
        self.state().exceeded.clone()
    }

    /// Whether the guard has reported that no process is left.
    pub(super) fn has_reported_gone(&self) -> bool {
        self.receive();
        self.state().gone.is_some()
    }

    /// Returns once the server has ended.
    pub(crate) async fn wait_exited(&self) {
        self.wait_until(|state| state.exited.is_some()).await;
    }

    /// Returns once no process of the server is left, or the guard is gone.
    pub(crate) async fn wait_gone(&self) {
        self.wait_until(|state| state.gone.is_some()).await;
    }

    pub(super) fn state(&self) -> MutexGuard<'_, GuardState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns once `condition` holds or the socket is closed.
    pub(super) async fn wait_until(&self, condition: impl Fn(&GuardState) -> bool) {
        loop {
            // Enabled before the check: another waiter may receive the notice in between.
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            let done = {
                let state = self.state();
                state.closed || condition(&state)
            };
            if done {
                return;
            }
            tokio::select! {
                () = changed => {}
                ready = self.socket.readable() => match ready {
                    Ok(mut ready) => {
                        self.receive();
                        ready.clear_ready();
                    }
                    // The runtime's I/O driver is gone, so poll.
                    Err(_) => {
                        tokio::time::sleep(Duration::from_millis(10)).await;
                        self.receive();
                    }
                },
            }
        }
    }

    /// Receives all notices that have arrived.
    pub(super) fn receive(&self) {
        let mut state = self.state();
        while !state.closed {
            match wire::receive::<Notice>(self.socket.get_ref(), &mut [0; Notice::MAX]) {
                Ok(Some((notice, files))) => state.apply(notice, files),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Ok(None) | Err(_) => state.closed = true,
            }
            self.changed.notify_waiters();
        }
    }
}

impl GuardState {
    fn apply(&mut self, notice: Notice, files: Vec<OwnedFd>) {
        match notice {
            Notice::Started { guard, pid } => {
                let handle = files.into_iter().next();
                self.started = Some(Ok(Running { guard, handle, server: pid }));
            }
            Notice::Forked { pid } => self.forked = Some(pid.cast_unsigned()),
            Notice::Refused { errno, what, help } => {
                let error = errno.map(io::Error::from_raw_os_error);
                let error = error
                    .unwrap_or_else(|| io::Error::other(ConfineError::new(what.unwrap_or_default(), help)));
                self.started = Some(Err(error));
            }
            Notice::Exited { status, outcome, exceeded } => {
                self.exited = Some((ExitStatus::from_raw(status), outcome));
                self.exceeded = exceeded;
            }
            Notice::Gone { killed, helpers } => self.gone = Some((killed, helpers)),
        }
    }
}
