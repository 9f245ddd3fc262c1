//! Requests to a remote server, and the end of the session.

use std::{sync::Arc, time::Duration};

use hyper::header::HeaderValue;
use serde_json::{Map, Value, value::RawValue};
use tokio::time::{Instant, timeout_at};

use super::{
    connection::Connection, error::RemoteFailure, exchange::Outgoing, http::PROTOCOL_VERSION, tool_headers,
};
use crate::{
    session::{
        connect::handshake::PROTOCOL_VERSION_KEY,
        forward::ForwardedRequest,
        progress::ProgressListener,
        result::reply::{CallLimits, CallReply, NoReply},
        rpc::{
            requests::{AnswerForm, Listener, RpcAnswer},
            write::{self, CallArguments, CallParams},
        },
        server_messages::Counting,
    },
    tool::Tool,
};

/// A handle on the session with a remote server. Clones share it.
#[derive(Clone)]
pub(in crate::session) struct RemoteClient(Arc<Connection>);

impl RemoteClient {
    /// Whether the connection has ended.
    pub(in crate::session) fn is_closed(&self) -> bool {
        self.0.requests.is_ended()
    }

    /// Whether requests are under way.
    pub(in crate::session) fn is_busy(&self) -> bool {
        self.0.requests.is_busy()
    }

    /// Calls `tool`, whose arguments have this schema. If the time is over, or the future is dropped, the server is told
    /// to cancel.
    pub(in crate::session) async fn call(
        &self,
        tool: &str,
        (arguments, schema): (CallArguments<'_>, &Map<String, Value>),
        call_limits: CallLimits<'_>,
        listener: Option<&ProgressListener>,
    ) -> Result<CallReply, NoReply> {
        const METHOD: &str = "tools/call";
        let listener = listener.cloned().map(Listener::Decoded);
        let mut outgoing = Outgoing { once: true, listener, ..self.outgoing(METHOD, Some(tool)) };
        if self.0.is_modern() {
            tool_headers::add_arguments(&mut outgoing.headers, schema, arguments.values);
        }
        let text = |id| self.0.writer.request(id, METHOD, &CallParams { name: tool, arguments });
        Ok(match self.send(outgoing, text, call_limits).await? {
            RpcAnswer::Plain(result) => CallReply::Result(result),
            RpcAnswer::Result(result) => CallReply::decoded(&result),
            RpcAnswer::Refused(error) => CallReply::Refused(error),
        })
    }

    /// The answer to any other request.
    pub(in crate::session) async fn ask(
        &self,
        method: &str,
        params: &Map<String, Value>,
        limit: Duration,
    ) -> Result<RpcAnswer, NoReply> {
        let text = |id| self.0.writer.request(id, method, params);
        let call_limits = CallLimits { limit, ceiling: limit, notice: None };
        self.send(self.outgoing(method, None), text, call_limits).await
    }

    /// Sends a request of somebody else's; if it calls a tool, its arguments have this schema. The answer is as it was
    /// written.
    pub(in crate::session) async fn forward(
        &self,
        request: &ForwardedRequest<'_>,
        schema: Option<&Map<String, Value>>,
        call_limits: CallLimits<'_>,
    ) -> Result<RpcAnswer, NoReply> {
        let &ForwardedRequest { method, params, meta, tool, progress, exchange, .. } = request;
        let name = tool_headers::name(method, params);
        let mut outgoing = Outgoing {
            once: tool.is_some(),
            exchange: Some(exchange),
            listener: progress.cloned().map(Listener::Raw),
            form: if tool.is_some() { AnswerForm::RawToolResult } else { AnswerForm::Raw },
            ..self.outgoing(method, name.as_deref())
        };
        if self.0.is_modern() {
            if let Some(schema) = schema.filter(|schema| tool.is_some() && tool_headers::has_marks(schema))
                && let Some(arguments) = params.read("arguments")
            {
                tool_headers::add_arguments(&mut outgoing.headers, schema, &arguments);
            }
            // The header repeats what the request says.
            let version = meta.read::<String>(PROTOCOL_VERSION_KEY);
            if let Some(version) = version.and_then(|version| HeaderValue::try_from(version).ok()) {
                outgoing.headers.insert(PROTOCOL_VERSION, version);
            }
        }
        let text = |id| self.0.writer.forwarded(id, method, (params, meta));
        self.send(outgoing, text, call_limits).await
    }

    /// Tells the server what asks for no answer.
    pub(in crate::session) fn tell(
        &self,
        method: &str,
        params: Option<&RawValue>,
        counting: Option<Counting>,
    ) {
        self.0.tell(write::notification(method, params), counting);
    }

    /// Leaves out tools that this transport cannot call, as the protocol has it.
    pub(in crate::session) fn drop_unusable(&self, tools: &mut Vec<Tool>) {
        if !self.0.is_modern() {
            return;
        }
        tools.retain(|tool| match tool_headers::check(&tool.input_schema) {
            Ok(()) => true,
            Err(why) => {
                tracing::warn!(server = %self.0.sink.server, tool = tool.name, why, "the tool is left out");
                false
            }
        });
    }

    fn outgoing<'a>(&self, method: &'a str, name: Option<&str>) -> Outgoing<'a> {
        let mut outgoing = Outgoing::question(method);
        if self.0.is_modern() {
            tool_headers::add_method(&mut outgoing.headers, method, name);
        }
        outgoing
    }

    async fn send(
        &self,
        outgoing: Outgoing<'_>,
        text: impl FnOnce(i64) -> Vec<u8>,
        call_limits: CallLimits<'_>,
    ) -> Result<RpcAnswer, NoReply> {
        let no_reply = |failure: RemoteFailure| failure.into_no_reply(self.0.http.url());
        self.0.request(outgoing, text, call_limits).await.map_err(no_reply)
    }
}

/// The session with a remote server. Dropping it ends the connection.
pub(in crate::session) struct RemoteSession(pub(super) Arc<Connection>);

impl RemoteSession {
    /// A handle for requests.
    pub(in crate::session) fn client(&self) -> RemoteClient {
        RemoteClient(self.0.clone())
    }

    /// Ends the session; the server is told so within `limit`.
    pub(in crate::session) async fn close(self, limit: Duration) {
        let until = Instant::now() + limit;
        if !self.0.requests.is_ended() {
            let _ = timeout_at(until, self.0.all_told()).await;
        }
        self.0.end();
        if self.0.session.get().is_some() {
            let _ = timeout_at(until, self.0.http.delete(self.0.session_headers())).await;
        }
    }
}

impl Drop for RemoteSession {
    fn drop(&mut self) {
        self.0.end();
    }
}
