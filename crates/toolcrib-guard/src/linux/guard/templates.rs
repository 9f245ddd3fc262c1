//! Templates: processes that have loaded what many servers need, and start a server by a fork. This is the zygote's side.
//!
//! A template is a child of the zygote. On an order of the manager the zygote asks it for a fork. The template clones one
//! that is a child of the zygote too, reports its id, and goes on. The fork waits until the zygote knows it as a guard.
//! Then it forks once more, which becomes the server, and executes this executable as the guard of that
//! ([`adopt`](super::adopt)). So the server has the same ancestors as any other.
//!
//! A template ends with its socket to the manager, with the zygote, and when it does not keep to the protocol. Its
//! servers go on.
//!
//! The zygote does not wait while the program of a template is executed: that may take as long as the disk of an
//! interpreter does not answer.
//!
//! # Protocol
//! A template is started with a pipe as standard input, a pipe to the manager as standard output and error, a stream
//! socket to the zygote as descriptor 3, and a packet socket to the manager, for its reports, as 4. It leads a session. It
//! ends when one of the two sockets is closed.
//! 1. The zygote sends the number of a request (8 bytes, little endian) with these files: the [`Start`] in a memory file
//!    ([`write_fork`](super::start::write_fork)), the guard's end of its socket to the manager, the server's standard
//!    input, output and error, the read end of a pipe, and a pidfd of the manager where the kernel has pidfds.
//! 2. The template clones a fork with `CLONE_PARENT` and answers with the number and the id of the fork (8 bytes each), or
//!    -1 if it refuses. Before that it sends the reason to the manager, as [`Notice::Refused`]. It keeps none of the files.
//!    The zygote passes the id on to the manager, as [`Notice::Forked`].
//! 3. The fork reads a byte from the pipe; it exits if the pipe is closed. It starts a session, becomes a subreaper and
//!    forks the server, to which it is connected by a pair of packet sockets. It keeps only the socket to the manager as
//!    descriptor 3, the start as 4, its end of the pair as 5 and the pidfd as 6, has no blocked or ignored signals, and
//!    executes `/proc/PPID/exe` with `guard_args` and the id of the server as arguments, and `guard_env`.
//! 4. The server has itself killed with its parent, sets up its files, group, folder, environment and names, and sends
//!    `ok` (or `errno N`, or `why WORDS`). It waits for `go`. Before that `obey` may arrive, where it is root and has a
//!    resource limit: it gives up CAP_SYS_RESOURCE for good and sends `ok` again. At anything else it exits.

use std::{
    collections::HashMap,
    convert::Infallible,
    ffi::{c_int, c_void},
    fs::File,
    io::{self, Read},
    os::fd::{AsFd, FromRawFd, OwnedFd, RawFd},
};

use nix::sys::signal::SigSet;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::{DupFlags, Errno, dup2, dup3, fcntl_dupfd_cloexec, ioctl_fionbio},
    process::{
        Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, chdir, getpid, getppid, getsid, kill_process,
        pidfd_open, set_parent_process_death_signal, setsid, waitid,
    },
    stdio::{dup2_stderr, dup2_stdin, dup2_stdout},
};

use super::{
    main::EXEC_FAILED,
    stack::Stack,
    start::Start,
    wire::{self, ForkOrder, Graces, Notice, Packet},
    zygote::{KnownGuard, Owner},
};
use crate::linux::inherited;

/// The number of the template's socket to the zygote, and of that to the manager.
const NUMBERS: [RawFd; 2] = [3, 4];
/// The number of the pipe on which it tells why its program could not be executed. It closes when that was.
const FAILURE: RawFd = 5;
/// Bytes of the answer to a request for a fork: the number of the request, and the id of the fork.
const ANSWER: usize = 16;

/// The templates of a zygote.
#[derive(Default)]
pub(super) struct Templates {
    running: Vec<Template>,
    /// Forks that were told to go on and have not executed the guard's program yet.
    released: Vec<ReleasedFork>,
}

struct Template {
    pid: Pid,
    /// `None` from when it is killed until it was reaped.
    sockets: Option<Sockets>,
    /// The launch of its program. `None`: it was executed, or could not be.
    launching: Option<Launching>,
    /// Requests that it has not answered, by their numbers.
    pending: HashMap<u64, PendingFork>,
    next: u64,
}

struct Sockets {
    manager: OwnedFd,
    template: OwnedFd,
}

/// A fork that the template was asked for. If it is dropped, the fork ends.
struct PendingFork {
    /// The guard's end of its socket to the manager, to see whether the manager still waits.
    control: OwnedFd,
    /// The fork goes on once a byte was written.
    release: OwnedFd,
    graces: Graces,
}

/// A fork that was told to go on. It may hang still, in what its interpreter does at a fork.
struct ReleasedFork {
    pid: Pid,
    /// See [`PendingFork`].
    control: OwnedFd,
    /// Nobody reads from this pipe any more once the fork has closed it, just before it executes the guard's program.
    release: OwnedFd,
}

impl ReleasedFork {
    /// Whether it is still on its way. Kills it if the manager has given it up.
    fn is_on_its_way(&self) -> bool {
        if is_closed(&self.release) {
            return false;
        }
        let is_given_up = is_closed(&self.control);
        if is_given_up {
            // Not reaped yet, so its id is not recycled.
            let _ = kill_process(self.pid, Signal::KILL);
        }
        !is_given_up
    }
}

impl Templates {
    /// Starts a template for the request `start` and reports its id.
    pub(super) fn start(&mut self, start: &[u8], mut files: Vec<OwnedFd>) {
        // Fewer files arrive if the limit of open files was reached. The manager sees the socket close.
        let long = if files.len() == 5 { files.pop() } else { None };
        let Ok([manager, stdin, output, reports]) = <[OwnedFd; 4]>::try_from(files) else { return };
        let started = wire::queue().and_then(|(ours, theirs)| {
            let start = Start::read(start, long)?;
            Ok((launch(&start, [&stdin, &output, &theirs, &reports])?, ours))
        });
        match started {
            Ok(((pid, launching), template)) => {
                let (sockets, launching) = (Some(Sockets { manager, template }), Some(launching));
                self.running.push(Template { pid, sockets, launching, pending: HashMap::new(), next: 0 });
            }
            // If the manager is gone, the error cannot be reported.
            Err(error) => drop(wire::send(&manager, &Notice::refused(&error), &[])),
        }
    }

    /// The files to wait for.
    pub(super) fn files(&self) -> impl Iterator<Item = PollFd<'_>> {
        let sockets = self.running.iter().filter_map(|template| template.sockets.as_ref());
        let sockets = sockets.flat_map(|sockets| [&sockets.manager, &sockets.template]);
        let launching = self.running.iter().filter_map(|template| template.launching.as_ref());
        let released = self.released.iter().flat_map(|fork| [&fork.control, &fork.release]);
        let closed = released.map(|file| PollFd::new(file, PollFlags::empty()));
        let launching = launching.map(|launching| PollFd::new(&launching.failure, PollFlags::IN));
        sockets.map(|file| PollFd::new(file, PollFlags::IN)).chain(launching).chain(closed)
    }

    /// Handles what has arrived from the manager and from the templates. New guards are added to `guards`.
    pub(super) fn work(&mut self, owner: &Owner, guards: &mut HashMap<Pid, KnownGuard>) {
        for template in &mut self.running {
            template.see_launch();
            template.read_order(owner);
            self.released.extend(template.read_answer(guards));
        }
        self.settle();
    }

    /// Handles what has become of the forks that were told to go on.
    pub(super) fn settle(&mut self) {
        self.released.retain(ReleasedFork::is_on_its_way);
    }

    /// Whether a child of the zygote is a template, or a fork of one that waits to become a guard.
    pub(super) fn has(&self, child: Pid) -> bool {
        // Until the zygote knows it, a fork has the session of its template, which no server has.
        let is_fork =
            |template: &Template| !template.pending.is_empty() && getsid(Some(child)) == Ok(template.pid);
        self.running.iter().any(|template| template.pid == child || is_fork(template))
    }

    /// Forgets a child that was reaped. Returns whether it was a template.
    pub(super) fn forget(&mut self, child: Pid) -> bool {
        self.released.retain(|fork| fork.pid != child);
        self.running.iter_mut().filter(|template| template.pid == child).for_each(Template::see_launch);
        let before = self.running.len();
        self.running.retain(|template| template.pid != child);
        self.running.len() < before
    }

    /// Ends all of them.
    pub(super) fn end_all(&mut self) {
        self.running.iter_mut().for_each(Template::end);
    }
}

impl Template {
    /// Tells the manager once its program was executed, or why it was not.
    fn see_launch(&mut self) {
        let (Some(launching), Some(sockets)) = (&mut self.launching, &self.sockets) else { return };
        let mut errno = [0; 4];
        let notice = match launching.failure.read(&mut errno) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Ok(0) => Notice::Started { guard: getpid().as_raw_pid(), pid: self.pid.as_raw_pid() },
            Ok(_) => Notice::refused(&io::Error::from_raw_os_error(i32::from_ne_bytes(errno))),
            Err(error) => Notice::refused(&error),
        };
        let handle: Vec<_> = launching.handle.iter().map(AsFd::as_fd).collect();
        let is_started = matches!(notice, Notice::Started { .. });
        // If the manager is gone, its socket tells that.
        let _ = wire::send(&sockets.manager, &notice, if is_started { &handle } else { &[] });
        self.launching = None;
        if !is_started {
            self.end();
        }
    }

    /// Handles the next order of the manager, if there is one.
    fn read_order(&mut self, owner: &Owner) {
        let Some(sockets) = &self.sockets else { return };
        match wire::receive::<ForkOrder>(&sockets.manager, &mut [0; ForkOrder::MAX]) {
            Ok(Some((order, files))) => self.ask(&order, files, owner),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok(None) | Err(_) => self.end(),
        }
    }

    /// Asks the template for a fork.
    fn ask(&mut self, order: &ForkOrder, files: Vec<OwnedFd>, owner: &Owner) {
        // Fewer files arrive if the limit of open files was reached. The manager sees the socket close.
        let Ok([start, control, stdio @ ..]) = <[OwnedFd; 5]>::try_from(files) else { return };
        let Some(sockets) = &self.sockets else { return };
        // The manager gives up requests that take too long: only their numbers are left in the queue.
        self.pending.retain(|_, fork| !is_closed(&fork.control));
        let number = self.next;
        self.next += 1;
        let asked = io::pipe().and_then(|(wait, release)| {
            let wait = OwnedFd::from(wait);
            let files = [&start, &control].into_iter().chain(&stdio).chain([&wait]).chain(&owner.handle);
            let files: Vec<_> = files.map(AsFd::as_fd).collect();
            wire::send_bytes(&sockets.template, &number.to_le_bytes(), &files)?;
            Ok(release.into())
        });
        match asked {
            Ok(release) => {
                self.pending.insert(number, PendingFork { control, release, graces: order.graces });
            }
            Err(error) => drop(wire::send(&control, &Notice::refused(&error), &[])),
        }
    }

    /// Handles the next answer of the template, if there is one. Returns the fork that goes on.
    fn read_answer(&mut self, guards: &mut HashMap<Pid, KnownGuard>) -> Option<ReleasedFork> {
        let mut answer = [0; ANSWER];
        let received = wire::receive_bytes(&self.sockets.as_ref()?.template, &mut answer);
        match received.map(|(answer, _)| answer.as_chunks()) {
            Ok(([number, fork], [])) => {
                self.release(u64::from_le_bytes(*number), i64::from_le_bytes(*fork), guards)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            _ => {
                self.end();
                None
            }
        }
    }

    /// Lets a fork go on as a guard, if the manager still wants it. Otherwise the fork ends.
    fn release(
        &mut self,
        number: u64,
        fork: i64,
        guards: &mut HashMap<Pid, KnownGuard>,
    ) -> Option<ReleasedFork> {
        let pending = self.pending.remove(&number);
        // A negative number: it refuses, and has told the manager why.
        let pid = i32::try_from(fork).ok().filter(|fork| *fork > 0).and_then(Pid::from_raw)?;
        if guards.contains_key(&pid) || !self.has_forked(pid) {
            let error =
                io::Error::other("the template has named a process that is not a fork of it, or has ended");
            let _ = wire::send(pending?.control, &Notice::refused(&error), &[]);
            return None;
        }
        let Some(PendingFork { control, release, graces }) = pending.filter(|fork| !is_closed(&fork.control))
        else {
            let _ = kill_process(pid, Signal::KILL);
            return None;
        };
        guards.insert(pid, KnownGuard::Forked(graces));
        // Before it goes on, and tells more.
        let _ = wire::send(&control, &Notice::Forked { pid: pid.as_raw_pid() }, &[]);
        // If this fails the fork has ended, and is reaped soon.
        let _ = rustix::io::write(&release, &[1]);
        Some(ReleasedFork { pid, control, release })
    }

    /// Whether a process is a child of the zygote that was not reaped and has the session of this template.
    fn has_forked(&self, pid: Pid) -> bool {
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(pid), look).is_ok() && getsid(Some(pid)) == Ok(self.pid)
    }

    fn end(&mut self) {
        self.sockets = None;
        self.launching = None;
        self.pending.clear();
        // Not reaped yet, so its id is not recycled.
        let _ = kill_process(self.pid, Signal::KILL);
    }
}

/// Whether the other end of a socket is closed.
pub(super) fn is_closed(socket: &OwnedFd) -> bool {
    let mut files = [PollFd::new(socket, PollFlags::empty())];
    poll(&mut files, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// A template whose program is being executed.
struct Launching {
    /// See [`FAILURE`].
    failure: File,
    /// Its pidfd, where the kernel has them.
    handle: Option<OwnedFd>,
}

/// Starts a template with its standard input, its output, and its sockets to the zygote and to the manager.
fn launch(start: &Start, files: [&OwnedFd; 4]) -> io::Result<(Pid, Launching)> {
    // Above the numbers that they get: none of them overwrites another one.
    let [stdin, output, zygote, manager] = files.map(|file| fcntl_dupfd_cloexec(file, FAILURE + 1));
    let (failure, told) = io::pipe()?;
    let failure = OwnedFd::from(failure);
    ioctl_fionbio(&failure, true)?;
    let stack = Stack::new()?;
    let mut child = Child {
        start,
        stdin: stdin?,
        output: output?,
        sockets: [zygote?, manager?],
        told: fcntl_dupfd_cloexec(told, FAILURE + 1)?,
        zygote: getpid(),
    };
    #[expect(unsafe_code, reason = "no safe way to do something between fork and exec")]
    // SAFETY: the child has a copy of the memory of this process, which has one thread, and its own stack in it.
    let pid = unsafe { libc::clone(become_template, stack.top(), libc::SIGCHLD, (&raw mut child).cast()) };
    let pid = Pid::from_raw(pid).filter(|_| pid > 0).ok_or_else(io::Error::last_os_error)?;
    // Not reaped yet, so its id is not recycled.
    let handle = pidfd_open(pid, PidfdFlags::empty()).ok();
    Ok((pid, Launching { failure: failure.into(), handle }))
}

/// The process that becomes the template.
struct Child<'a> {
    start: &'a Start,
    stdin: OwnedFd,
    output: OwnedFd,
    sockets: [OwnedFd; 2],
    told: OwnedFd,
    zygote: Pid,
}

impl Child<'_> {
    /// Returns only if that fails.
    fn become_template(&self) -> io::Result<Infallible> {
        SigSet::empty().thread_set_mask()?;
        set_parent_process_death_signal(Some(Signal::KILL))?;
        if getppid() != Some(self.zygote) {
            return Err(Errno::OWNERDEAD.into());
        }
        // Its forks are known by its session until they are guards.
        setsid()?;
        dup2_stdin(&self.stdin)?;
        dup2_stdout(&self.output)?;
        dup2_stderr(&self.output)?;
        for (socket, number) in self.sockets.iter().zip(NUMBERS) {
            let mut target = target(number);
            dup2(socket, &mut target)?;
            std::mem::forget(target);
        }
        // While it hangs it would hide the end of the zygote and of others from the manager.
        inherited::close_inherited(FAILURE + 1);
        chdir(&*self.start.folder)?;
        Err(self.start.exec().into())
    }
}

/// A descriptor that is to have this number.
fn target(number: RawFd) -> OwnedFd {
    #[expect(unsafe_code, reason = "a descriptor by its number")]
    // SAFETY: the child of `launch` has its own copy of the descriptor table, in which no value is used that owned the
    // number. What is made here is forgotten.
    unsafe {
        OwnedFd::from_raw_fd(number)
    }
}

extern "C" fn become_template(child: *mut c_void) -> c_int {
    #[expect(unsafe_code, reason = "a function of C is given but an address")]
    // SAFETY: the address is that of a `Child`, see `launch`.
    let child = unsafe { &*child.cast::<Child<'_>>() };
    let mut failure = target(FAILURE);
    if dup3(&child.told, &mut failure, DupFlags::CLOEXEC).is_ok()
        && let Err(error) = child.become_template()
    {
        let errno = error.raw_os_error().unwrap_or_default();
        let _ = rustix::io::write(&failure, &errno.to_ne_bytes());
    }
    std::mem::forget(failure);
    EXEC_FAILED
}
