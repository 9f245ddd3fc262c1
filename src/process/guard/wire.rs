//! What a manager and its guard tell each other: one JSON value in each packet of a local socket.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    config::StopGrace,
    process::{StopOutcome, confine::Wanted},
};

/// Longest packet. A local socket takes somewhat more than this by default (net.core.wmem_default).
const MAX_PACKET: usize = 64 << 10;

/// From the manager to the guard. The end of the stream means [`Order::Stop`] with the graces of the start.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Order {
    /// The first packet; carries the read end of the server's standard input.
    Start(Start),
    /// Begin the stop ladder now. The server's input is closed at the same time.
    Stop(Graces),
    /// Kill everything now.
    Kill,
}

/// How the server is to be started.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Start {
    /// Whose end is the end of the server: the manager's process.
    pub(super) owner: i32,
    /// The stop ladder when the manager ends without an order.
    pub(super) graces: Graces,
    /// What it may use and reach.
    pub(super) wanted: Wanted,
    /// `LD_LIBRARY_PATH` of the server: the guard runs with that of the manager.
    pub(super) library_path: Option<String>,
}

/// Waits of the stop ladder, in milliseconds.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Graces {
    eof_ms: u64,
    term_ms: u64,
}

impl Graces {
    pub(super) fn eof(self) -> Duration {
        Duration::from_millis(self.eof_ms)
    }

    pub(super) fn term(self) -> Duration {
        Duration::from_millis(self.term_ms)
    }
}

impl From<StopGrace> for Graces {
    fn from(grace: StopGrace) -> Self {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Self { eof_ms: millis(grace.eof), term_ms: millis(grace.term) }
    }
}

/// From the guard to the manager. The end of the stream without [`Notice::Gone`]: the guard was killed.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Notice {
    /// The server runs.
    Started {
        /// Its process, which leads its own group.
        pid: i32,
    },
    /// There is no server.
    Refused {
        /// The operating system's number of the error, if it has one.
        errno: Option<i32>,
        /// The error in words.
        what: String,
    },
    /// The server has ended; others that it started may be there still.
    Exited {
        /// As `wait` gives it.
        status: i32,
        /// The strongest means that had been used until then.
        outcome: StopOutcome,
        /// The budget that it hit, in words.
        exceeded: Option<String>,
    },
    /// Nobody is left. The last packet.
    Gone {
        /// Processes that the server left behind and that had to be killed.
        killed: usize,
        /// Whether it left anybody behind at all.
        helpers: bool,
    },
}

/// A pair of connected sockets that keep packets apart and are not inherited.
pub(super) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Sends without waiting: the few packets there are fit into the socket's buffer.
pub(super) fn send(socket: impl AsFd, value: &impl Serialize, file: Option<&OwnedFd>) -> io::Result<()> {
    let packet = serde_json::to_vec(value)?;
    if packet.len() > MAX_PACKET {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "what the guard is told is too long"));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let files = file.map(|file| [file.as_fd()]);
    if let Some(files) = &files {
        ancillary.push(SendAncillaryMessage::ScmRights(files));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(socket, &[IoSlice::new(&packet)], &mut ancillary, flags)?;
    Ok(())
}

/// The next packet, and the file that came with it; nothing at the end of the stream.
pub(super) fn receive<T: DeserializeOwned>(
    socket: impl AsFd,
    wait: bool,
) -> io::Result<Option<(T, Option<OwnedFd>)>> {
    let mut packet = vec![0; MAX_PACKET];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | if wait { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
    let got = loop {
        match recvmsg(&socket, &mut [IoSliceMut::new(&mut packet)], &mut ancillary, flags) {
            // Reset: the peer ended without reading our last word, which is told once, before what it had sent.
            Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNRESET) => {}
            got => break got?,
        }
    };
    if got.bytes == 0 {
        return Ok(None);
    }
    if got.flags.contains(ReturnFlags::TRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a packet was longer than the limit"));
    }
    let file = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    Ok(Some((serde_json::from_slice(&packet[..got.bytes])?, file)))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write, pipe};

    use super::*;

    #[test]
    fn packets_keep_their_bounds_and_carry_a_file() {
        let (ours, theirs) = pair().unwrap();
        let (mut reader, writer) = pipe().unwrap();
        send(&ours, &Order::Kill, Some(&OwnedFd::from(writer))).unwrap();
        send(&ours, &Order::Stop(StopGrace::default().into()), None).unwrap();
        drop(ours);
        let (first, file) = receive::<Order>(&theirs, false).unwrap().unwrap();
        assert!(matches!(first, Order::Kill), "{first:?}");
        std::fs::File::from(file.unwrap()).write_all(b"through").unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "through");
        let (second, file) = receive::<Order>(&theirs, false).unwrap().unwrap();
        let Order::Stop(graces) = second else { panic!("{second:?}") };
        assert_eq!((graces.eof(), graces.term()), (StopGrace::default().eof, StopGrace::default().term));
        assert!(file.is_none());
        assert!(receive::<Order>(&theirs, false).unwrap().is_none());
    }

    #[test]
    fn the_last_word_is_heard_though_ours_was_not() {
        let (ours, theirs) = pair().unwrap();
        send(&ours, &Order::Kill, None).unwrap();
        send(&theirs, &Notice::Gone { killed: 1, helpers: true }, None).unwrap();
        drop(theirs);
        let (notice, _) = receive::<Notice>(&ours, false).unwrap().unwrap();
        assert!(matches!(notice, Notice::Gone { killed: 1, helpers: true }), "{notice:?}");
        assert!(receive::<Notice>(&ours, false).unwrap().is_none());
    }

    #[test]
    fn an_empty_socket_does_not_block_and_a_monster_is_refused() {
        let (ours, theirs) = pair().unwrap();
        assert_eq!(receive::<Order>(&ours, false).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let what = "x".repeat(MAX_PACKET);
        send(&theirs, &Notice::Refused { errno: None, what }, None).unwrap_err();
    }
}
