//! Requests that are forwarded as they were written: those of the clients of the gateway.

use std::time::Duration;

use rmcp::model::ErrorData;
use serde_json::value::RawValue;

use super::{
    Session,
    call::CallFailure,
    connect::{ServerHello, handshake::Era},
    recovery::slot::State,
    result::reply::{CallLimits, NoReply, Refusal},
    rpc::requests::{RawListener, RpcAnswer},
    server_messages::Counting,
};
use crate::{
    error::{Error, Result},
    json_rpc::{self, RawObject},
    large::WhoseWork,
    tool::ToolAnnotations,
};

/// Requests that change nothing at a server, or nothing more when they are sent twice.
const REPEATABLE: [&str; 15] = [
    "completion/complete",
    "logging/setLevel",
    "ping",
    "prompts/get",
    "prompts/list",
    "resources/list",
    "resources/read",
    "resources/subscribe",
    "resources/templates/list",
    "resources/unsubscribe",
    "server/discover",
    "tasks/get",
    "tasks/list",
    "tasks/result",
    "tools/list",
];

/// A request on its way to a server.
#[derive(Clone, Copy)]
pub struct ForwardedRequest<'a> {
    /// The method of MCP.
    pub method: &'a str,
    /// Parameters without `_meta`.
    pub params: &'a RawObject,
    /// The members of `_meta`. They count before those of the session.
    pub meta: &'a RawObject,
    /// The tool that is called, if it is a tool call.
    pub tool: Option<ForwardedTool<'a>>,
    /// The limit that replaces the configured one of a call.
    pub limit: Option<Duration>,
    /// Hears of its progress.
    pub progress: Option<&'a RawListener>,
    /// The sender's own number for it: what the server says of it names this number, where the transport tells.
    pub exchange: u64,
    /// The party that takes turns with others if the request is large.
    pub whose: WhoseWork,
}

/// The tool of a forwarded call, for limits, rules and repetitions.
#[derive(Clone, Copy)]
pub struct ForwardedTool<'a> {
    /// The tool's name at its server.
    pub name: &'a str,
    /// The hints that the server gives about it.
    pub hints: ToolAnnotations,
}

/// The answer of a server to a forwarded request, as it was written.
pub type ForwardedAnswer = std::result::Result<Box<RawValue>, ErrorData>;

/// Outcome of a forwarded request.
pub struct Forwarded {
    /// The answer of the server.
    pub answer: ForwardedAnswer,
    /// The server refused it, or the tool says of its result that it has failed.
    pub is_error: bool,
}

impl Session {
    /// Sends a request of somebody else's. A call of a tool has the limits, rules and repetitions of every call. Any other
    /// request is sent once more if the connection ended under it and it only reads, or never left.
    ///
    /// # Errors
    /// There is no answer, and whether the server may have run it. A refusal in the protocol's own way is `Ok`.
    ///
    /// If the future is dropped, the server is told to cancel.
    pub async fn forward(&self, request: ForwardedRequest<'_>) -> Result<Forwarded> {
        match request.tool {
            Some(tool) => self.forward_call(tool, &request).await,
            None => {
                let answer = self.forward_question(&request).await?;
                Ok(Forwarded { is_error: answer.is_err(), answer })
            }
        }
    }

    async fn forward_question(&self, request: &ForwardedRequest<'_>) -> Result<ForwardedAnswer> {
        let (mut again, mut left, mut renewed) = (true, 0, false);
        loop {
            let connection = self.borrow().await?;
            let config = &self.settings().config;
            let limit = request.limit.unwrap_or(config.call_timeout);
            let call_limits = CallLimits { limit, ceiling: config.max_call_time.max(limit), notice: None };
            let none = match connection.transport.forward(request, None, call_limits).await {
                Ok(RpcAnswer::Result(result)) => return Ok(Ok(result)),
                Ok(RpcAnswer::Plain(result)) => return Ok(Ok(json_rpc::raw(&result))),
                Ok(RpcAnswer::Refused(error)) => return Ok(Err(error)),
                Err(none) => none,
            };
            let mut error: Error = match none {
                NoReply::Unauthorized(missing) => self.access_missing(request.method, missing),
                NoReply::Timeout(after) => {
                    self.lost(format!("did not answer `{}` within {after:?}", request.method)).into()
                }
                NoReply::Refused(refused) => self.refused_by_status(request.method, refused),
                NoReply::SessionEnded(why) => {
                    let is_new = std::mem::replace(&mut renewed, true);
                    let again = if is_new { Ok(false) } else { self.renew_session(&connection, &why).await };
                    match again {
                        Ok(true) => continue,
                        Ok(false) => self.refused_by_status(request.method, Refusal { status: 0, why }),
                        Err(Error::Cancelled) => return Err(Error::Cancelled),
                        Err(error) => {
                            let (asked, health) = (request.method, &connection.health);
                            self.lost_request(asked, left, why, health, Some(error)).into()
                        }
                    }
                }
                NoReply::Unknown(why) => {
                    left += 1;
                    if REPEATABLE.contains(&request.method) && std::mem::take(&mut again) {
                        continue;
                    }
                    self.unknown_outcome(request.method, left, why).into()
                }
                none => {
                    let restarted = Box::pin(self.restart(connection.generation, None)).await;
                    let CallFailure::Session { never_left, why } = none.into() else { continue };
                    left += u32::from(!never_left);
                    let repeatable = never_left || REPEATABLE.contains(&request.method);
                    if repeatable && std::mem::take(&mut again) {
                        restarted?;
                        continue;
                    }
                    self.lost_request(request.method, left, why, &connection.health, restarted.err()).into()
                }
            };
            self.secrets().hide_error(&mut error);
            return Err(error);
        }
    }

    /// Tells the server what asks for no answer, if it is there. What counts it is kept for as long as it waits.
    pub fn tell_server(&self, method: &str, params: Option<&RawValue>, counting: Counting) {
        if let State::Ready { connection, .. } = &*self.slot.state() {
            connection.link.transport().tell(method, params, Some(counting));
        }
    }

    /// The server's answer to `initialize` or `server/discover`. `None`: it is not connected.
    pub fn hello(&self) -> Option<ServerHello> {
        match &*self.slot.state() {
            State::Ready { connection, .. } => Some(connection.hello.clone()),
            State::Down { .. } | State::Closed => None,
        }
    }

    /// The era of the present connection.
    pub fn era(&self) -> Option<Era> {
        match &*self.slot.state() {
            State::Ready { connection, .. } => Some(connection.era),
            State::Down { .. } | State::Closed => None,
        }
    }

    /// A number that grows with every new connection to the server.
    pub fn generation(&self) -> Option<u64> {
        match &*self.slot.state() {
            State::Ready { generation, .. } => Some(*generation),
            State::Down { .. } | State::Closed => None,
        }
    }
}
