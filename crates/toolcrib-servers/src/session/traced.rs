//! Trace spans of one server: its calls, starts and stops.

use super::{
    GOODBYE_LIMIT, Session,
    connect::{Connection, failure::Failure},
    recovery::slot::State,
    rpc::{client::RpcOwner, requests::RpcAnswer},
};
use crate::{
    config::Endpoint,
    error::{Error, Result},
    process::{Process, Stopped},
    trace::{self, Action},
};

impl Session {
    /// A call of `tool`.
    pub(super) fn call_action(&self, tool: &str) -> Action {
        let action = trace::tool_call(self.name().as_str(), tool);
        if action.is_on() {
            match &self.settings().config.endpoint {
                Endpoint::Stdio(_) => action.record("network.transport", "pipe"),
                Endpoint::Http(endpoint) => {
                    action.record("network.transport", "tcp");
                    action.address(&endpoint.url);
                }
                Endpoint::Builtin { .. } | Endpoint::Local(_) => {}
            }
            if let State::Ready { connection, .. } = &*self.slot.state() {
                action.record("mcp.protocol.version", &*connection.version);
            }
        }
        action
    }

    /// A start that is not the first one, or that was put off (`parked`).
    pub(super) fn start_action(&self, parked: bool) -> Action {
        trace::server_start(self.name().as_str(), if parked { "first_call" } else { "restart" })
    }

    /// Ends the server's process by the stop ladder.
    pub(super) async fn stop_process(&self, process: Process) -> Stopped {
        let action = trace::server_stop(self.name().as_str());
        action.record("process.pid", process.pid());
        let stopping = process.stop(self.settings().config.stop);
        let stopped = tracing::Instrument::instrument(stopping, action.span()).await;
        if action.is_on() {
            action.record("toolcrib.outcome", stopped.outcome.name());
            action.record("process.exit.code", stopped.status.and_then(|status| status.code()));
        }
        action.end(None);
        stopped
    }

    /// Ends a session without a process; a remote server is told.
    pub(super) async fn close_remote(&self, link: RpcOwner) {
        let action = trace::server_stop(self.name().as_str());
        link.close(GOODBYE_LIMIT).await;
        action.end(None);
    }
}

pub(super) fn call_ended(action: Action, outcome: &Result<RpcAnswer>) {
    if !action.is_on() {
        return;
    }
    match outcome {
        Ok(answer) if answer.is_error() => action.end(Some(&"tool_error")),
        Ok(_) => action.end(None),
        Err(Error::CallRefused { rpc_code, .. }) if *rpc_code != 0 => {
            action.record("rpc.response.status_code", tracing::field::display(rpc_code));
            action.end(Some(rpc_code));
        }
        Err(error) => action.end(Some(&error.code())),
    }
}

pub(super) fn start_ended(action: Action, outcome: &Result<Connection, Failure>) {
    if !action.is_on() {
        return;
    }
    match outcome {
        Ok(connection) => {
            let pid = connection.process.as_ref().map(Process::pid);
            action.started(pid, &connection.version, connection.tools.now().tools.len());
        }
        Err(failure) => action.end(Some(&failure.code())),
    }
}
