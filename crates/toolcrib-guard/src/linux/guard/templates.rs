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
//! # Protocol
//! A template is started with a pipe as standard input, a pipe to the manager as standard output and error, a stream
//! socket to the zygote as descriptor 3, and a packet socket to the manager, for its reports, as 4. It leads a session. It
//! ends when one of the two sockets is closed.
//! 1. The zygote sends the number of a request (8 bytes, little endian) with these files: the [`Start`] in a memory file
//!    ([`write_fork`](super::start::write_fork)), the guard's end of its socket to the manager, the server's standard
//!    input, output and error, the read end of a pipe, and a pidfd of the manager where the kernel has pidfds.
//! 2. The template clones a fork with `CLONE_PARENT` and answers with the number and the id of the fork (8 bytes each), or
//!    -1 if it refuses. Before that it sends the reason to the manager, as [`Notice::Refused`]. It keeps none of the files.
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
    io,
    os::fd::{AsFd, FromRawFd, OwnedFd, RawFd},
};

use nix::sys::signal::SigSet;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::{Errno, dup2, fcntl_dupfd_cloexec},
    process::{
        Pid, Signal, WaitId, WaitIdOptions, WaitOptions, chdir, getpid, getppid, getsid, kill_process,
        set_parent_process_death_signal, setsid, waitid, waitpid,
    },
    stdio::{dup2_stderr, dup2_stdin, dup2_stdout},
};

use super::{
    main::{EXEC_FAILED, report_start},
    stack::Stack,
    start::Start,
    wire::{self, ForkOrder, Graces, Notice, Packet},
    zygote::{KnownGuard, Owner},
};

/// The number of the template's socket to the zygote, and of that to the manager.
const NUMBERS: [RawFd; 2] = [3, 4];
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
            Ok((pid, template)) => {
                report_start(&manager, getpid(), pid, pid);
                let sockets = Some(Sockets { manager, template });
                self.running.push(Template { pid, sockets, pending: HashMap::new(), next: 0 });
            }
            // If the manager is gone, the error cannot be reported.
            Err(error) => drop(wire::send(&manager, &Notice::refused(&error), &[])),
        }
    }

    /// The files to wait for.
    pub(super) fn files(&self) -> impl Iterator<Item = PollFd<'_>> {
        let sockets = self.running.iter().filter_map(|template| template.sockets.as_ref());
        let sockets = sockets.flat_map(|sockets| [&sockets.manager, &sockets.template]);
        let released = self.released.iter().flat_map(|fork| [&fork.control, &fork.release]);
        let closed = released.map(|file| PollFd::new(file, PollFlags::empty()));
        sockets.map(|file| PollFd::new(file, PollFlags::IN)).chain(closed)
    }

    /// Handles what has arrived from the manager and from the templates. New guards are added to `guards`.
    pub(super) fn work(&mut self, owner: &Owner, guards: &mut HashMap<Pid, KnownGuard>) {
        for template in &mut self.running {
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

/// Starts a template with its standard input, its output, and its sockets to the zygote and to the manager.
fn launch(start: &Start, files: [&OwnedFd; 4]) -> io::Result<Pid> {
    // Above the numbers that they get: none of them overwrites another one.
    let [stdin, output, zygote, manager] = files.map(|file| fcntl_dupfd_cloexec(file, NUMBERS[1] + 1));
    let stack = Stack::new()?;
    let mut child = Child {
        start,
        stdin: stdin?,
        output: output?,
        sockets: [zygote?, manager?],
        zygote: getpid(),
        failure: None,
    };
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    #[expect(unsafe_code, reason = "no safe way to do something between fork and exec")]
    // SAFETY: as for the server of a guard: this process has one thread, which the kernel suspends until the child has
    // executed a program or has ended. The child has its own stack, and does not allocate or free memory.
    let pid = unsafe { libc::clone(become_template, stack.top(), flags, (&raw mut child).cast()) };
    let pid = Pid::from_raw(pid).filter(|_| pid > 0).ok_or_else(io::Error::last_os_error)?;
    match child.failure {
        None => Ok(pid),
        Some(error) => {
            while matches!(waitpid(Some(pid), WaitOptions::empty()), Err(Errno::INTR)) {}
            Err(error)
        }
    }
}

/// The process that becomes the template.
struct Child<'a> {
    start: &'a Start,
    stdin: OwnedFd,
    output: OwnedFd,
    sockets: [OwnedFd; 2],
    zygote: Pid,
    failure: Option<io::Error>,
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
            #[expect(unsafe_code, reason = "a descriptor that is to have this number")]
            // SAFETY: this process has its own copy of the descriptor table, in which no value is used that owned the
            // number.
            let mut target = unsafe { OwnedFd::from_raw_fd(number) };
            dup2(socket, &mut target)?;
            std::mem::forget(target);
        }
        chdir(&*self.start.folder)?;
        Err(self.start.exec().into())
    }
}

extern "C" fn become_template(child: *mut c_void) -> c_int {
    #[expect(unsafe_code, reason = "a function of C is given but an address")]
    // SAFETY: the address is that of a `Child`, see `launch`.
    let child = unsafe { &mut *child.cast::<Child<'_>>() };
    child.failure = child.become_template().err();
    EXEC_FAILED
}
