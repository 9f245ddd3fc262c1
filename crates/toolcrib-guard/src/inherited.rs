//! Properties that a process has from its starter without having asked for them: open descriptors, and signals that are ignored
//! or blocked.

use std::{
    io,
    os::{
        fd::{BorrowedFd, RawFd},
        unix::net::UnixStream,
    },
};

use rustix::{io::FdFlags, net::SocketType, process::Signal};

use crate::platform;

/// The first descriptor behind the standard streams.
pub(crate) const FIRST: RawFd = 3;
/// Most descriptors that are tried one by one, where the system does not list them.
const TRIED: RawFd = 1 << 16;
/// Where the system lists the open descriptors of this process.
const LIST: &str = if cfg!(target_os = "linux") { "/proc/self/fd" } else { "/dev/fd" };
/// Signals that users ignore on purpose: `nohup`, and jobs in the background of a script.
const OF_THE_TERMINAL: [Signal; 6] =
    [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TSTP, Signal::TTIN, Signal::TTOU];
/// No system has a signal with a greater number: Linux has real-time signals up to this.
const LAST_SIGNAL: i32 = 64;

/// Keeps what this process inherited from its servers and from every other program that it starts: each descriptor
/// from 3 on is closed when a program is executed, signals have their default actions, and none is blocked. The
/// signals of a terminal that are ignored stay so if `keep_terminal`; so does SIGPIPE, which Rust programs ignore.
///
/// For the beginning of `main`, before there are threads. The library does not call it: descriptors and signals
/// are the program's own. Servers under a guard do not need it, as the process that guards come from does the same.
/// Without a guard a server has what the program leaves open, ignored and blocked; and the helpers of a server that
/// ends while the program ignores SIGCHLD can be ended only where they are found by their mark (Linux).
pub fn reset_inherited(keep_terminal: bool) {
    if !platform::close_all_on_exec() {
        each_descriptor(close_on_exec);
    }
    let of_the_terminal = |signal| OF_THE_TERMINAL.iter().any(|known| known.as_raw() == signal);
    reset_signals(|signal| signal == Signal::PIPE.as_raw() || keep_terminal && of_the_terminal(signal));
    platform::unblock_signals();
}

/// A Unix stream socket that this process has inherited under a number. It is a copy, which programs that are executed do
/// not get; that under the number stays open.
///
/// # Errors
/// There is none under the number, or it is something else.
pub fn inherited_socket(number: RawFd) -> io::Result<UnixStream> {
    #[expect(unsafe_code, reason = "a descriptor that is known by its number alone")]
    // SAFETY: it is used for this one call, which fails where it is not open.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    let socket = rustix::io::fcntl_dupfd_cloexec(borrowed, FIRST)?;
    if rustix::net::sockopt::socket_type(&socket)? != SocketType::STREAM {
        return Err(io::Error::other("it is no stream socket"));
    }
    let socket = UnixStream::from(socket);
    // An error, if it is a socket of another family.
    socket.local_addr()?;
    Ok(socket)
}

/// Whether SIGHUP is ignored: this process is to outlive its terminal (`nohup`).
pub fn ignores_hangup() -> bool {
    platform::is_ignored(Signal::HUP.as_raw())
}

/// Gives every signal that is ignored its default action, except where `keep` says otherwise. A handler is the program's
/// own, or the C library's.
pub(crate) fn reset_signals(keep: impl Fn(i32) -> bool) {
    for signal in (1..=LAST_SIGNAL).filter(|signal| platform::is_ignored(*signal) && !keep(*signal)) {
        platform::set_default_action(signal);
    }
}

fn close_on_exec(descriptor: RawFd) {
    #[expect(unsafe_code, reason = "a descriptor that is known by its number alone")]
    // SAFETY: it is used for this one call, which fails where it is not open and changes nobody's file.
    let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let _ = rustix::io::fcntl_setfd(borrowed, FdFlags::CLOEXEC);
}

/// Calls `with` for each descriptor behind the standard streams that may be open.
pub(crate) fn each_descriptor(with: impl Fn(RawFd)) {
    let listed = std::fs::read_dir(LIST).map(|list| {
        let number = |entry: std::fs::DirEntry| entry.file_name().to_str()?.parse::<RawFd>().ok();
        // All of them before the first one is touched: one is that of the list itself.
        list.flatten().filter_map(number).collect::<Vec<_>>()
    });
    match listed {
        Ok(numbers) => numbers.into_iter().filter(|number| *number >= FIRST).for_each(with),
        Err(_) => {
            let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
            let limit = limit.and_then(|limit| RawFd::try_from(limit).ok()).unwrap_or(TRIED).min(TRIED);
            (FIRST..limit).for_each(with);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn without_close_range_all_descriptors_are_marked() {
        let file = rustix::io::dup(io::stderr()).unwrap();
        let found = std::cell::RefCell::new(Vec::new());
        each_descriptor(|descriptor| found.borrow_mut().push(descriptor));
        let found = found.into_inner();
        let marked = || rustix::io::fcntl_getfd(&file).unwrap().contains(FdFlags::CLOEXEC);
        assert!(
            found.contains(&file.as_raw_fd()) && found.iter().all(|number| *number >= FIRST),
            "{found:?}"
        );
        assert!(!marked());
        close_on_exec(file.as_raw_fd());
        assert!(marked());
    }
}
