//! The process that guards are forked from: one for each manager, started with it, idle between two starts.
//!
//! Why not one more exec for each guard: it is a large executable, and to load it costs as much as to start a
//! small server. Here that is paid once. A fork of a process with a single thread and little memory is cheap,
//! and its pages are shared. Not so the places where its code is mapped: a guard pays a page fault for each piece
//! of code that it is the first to touch in its own memory, and these are most of what it costs. So whatever can be
//! done before the fork is done by the zygote, which has touched it all before.
//!
//! A guard depends on its zygote for nothing but to be reaped. The zygote takes no more requests once the manager
//! has closed its end of the socket or has ended, and is gone when the last of its guards is.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
};

use nix::{
    sys::{
        signal::{SigSet, Signal},
        signalfd::{SfdFlags, SignalFd},
    },
    unistd::{ForkResult, fork},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::{Pid, PidfdFlags, WaitOptions, getppid, pidfd_open, setsid, wait},
};

use super::wire::{self, Notice, Request, Start};
use crate::process::confine::offered_cgroup;

/// Bytes of the stack on which a server's process becomes the server. Only those that are used take memory.
const STACK: usize = 256 << 10;

/// What one guard is there for.
pub(super) struct Task {
    /// Leads to the manager.
    pub(super) socket: OwnedFd,
    pub(super) start: Start,
    /// The server's standard input, output and error.
    pub(super) stdio: [OwnedFd; 3],
    /// On which the server's process becomes the server.
    pub(super) stack: Vec<u8>,
    pub(super) owner: Owner,
    /// See [`offered_cgroup`].
    pub(super) offered: Option<PathBuf>,
}

/// The manager's process, whose end is the end of all.
pub(super) struct Owner {
    pub(super) pid: Pid,
    /// Becomes readable when it ends, also where somebody else inherited its ends of the sockets. Nothing where
    /// the kernel has no such handles.
    pub(super) handle: Option<OwnedFd>,
}

impl Owner {
    /// The parent of this process, if that is `pid`.
    fn parent(pid: i32) -> Option<Self> {
        let pid = Pid::from_raw(pid)?;
        let handle = pidfd_open(pid, PidfdFlags::empty()).ok();
        // Looked at after the handle was opened, which therefore is no stranger's.
        (getppid() == Some(pid)).then_some(Self { pid, handle })
    }

    /// Whether it is known to have ended.
    pub(super) fn is_gone(&self) -> bool {
        self.handle.as_ref().is_some_and(|handle| {
            let mut files = [PollFd::new(handle, PollFlags::IN)];
            poll(&mut files, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
        })
    }
}

/// Forks a guard for each request that arrives over standard input. Returns in each guard, with its task; nothing
/// in the zygote, when it is over. `owner` is the manager's process.
pub(super) fn serve(owner: i32) -> io::Result<Option<Task>> {
    let Some(owner) = Owner::parent(owner) else { return Ok(None) };
    // The keys of the terminal do not concern it.
    setsid()?;
    std::env::set_current_dir("/")?;
    let mut children = SigSet::empty();
    children.add(Signal::SIGCHLD);
    children.thread_set_mask()?;
    let signals = SignalFd::with_flags(&children, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
    let requests = rustix::io::fcntl_dupfd_cloexec(io::stdin(), 3)?;
    // A guard that kept it would hide the end of the zygote from the manager.
    rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
    let offered = offered_cgroup();
    let stack = vec![0; STACK];
    loop {
        let mut files = vec![PollFd::new(&requests, PollFlags::IN), PollFd::new(&signals, PollFlags::IN)];
        files.extend(owner.handle.as_ref().map(|owner| PollFd::new(owner, PollFlags::IN)));
        match poll(&mut files, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready = |at: usize| files.get(at).is_some_and(|file| !file.revents().is_empty());
        let (asked, child_gone, owner_gone) = (ready(0), ready(1), ready(2));
        drop(files);
        if child_gone {
            while let Ok(Some(_)) = signals.read_signal() {}
            while matches!(wait(WaitOptions::NOHANG), Ok(Some(_))) {}
        }
        if owner_gone {
            break;
        }
        if !asked {
            continue;
        }
        let files = match wire::receive::<Request>(requests.as_fd()) {
            Ok(Some((Request, files))) => <[OwnedFd; 5]>::try_from(files),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Ok(None) | Err(_) => break,
        };
        // Fewer where the limit of open files was reached: the manager sees that there is no guard.
        let Ok([socket, start, input, output, error]) = files else { continue };
        let start = match Start::read(start) {
            Ok(start) => start,
            Err(error) => {
                let _ = wire::send(&socket, &Notice::refused(&error), &[]);
                continue;
            }
        };
        #[expect(unsafe_code, reason = "no safe way to fork; this process has a single thread")]
        // SAFETY: there is no other thread whose locks or half-done work the child could inherit.
        match unsafe { fork() } {
            Ok(ForkResult::Child) => {
                let stdio = [input, output, error];
                return Ok(Some(Task { socket, start, stdio, stack, owner, offered }));
            }
            Ok(ForkResult::Parent { .. }) => {}
            Err(error) => {
                // A manager that is gone reads nothing more.
                let _ = wire::send(&socket, &Notice::refused(&error.into()), &[]);
            }
        }
    }
    // No request can be made any more, and the manager sees it at once.
    drop(requests);
    while matches!(wait(WaitOptions::empty()), Ok(_) | Err(Errno::INTR)) {}
    Ok(None)
}
