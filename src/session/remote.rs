//! A tool call through the SDK: for servers behind a URL, whose transport is the SDK's own.

use rmcp::{
    model::{
        CallToolRequest, CallToolRequestParams, CancelledNotification, CancelledNotificationParam,
        ClientRequest, RequestId, ServerResult,
    },
    service::{Peer, PeerRequestOptions, RoleClient, ServiceError},
};
use serde_json::{Map, Value};

use super::{
    cut::Cutter,
    reply::{NoReply, Patience, Reply},
};
use crate::process::WriteError;

/// Calls `tool`. If the time is over, or the future is dropped, the server is told to cancel.
pub(super) async fn call(
    peer: &Peer<RoleClient>,
    tool: &str,
    arguments: &Map<String, Value>,
    patience: Patience,
    cutter: &Cutter,
) -> Result<Reply, NoReply> {
    let params = CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments.clone());
    // On a timeout the SDK tells the server to cancel; progress starts the clock anew, up to the ceiling.
    let options = PeerRequestOptions::with_timeout(patience.limit)
        .reset_timeout_on_progress()
        .with_max_total_timeout(patience.ceiling);
    let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
    let pending = peer.send_request_with_option(request, options).await.map_err(|_| NoReply::NotSent)?;
    let mut abandoned = CancelOnDrop { peer, id: Some(pending.id.clone()) };
    let outcome = pending.await_response().await;
    abandoned.id = None;
    match outcome {
        Ok(ServerResult::CallToolResult(result)) => {
            Ok(ServerResult::CallToolResult(cutter.cut_decoded(result).await).into())
        }
        Ok(other) => Ok(other.into()),
        Err(ServiceError::McpError(error)) => Ok(Reply::Refused(error)),
        Err(ServiceError::Timeout { timeout }) => Err(NoReply::Timeout(timeout)),
        Err(ServiceError::TransportClosed) => Err(NoReply::Ended),
        Err(ServiceError::TransportSend(error)) => Err(match error.error.downcast::<WriteError>() {
            Ok(error) => NoReply::NotWritten(*error),
            Err(error) => NoReply::Broken(error.to_string()),
        }),
        Err(error) => Err(NoReply::Broken(error.to_string())),
    }
}

/// Tells the server when a call is given up by dropping its future.
struct CancelOnDrop<'a> {
    peer: &'a Peer<RoleClient>,
    id: Option<RequestId>,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        let Some(id) = self.id.take() else { return };
        // Sending awaits, and a drop must not: one poll queues it, or the queue is full and the server is
        // spared one more message.
        let reason = CancelledNotificationParam::new(Some(id), Some("given up by the caller".to_owned()));
        let notification = CancelledNotification::new(reason);
        let mut sending = Box::pin(self.peer.send_notification(notification.into()));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let _ = sending.as_mut().poll(&mut context);
    }
}
