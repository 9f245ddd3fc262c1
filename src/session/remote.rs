//! A session through the SDK: for servers behind a URL, whose transport is the SDK's own.

use std::{
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::BoxFuture;
use rmcp::{
    ClientHandler,
    model::{
        CallToolRequest, CallToolRequestParams, CancelledNotification, CancelledNotificationParam,
        ClientConfig, ClientJsonRpcMessage, ClientRequest, ErrorData, ProgressNotificationParam, RequestId,
        ServerJsonRpcMessage, ServerResult,
    },
    service::{NotificationContext, Peer, PeerRequestOptions, RoleClient, RunningService, ServiceError},
    transport::Transport,
};
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::{sync::Notify, time::timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    convert::without_url,
    cut::Cutter,
    progress::{Hearing, ProgressListener},
    reply::{NoReply, Patience, Reply},
    wiretap::Wiretap,
};
use crate::process::WriteError;

/// Calls `tool`. If the time is over, or the future is dropped, the server is told to cancel.
pub(super) async fn call(
    peer: &Peer<RoleClient>,
    tool: &str,
    arguments: &Map<String, Value>,
    (patience, ears): (Patience<'_>, Option<(&Hearing, &ProgressListener)>),
    cutter: &Cutter,
) -> Result<Reply, NoReply> {
    let params = CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments.clone());
    // On a timeout the SDK tells the server to cancel; progress starts the clock anew, up to the ceiling.
    let options = PeerRequestOptions::with_timeout(patience.limit)
        .reset_timeout_on_progress()
        .with_max_total_timeout(patience.ceiling);
    let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
    let pending = peer.send_request_with_option(request, options).await.map_err(|_| NoReply::NotSent)?;
    let _listening =
        ears.map(|(hearing, listener)| hearing.listen(pending.progress_token.clone(), listener.clone()));
    let mut abandoned = CancelOnDrop { peer, id: Some(pending.id.clone()) };
    let (began, mut response) = (Instant::now(), pin!(pending.await_response()));
    let outcome = loop {
        let Some(notice) = patience.notice else { break response.await };
        match timeout(notice.every, &mut response).await {
            Ok(outcome) => break outcome,
            Err(_) => (notice.tell)(began.elapsed()),
        }
    };
    abandoned.id = None;
    Ok(match answered(outcome)? {
        Ok(ServerResult::CallToolResult(result)) => {
            ServerResult::CallToolResult(cutter.cut_decoded(result).await).into()
        }
        Ok(other) => other.into(),
        Err(error) => Reply::Refused(error),
    })
}

/// Asks for anything else: the result, or the error that refuses it. Boxed: the SDK's futures are large, deep, and only
/// for servers behind a URL.
pub(super) fn ask(
    peer: &Peer<RoleClient>,
    request: ClientRequest,
    limit: Duration,
) -> BoxFuture<'_, Result<Result<ServerResult, ErrorData>, NoReply>> {
    Box::pin(async move {
        let options = PeerRequestOptions::with_timeout(limit);
        let pending = peer.send_request_with_option(request, options).await.map_err(|_| NoReply::NotSent)?;
        answered(pending.await_response().await)
    })
}

fn answered(outcome: Result<ServerResult, ServiceError>) -> Result<Result<ServerResult, ErrorData>, NoReply> {
    match outcome {
        Ok(result) => Ok(Ok(result)),
        Err(ServiceError::McpError(error)) => Ok(Err(error)),
        Err(ServiceError::Timeout { timeout }) => Err(NoReply::Timeout(timeout)),
        // How much of it has left is not known, here and below.
        Err(ServiceError::TransportClosed) => Err(NoReply::Ended { never_left: false }),
        Err(ServiceError::TransportSend(error)) => Err(NoReply::NotWritten(WriteError {
            may_have_left: true,
            reason: without_url(&error.error.to_string()),
        })),
        Err(error) => Err(NoReply::Broken(without_url(&error.to_string()))),
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

/// A session of the SDK's.
pub(super) type Service = RunningService<RoleClient, Ear>;

/// Our side of it: who we are, and an ear for changes and for the progress of calls.
pub(super) struct Ear {
    config: ClientConfig,
    changed: Arc<Notify>,
    hearing: Hearing,
}

impl Ear {
    pub(super) fn new(config: ClientConfig) -> Self {
        Self { config, changed: Arc::default(), hearing: Hearing::default() }
    }

    /// Told when the server says that its tools changed.
    pub(super) fn changed(&self) -> Arc<Notify> {
        self.changed.clone()
    }

    /// For those who want to know how far their calls are.
    pub(super) fn hearing(&self) -> Hearing {
        self.hearing.clone()
    }
}

impl ClientHandler for Ear {
    fn get_info(&self) -> ClientConfig {
        self.config.clone()
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.changed.notify_one();
    }

    async fn on_progress(&self, report: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        self.hearing.heard(report);
    }
}

/// A transport that tells when the SDK has let go of it: then the connection has ended, whoever ended it.
pub(super) struct Telling<T> {
    inner: T,
    tap: Wiretap,
    _gone: DropGuard,
}

impl<T> Telling<T> {
    /// The transport, and the token that is cancelled at its end.
    pub(super) fn new(inner: T, tap: Wiretap) -> (Self, CancellationToken) {
        let gone = CancellationToken::new();
        (Self { inner, tap, _gone: gone.clone().drop_guard() }, gone)
    }

    /// Gives `tell` the message where somebody wants to see it.
    fn show(&self, message: &impl Serialize, tell: fn(&Wiretap, &[u8])) {
        if self.tap.is_on() {
            tell(&self.tap, &serde_json::to_vec(message).unwrap_or_default());
        }
    }
}

impl<T: Transport<RoleClient>> Transport<RoleClient> for Telling<T> {
    type Error = T::Error;

    fn send(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> impl Future<Output = Result<(), T::Error>> + Send + 'static {
        self.show(&message, Wiretap::sent);
        self.inner.send(message)
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        let message = self.inner.receive().await?;
        self.show(&message, Wiretap::received);
        Some(message)
    }

    async fn close(&mut self) -> Result<(), T::Error> {
        self.inner.close().await
    }
}
