//! The transport of one server: over stdio or HTTP. All requests but those of the handshake go through it. The futures
//! over HTTP are boxed: they are large, and stdio calls must not hold room for them.

use std::time::Duration;

use futures_util::FutureExt;
use serde_json::{Map, Value, value::RawValue};

use super::{
    connect::{
        failure::{BadAnswer, Cause},
        handshake::Era,
        tool_page::ToolPage,
    },
    forward::ForwardedRequest,
    progress::ProgressListener,
    remote::RemoteClient,
    result::{
        reply::{CallLimits, CallReply, NoReply, Refusal},
        words,
    },
    rpc::{
        decode::why_unusable,
        requests::{AnswerForm, Listener, RpcAnswer},
        write::CallArguments,
    },
    server_messages::Counting,
    stdio::rpc_client::RpcClient,
};
use crate::error::ErrorCode;

/// The way to one server. Clones share it.
#[derive(Clone)]
pub(super) enum Transport {
    Lines(RpcClient),
    Remote(RemoteClient),
}

impl Transport {
    /// Whether the connection has ended.
    pub(super) fn is_closed(&self) -> bool {
        match self {
            Self::Lines(client) => client.is_ended(),
            Self::Remote(client) => client.is_closed(),
        }
    }

    /// Calls `tool`, whose arguments have this schema. If the time is over, or the future is dropped, the server is told
    /// to cancel.
    pub(super) async fn call(
        &self,
        tool: &str,
        (arguments, schema): (CallArguments<'_>, &Map<String, Value>),
        call_limits: CallLimits<'_>,
        progress: Option<&ProgressListener>,
    ) -> Result<CallReply, NoReply> {
        match self {
            Self::Lines(client) => client.call(tool, arguments, call_limits, progress).await,
            Self::Remote(client) => {
                client.call(tool, (arguments, schema), call_limits, progress).boxed().await
            }
        }
    }

    /// Asks for anything else.
    pub(super) async fn ask(
        &self,
        method: &str,
        params: &Map<String, Value>,
        limit: Duration,
    ) -> Result<RpcAnswer, NoReply> {
        match self {
            Self::Lines(client) => client.ask(method, params, limit).await,
            Self::Remote(client) => client.ask(method, params, limit).boxed().await,
        }
    }

    /// Sends a request of somebody else's; if it calls a tool, its arguments have this schema. If the time is over, or the
    /// future is dropped, the server is told to cancel.
    pub(super) async fn forward(
        &self,
        request: &ForwardedRequest<'_>,
        schema: Option<&Map<String, Value>>,
        call_limits: CallLimits<'_>,
    ) -> Result<RpcAnswer, NoReply> {
        match self {
            Self::Lines(client) => {
                let form = if request.tool.is_some() { AnswerForm::RawToolResult } else { AnswerForm::Raw };
                let listener = request.progress.cloned().map(Listener::Raw);
                let params = (request.params, request.meta);
                let how = (form, listener, request.exchange);
                client.forward(request.method, params, call_limits, how).await
            }
            Self::Remote(client) => client.forward(request, schema, call_limits).boxed().await,
        }
    }

    /// Tells the server what asks for no answer.
    pub(super) fn tell(&self, method: &str, params: Option<&RawValue>, counting: Option<Counting>) {
        match self {
            Self::Lines(client) => client.tell(method, params, counting),
            Self::Remote(client) => client.tell(method, params, counting),
        }
    }

    /// One page of the tool list, whose first entry is number `first` of the whole list.
    pub(super) async fn page(
        &self,
        cursor: Option<String>,
        first: usize,
        limit: Duration,
    ) -> Result<ToolPage, Cause> {
        let params = cursor.map(|cursor| ("cursor".to_owned(), Value::String(cursor))).into_iter().collect();
        let why = match self.ask("tools/list", &params, limit).await {
            Ok(RpcAnswer::Result(result)) => match ToolPage::read(&result, first) {
                Ok(mut page) => {
                    if let Self::Remote(client) = self {
                        client.drop_unusable(&mut page.tools);
                    }
                    return Ok(page);
                }
                Err(why) => why,
            },
            Ok(RpcAnswer::Plain(_)) => OTHER_ANSWER.to_owned(),
            Ok(RpcAnswer::Refused(error)) => refusal(&error),
            Err(NoReply::NotWritten(error)) if matches!(self, Self::Remote(_)) => {
                return Err(Cause::Unreachable(error.reason, None));
            }
            Err(NoReply::NotSent | NoReply::NotWritten(_) | NoReply::Ended { .. }) => {
                return Err(Cause::Closed);
            }
            Err(NoReply::Timeout(_)) => return Err(Cause::Timeout),
            Err(NoReply::Unauthorized(missing)) => return Err(Cause::Unauthorized(missing)),
            Err(NoReply::Refused(Refusal { why, .. }) | NoReply::Unknown(why)) => {
                let why = format!("`tools/list`: {why}");
                let what = "does not give its tools";
                return Err(Cause::BadAnswer(BadAnswer {
                    code: ErrorCode::ProtocolMismatch,
                    what,
                    why,
                    help: None,
                }));
            }
            Err(NoReply::SessionEnded(why)) => format!("was refused: {why}"),
        };
        Err(Cause::Protocol(format!("`tools/list` {why}")))
    }

    /// Whether the server answers in its session within `limit`, rather than that it has ended.
    pub(super) async fn knows_session(&self, era: Era, limit: Duration) -> bool {
        let answer = self.ask(question(era), &Map::new(), limit).await;
        matches!(answer, Ok(_) | Err(NoReply::Refused(_) | NoReply::Unauthorized(_) | NoReply::Unknown(_)))
    }

    /// Whether there is an answer of any kind within `limit` to the [question](question) of `era`. A server that
    /// cannot be asked is none of those who do not answer: its end is noticed as such.
    pub(super) async fn answers(&self, era: Era, limit: Duration) -> bool {
        match self.ask(question(era), &Map::new(), limit).await.map(drop) {
            Err(NoReply::Timeout(_)) => false,
            Err(NoReply::Ended { .. } | NoReply::NotWritten(_)) => {
                // The death of a process is noticed meanwhile, and reported with its real cause. A remote server that
                // cannot be reached has no other way to tell.
                tokio::time::sleep(limit).await;
                false
            }
            _ => true,
        }
    }
}

/// Method that checks whether a server still answers. The 2026-07-28 revision has no `ping`; every server of it answers
/// `server/discover`.
pub(super) fn question(era: Era) -> &'static str {
    match era {
        Era::Legacy => "ping",
        Era::Modern => "server/discover",
    }
}

/// Continues the sentence "`tools/list` ...".
const OTHER_ANSWER: &str = "was answered with something else";

/// Continues the sentence "`tools/list` ...".
fn refusal(error: &rmcp::model::ErrorData) -> String {
    why_unusable(error).map_or_else(
        || format!("was refused: {} ({})", words::brief(&error.message), error.code.0),
        |why| format!("gave an answer that cannot be used: {why}"),
    )
}
