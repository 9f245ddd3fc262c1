//! The outcome of a tool call.

use std::time::Duration;

use rmcp::model::{ErrorData, ServerResult};
use serde_json::value::RawValue;

use super::{decode, sdk_types};
use crate::{process::WriteError, tool::ToolResult};

/// An answer of the server's.
pub(super) enum Reply {
    Result(ToolResult),
    /// The server refused, in the protocol's own way.
    Refused(ErrorData),
    /// An answer of another kind.
    Other(Box<ServerResult>),
}

/// Why a request has no reply.
pub(super) enum NoReply {
    /// The connection had ended before.
    NotSent,
    /// The request was not written whole.
    NotWritten(WriteError),
    /// The connection ended. `never_left` if it is known that the server has not read a byte of the request.
    Ended { never_left: bool },
    /// Its time is over.
    Timeout(Duration),
    /// Anything else, in words.
    Broken(String),
}

/// The time that a call may take: so long without a sign of life, and so long with.
#[derive(Clone, Copy)]
pub(super) struct Patience<'a> {
    pub(super) limit: Duration,
    pub(super) ceiling: Duration,
    /// Is told while there is no answer.
    pub(super) notice: Option<Notice<'a>>,
}

/// Tells how long a call has been without an answer, each time that it is so much longer.
#[derive(Clone, Copy)]
pub(super) struct Notice<'a> {
    pub(super) every: Duration,
    pub(super) tell: &'a (dyn Fn(Duration) + Send + Sync),
}

impl Reply {
    /// Of a result as it was written.
    pub(super) fn decoded(result: &RawValue) -> Self {
        match serde_json::from_str::<ServerResult>(result.get()) {
            Ok(result) => result.into(),
            Err(error) => Self::Refused(decode::malformed_answer(&error)),
        }
    }
}

impl From<ServerResult> for Reply {
    fn from(result: ServerResult) -> Self {
        match result {
            ServerResult::CallToolResult(result) => Self::Result(sdk_types::result(result)),
            other => Self::Other(Box::new(other)),
        }
    }
}
