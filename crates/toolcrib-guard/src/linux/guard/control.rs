//! The manager's end of the socket to one guard: orders to it, and what it reports.

use std::{
    io,
    os::{fd::OwnedFd, unix::process::ExitStatusExt},
    pin::pin,
    process::ExitStatus,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{io::unix::AsyncFd, sync::Notify};

use super::wire::{self, Notice, Order, Packet};
use crate::{StopOutcome, linux::confine::Refused};

/// The manager's end of the socket, and what was heard over it.
pub(crate) struct Control {
    socket: AsyncFd<OwnedFd>,
    heard: Mutex<Heard>,
    /// Told when something was heard.
    news: Notify,
}

#[derive(Default)]
pub(super) struct Heard {
    pub(super) started: Option<io::Result<Running>>,
    pub(super) exited: Option<(ExitStatus, StopOutcome)>,
    pub(super) exceeded: Option<String>,
    pub(super) gone: Option<(usize, bool)>,
    /// The stream has ended.
    pub(super) silent: bool,
}

/// The processes of a start.
pub(super) struct Running {
    pub(super) guard: i32,
    pub(super) handle: Option<OwnedFd>,
    pub(super) server: i32,
}

impl Control {
    pub(super) fn new(socket: OwnedFd) -> io::Result<Self> {
        #[expect(deprecated, reason = "sound here: an owned descriptor stays the same while registered")]
        let socket = AsyncFd::with_interest(socket, tokio::io::Interest::READABLE)?;
        Ok(Self { socket, heard: Mutex::default(), news: Notify::new() })
    }

    /// Whether the guard is there to hear it.
    pub(super) fn order(&self, order: &Order) -> bool {
        wire::send(self.socket.get_ref(), order, &[]).is_ok()
    }

    /// The server's end, if it has ended.
    pub(crate) fn exited(&self) -> Option<ExitStatus> {
        self.listen();
        self.heard().exited.map(|(status, _)| status)
    }

    /// The budget that the server hit, once it has ended.
    pub(crate) fn exceeded(&self) -> Option<String> {
        self.listen();
        self.heard().exceeded.clone()
    }

    /// Whether the guard has said that nobody is left.
    pub(super) fn is_done(&self) -> bool {
        self.listen();
        self.heard().gone.is_some()
    }

    /// Returns once the server has ended.
    pub(crate) async fn over(&self) {
        self.until(|heard| heard.exited.is_some()).await;
    }

    /// Returns once nothing of the server is left, or nobody can tell.
    pub(crate) async fn gone(&self) {
        self.until(|heard| heard.gone.is_some()).await;
    }

    pub(super) fn heard(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns once `condition` holds, or nothing more will be heard.
    pub(super) async fn until(&self, condition: impl Fn(&Heard) -> bool) {
        loop {
            // Before the look at what was heard: another waiter may hear the rest of it in between.
            let mut news = pin!(self.news.notified());
            news.as_mut().enable();
            let done = {
                let heard = self.heard();
                heard.silent || condition(&heard)
            };
            if done {
                return;
            }
            tokio::select! {
                () = news => {}
                ready = self.socket.readable() => match ready {
                    Ok(mut ready) => {
                        self.listen();
                        ready.clear_ready();
                    }
                    // The runtime's I/O driver is gone, and then looking is all that is left.
                    Err(_) => {
                        tokio::time::sleep(Duration::from_millis(10)).await;
                        self.listen();
                    }
                },
            }
        }
    }

    /// Takes in what has arrived.
    pub(super) fn listen(&self) {
        let mut heard = self.heard();
        while !heard.silent {
            match wire::receive::<Notice>(self.socket.get_ref(), &mut [0; Notice::MAX]) {
                Ok(Some((notice, files))) => heard.note(notice, files),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Ok(None) | Err(_) => heard.silent = true,
            }
            self.news.notify_waiters();
        }
    }
}

impl Heard {
    fn note(&mut self, notice: Notice, files: Vec<OwnedFd>) {
        match notice {
            Notice::Started { guard, pid } => {
                let handle = files.into_iter().next();
                self.started = Some(Ok(Running { guard, handle, server: pid }));
            }
            Notice::Refused { errno, what, help } => {
                let error = errno.map(io::Error::from_raw_os_error);
                let error =
                    error.unwrap_or_else(|| io::Error::other(Refused::new(what.unwrap_or_default(), help)));
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
