//! The guard of a server that a [template](super::templates) has forked.
//!
//! The fork that becomes the guard has started its server as a child, and executes this executable, which keeps
//! children, session and subreaper. The server waits at the other end of a socket, before any code of its own: it reports
//! that it is set up; the guard confines it and tells it to go on. From then on this is a guard like any other, except
//! that its memory is its own.

use std::{
    io,
    os::fd::{AsFd, FromRawFd, OwnedFd, RawFd},
    time::{Duration, Instant},
};

use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::{Pid, WaitId, WaitIdOptions, getpid, getuid, set_child_subreaper, waitid},
};

use super::{
    main::{Guard, report_start},
    start::{self, GuardSettings},
    wire,
    zygote::{GUARD_SIGNALS, Owner},
};
use crate::{
    linux::confine::{Cgroup, offered_cgroup},
    linux::inherited,
    linux::inspect::peer::peer_of,
};

/// The descriptors of this process: the socket to the manager, the start, the socket to the server, the manager's pidfd.
const FILES: [RawFd; 4] = [3, 4, 5, 6];
/// How long the server may take to set itself up.
const LIMIT: Duration = Duration::from_secs(10);
/// The most bytes of a report of the server.
const REPORT: usize = 1 << 10;

/// Guards the child `server` of this process, until nothing of it is left. `owner` is the manager's process.
pub(super) fn serve(owner: i32, server: i32) -> io::Result<()> {
    let wrong = || io::Error::from(io::ErrorKind::InvalidInput);
    let positive = |pid: i32| Some(pid).filter(|pid| *pid > 0).and_then(Pid::from_raw).ok_or_else(wrong);
    let (owner, server) = (positive(owner)?, positive(server)?);
    inherited::close_inherited(FILES[3] + 1);
    #[expect(unsafe_code, reason = "files that this program is given by their numbers")]
    // SAFETY: this is the beginning of a program, so no other value owns them; those that are not open are not used.
    let [control, start, server_socket, handle] = FILES.map(|number| unsafe { OwnedFd::from_raw_fd(number) });
    // Orders are taken only from that process, running as the same user.
    let peer = peer_of(&control)?;
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    if peer.pid != owner || peer.uid != getuid() || waitid(WaitId::Pid(server), look).is_err() {
        return Err(wrong());
    }
    // Without pidfds the file is missing.
    let handle = if rustix::io::fcntl_getfd(&handle).is_ok() {
        Some(handle)
    } else {
        std::mem::forget(handle);
        None
    };
    crate::inherited::reset_signals(|_| false);
    let signals = GUARD_SIGNALS.into_iter().collect();
    nix::sys::signal::SigSet::thread_set_mask(&signals)?;
    let signals = SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?.into();
    set_child_subreaper(Some(getpid()))?;
    std::env::set_current_dir("/")?;
    let (owner, settings) = (Owner { pid: owner, handle }, start::read_fork(start));
    let mut adoption =
        Adoption { control: &control, socket: &server_socket, server, owner: &owner, cgroup: None };
    let outcome = match &settings {
        Ok(settings) => adoption.run(settings),
        Err(error) => Err(io::Error::other(error.to_string())),
    };
    let cgroup = adoption.cgroup.take();
    drop(server_socket);
    if outcome.is_ok() {
        report_start(&control, getpid(), getpid(), server);
    }
    let graces = settings.map_or_else(|_| crate::StopGrace::default().into(), |settings| settings.graces);
    let mut guard = Guard::new(control, signals, &owner, server, cgroup, graces);
    match outcome {
        Ok(()) => guard.run(),
        Err(error) => guard.refuse(&error),
    }
    Ok(())
}

/// A server that waits until it may run.
struct Adoption<'a> {
    control: &'a OwnedFd,
    socket: &'a OwnedFd,
    server: Pid,
    owner: &'a Owner,
    cgroup: Option<Cgroup>,
}

impl Adoption<'_> {
    /// Waits until the server is set up, confines it and lets it run.
    fn run(&mut self, settings: &GuardSettings) -> io::Result<()> {
        let until = Instant::now() + LIMIT;
        self.wait_for_ok(until)?;
        let wanted = &settings.wanted;
        if wanted.sandbox.is_some() {
            return Err(io::Error::other("a template starts no server with a sandbox"));
        }
        let offered = offered_cgroup().filter(|_| wanted.limits.is_empty());
        let mut ready = wanted.prepare("".as_ref(), None, self.owner.pid, offered.as_deref())?;
        self.cgroup = ready.take_cgroup();
        if ready.apply_to(self.server, self.cgroup.as_ref())? {
            wire::send_bytes(self.socket, b"obey", &[])?;
            self.wait_for_ok(until)?;
        }
        // A manager that has given up meanwhile has sent an order, or closed its end.
        if self.heard(Instant::now())?[1..] != [false; 2] {
            return Err(given_up());
        }
        wire::send_bytes(self.socket, b"go", &[])
    }

    /// Waits until the server has done what it was told.
    fn wait_for_ok(&self, until: Instant) -> io::Result<()> {
        loop {
            let [reported, ordered, owner_gone] = self.heard(until)?;
            if ordered || owner_gone {
                return Err(given_up());
            }
            if reported {
                let mut report = [0; REPORT];
                return match wire::receive_bytes(self.socket, &mut report) {
                    Ok((b"ok", _)) => Ok(()),
                    Ok((report, _)) => Err(failure(report)),
                    Err(error) => Err(error),
                };
            }
            if Instant::now() >= until {
                let seconds = LIMIT.as_secs();
                return Err(io::Error::other(format!("its process was not ready within {seconds} s")));
            }
        }
    }

    /// Waits until something can be read from the server or from the manager, or the manager has ended: says which.
    fn heard(&self, until: Instant) -> io::Result<[bool; 3]> {
        let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).ok();
        let owner = self.owner.handle.as_ref();
        let mut files = [Some(self.socket), Some(self.control), owner].map(|file| match file {
            Some(file) => PollFd::from_borrowed_fd(file.as_fd(), PollFlags::IN),
            None => PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::empty()),
        });
        match poll(&mut files, left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut heard = files.map(|file| !file.revents().is_empty());
        heard[2] &= owner.is_some();
        Ok(heard)
    }
}

fn given_up() -> io::Error {
    io::Error::other("the manager has given it up")
}

/// The error that the server has reported instead of `ok`.
fn failure(report: &[u8]) -> io::Error {
    let report = String::from_utf8_lossy(report);
    let number = report.strip_prefix("errno ").and_then(|number| number.trim().parse().ok());
    match (number, report.strip_prefix("why ")) {
        (Some(number), _) => io::Error::from_raw_os_error(number),
        (None, Some(why)) => io::Error::other(why.to_owned()),
        (None, None) if report.is_empty() => io::Error::other("its process has ended before it was ready"),
        (None, None) => io::Error::other("its process does not keep to the protocol"),
    }
}
