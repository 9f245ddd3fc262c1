//! A session through the SDK: for servers behind a URL, whose transport is the SDK's own.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
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
    progress::{Hearing, ProgressListener},
    reply::{NoReply, Patience, Reply},
    sdk_types::without_url,
    truncate::Truncator,
    wire_log::WireLog,
};
use crate::process::WriteError;

/// Answers to the server's own requests that may wait to be sent, with what each of them costs beside its id. A server
/// that asks for more is given up: each answer is a request over HTTP, and the SDK keeps all that wait.
const MAX_OWED: usize = 64 << 10;
const ANSWER: usize = 256;

/// Calls `tool`. If the time is over, or the future is dropped, the server is told to cancel.
pub(super) async fn call(
    peer: &Peer<RoleClient>,
    tool: &str,
    arguments: &Map<String, Value>,
    (patience, ears): (Patience<'_>, Option<(&Hearing, &ProgressListener)>),
    truncator: &Truncator,
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
            ServerResult::CallToolResult(truncator.cut_decoded(result).await).into()
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

/// A transport that tells when the SDK has let go of it: then the connection has ended, by either side.
pub(super) struct Telling<T> {
    /// `None`: the server was given up. The transport must be dropped then: it may wait for its messages to be taken.
    inner: Option<T>,
    tap: WireLog,
    /// The sum of [`cost`] of the server's requests whose answers are not sent yet.
    owed: Arc<AtomicUsize>,
    _gone: DropGuard,
}

/// What the answer to a request of the server's costs while it waits.
fn cost(id: &RequestId) -> usize {
    ANSWER + id.to_string().len()
}

/// An answer that is being sent. It is sent, or given up, when this is dropped.
struct Owed(Arc<AtomicUsize>, usize);

impl Drop for Owed {
    fn drop(&mut self) {
        let _ = self.0.fetch_update(Relaxed, Relaxed, |owed| Some(owed.saturating_sub(self.1)));
    }
}

impl<T> Telling<T> {
    /// The transport, and the token that is cancelled at its end.
    pub(super) fn new(inner: T, tap: WireLog) -> (Self, CancellationToken) {
        let gone = CancellationToken::new();
        (Self { inner: Some(inner), tap, owed: Arc::default(), _gone: gone.clone().drop_guard() }, gone)
    }

    /// Gives `tell` the message where somebody wants to see it.
    fn show(&self, message: &impl Serialize, tell: fn(&WireLog, &[u8])) {
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
        self.show(&message, WireLog::sent);
        let answered = match &message {
            ClientJsonRpcMessage::Response(answer) => Some(&answer.id),
            ClientJsonRpcMessage::Error(answer) => answer.id.as_ref(),
            _ => None,
        };
        let owed = answered.map(|id| Owed(self.owed.clone(), cost(id)));
        let sending = self.inner.as_mut().map(|inner| inner.send(message));
        async move {
            let _owed = owed;
            match sending {
                Some(sending) => sending.await,
                None => Ok(()),
            }
        }
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        let message = self.inner.as_mut()?.receive().await?;
        self.show(&message, WireLog::received);
        if let ServerJsonRpcMessage::Request(request) = &message {
            let cost = cost(&request.id);
            if self.owed.fetch_add(cost, Relaxed) + cost > MAX_OWED {
                tracing::warn!(
                    "a server sends requests faster than it reads answers: its connection is closed"
                );
                self.inner = None;
                return None;
            }
        }
        Some(message)
    }

    async fn close(&mut self) -> Result<(), T::Error> {
        match &mut self.inner {
            Some(inner) => inner.close().await,
            None => Ok(()),
        }
    }
}
