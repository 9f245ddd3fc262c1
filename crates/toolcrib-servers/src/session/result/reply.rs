//! Reasons why a request has no reply, and the time that it may take.

use std::time::Duration;

use tokio::time::Instant;

use crate::process::WriteError;

/// The reason why a request has no reply.
pub(in crate::session) enum NoReply {
    /// The connection had ended before.
    NotSent,
    /// The request was not written whole.
    NotWritten(WriteError),
    /// The connection ended. `never_left` if it is known that the server has not read a byte of the request.
    Ended { never_left: bool },
    /// Its time is over.
    Timeout(Duration),
    /// It was refused for want of access, and not carried out. The session goes on.
    Unauthorized(MissingAccess),
    /// It was refused before it was carried out. The session goes on.
    Refused(Refusal),
    /// The server does not know the session, in its words, and has not carried it out.
    SessionEnded(String),
    /// Whether it was carried out is not known, and why. The session goes on.
    Unknown(String),
}

/// A refusal over HTTP.
#[derive(Debug)]
pub(in crate::session) struct Refusal {
    pub(in crate::session) status: u16,
    /// The reason, with the server's words.
    pub(in crate::session) why: String,
}

/// Why a remote server refuses a request, and what gives access to it.
#[derive(Debug)]
pub(in crate::session) struct MissingAccess {
    pub(in crate::session) why: String,
    pub(in crate::session) help: String,
}

/// The time that a call may take: so long without a sign of life, and so long with.
#[derive(Clone, Copy)]
pub(in crate::session) struct CallLimits<'a> {
    pub(in crate::session) limit: Duration,
    pub(in crate::session) ceiling: Duration,
    /// Called while there is no answer.
    pub(in crate::session) notice: Option<SlowCallNotice<'a>>,
    /// How long a server that has no time is waited for, if not up to `limit`.
    pub(in crate::session) until: Option<Instant>,
}

impl CallLimits<'_> {
    /// So long, whatever comes meanwhile.
    pub(in crate::session) fn of(limit: Duration) -> Self {
        Self { limit, ceiling: limit, notice: None, until: None }
    }
}

/// Tells how long a call has been without an answer, each time that it is so much longer.
#[derive(Clone, Copy)]
pub(in crate::session) struct SlowCallNotice<'a> {
    pub(in crate::session) every: Duration,
    pub(in crate::session) tell: &'a (dyn Fn(Duration) + Send + Sync),
}
