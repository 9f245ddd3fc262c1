//! The end of this program with a launcher that stays above it: npm's, where Node cannot replace itself by a program.

use std::{
    io::{ErrorKind, Read as _},
    os::unix::net::UnixStream,
    thread,
    time::Duration,
};

use rustix::process::{Signal, getpid, kill_process};

use crate::inherited::inherited_socket;

/// Variable of a launcher: `FD:PID`. The descriptor is one end of a pair of sockets that the process with this pid has made, and
/// holds the other end of. Nothing is sent over it.
const VARIABLE: &str = "TOOLCRIB_LAUNCHER";
/// Time after which this program is ended at once.
const GRACE: Duration = Duration::from_secs(30);

/// Ends this program like SIGTERM once its launcher has ended, and like a second SIGTERM some time later. Nothing happens for a
/// program without a launcher, or for one that only inherited the variable.
pub fn end_with_launcher() {
    let Some(socket) = std::env::var(VARIABLE).ok().and_then(|value| launcher(&value)) else { return };
    let watching = thread::Builder::new().name("launcher".to_owned()).spawn(move || {
        until_closed(socket);
        for _ in 0..2 {
            let _ = kill_process(getpid(), Signal::TERM);
            thread::sleep(GRACE);
        }
    });
    if let Err(error) = watching {
        tracing::warn!(%error, "the end of the launcher is not watched");
    }
}

fn launcher(value: &str) -> Option<UnixStream> {
    let (number, pid) = value.split_once(':')?;
    let socket = inherited_socket(number.parse().ok()?).ok()?;
    is_of(&socket, pid.parse().ok()?).then_some(socket)
}

/// Whether this process has made the pair of sockets.
#[cfg(target_os = "linux")]
fn is_of(socket: &UnixStream, pid: i32) -> bool {
    rustix::net::sockopt::socket_peercred(socket).is_ok_and(|peer| peer.pid.as_raw_nonzero().get() == pid)
}

#[cfg(not(target_os = "linux"))]
fn is_of(_: &UnixStream, _: i32) -> bool {
    true
}

fn until_closed(mut socket: UnixStream) {
    let _ = socket.set_nonblocking(false);
    let mut byte = [0];
    loop {
        match socket.read(&mut byte) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}
