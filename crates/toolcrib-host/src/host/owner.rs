//! Notices the end of the process that owns the host.

use std::{os::fd::OwnedFd, os::unix::net::UnixStream};

use tokio::io::{Interest, unix::AsyncFd};

/// Waits until the process that made the pair of sockets has ended. A fork of it may hold a copy of its end, which then
/// does not close. Never ready where the process is not known.
pub(super) fn ended(socket: &UnixStream) -> impl Future<Output = ()> + use<> {
    #[expect(deprecated, reason = "sound here: an owned descriptor stays the same while registered")]
    let owner = handle(socket).and_then(|handle| AsyncFd::with_interest(handle, Interest::READABLE).ok());
    async move {
        match owner {
            // Readable once it has ended.
            Some(owner) if owner.readable().await.is_ok() => {}
            _ => std::future::pending().await,
        }
    }
}

#[cfg(target_os = "linux")]
fn handle(socket: &UnixStream) -> Option<OwnedFd> {
    use rustix::{net::sockopt::socket_peercred, process};
    let owner = socket_peercred(socket).ok()?.pid;
    process::pidfd_open(owner, process::PidfdFlags::NONBLOCK).ok()
}

#[cfg(not(target_os = "linux"))]
fn handle(_: &UnixStream) -> Option<OwnedFd> {
    None
}
