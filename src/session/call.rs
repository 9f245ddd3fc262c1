//! One tool call: its limits, and what may be done when the server dies under it.

use std::time::Duration;

use rmcp::{
    model::{
        CallToolRequest, CallToolRequestParams, CancelledNotification, CancelledNotificationParam,
        ClientRequest, RequestId, ServerResult,
    },
    service::{Peer, PeerRequestOptions, RoleClient, ServiceError},
};
use serde_json::{Map, Value};

use super::{
    Borrowed, Session, convert,
    cut::Cutter,
    decode::why_unusable,
    health::{Call, Health},
    settings::Settings,
};
use crate::{
    config::{Endpoint, RetryCalls},
    error::{Error, ErrorCode, Result, Silence, nearest},
    process::WriteError,
    tool::{ToolAnnotations, ToolResult},
};

/// Times that one call is sent at most, when sending again is allowed at all.
const MAX_SENDS: u32 = 3;

/// Why a call has no answer.
enum Lost {
    /// The session broke. `never_left` if the request provably stayed here.
    Session { never_left: bool, why: String },
    /// Anything that leaves the session as it was.
    Final(Error),
}

impl Session {
    /// Calls `tool`. A tool-level error is `Ok`; see [`Error`] for the rest.
    ///
    /// `limit` takes the place of the configured limit.
    pub(crate) async fn call(
        &self,
        tool: &str,
        hints: ToolAnnotations,
        arguments: &Map<String, Value>,
        limit: Option<Duration>,
    ) -> Result<ToolResult> {
        let _place = self.settings().calls.acquire().await;
        let counted = self.counters.begin();
        let outcome = self.call_in_place(tool, hints, arguments, limit).await;
        counted.end(&outcome);
        outcome
    }

    async fn call_in_place(
        &self,
        tool: &str,
        hints: ToolAnnotations,
        arguments: &Map<String, Value>,
        limit: Option<Duration>,
    ) -> Result<ToolResult> {
        let (mut sends, mut left) = (0, 0);
        loop {
            let Borrowed { generation, peer, health, tools } = self.borrow().await?;
            let settings = self.settings();
            // The catalog hides what is denied, but an entry may come from another catalog, or from an older one:
            // that of an earlier start perhaps.
            let listed = tools.now().tools;
            if !settings.config.tools.permits(tool) || !listed.iter().any(|known| known.name == tool) {
                let known = listed.iter().filter(|known| settings.config.tools.permits(&known.name));
                let suggestion = nearest(tool, known.map(|known| known.name.as_str()));
                let (server, tool) = (self.name().clone(), tool.to_owned());
                return Err(Error::ToolNotFound { server, tool, suggestion });
            }
            sends += 1;
            let (never_left, why) =
                match self.send(&settings, &peer, &health, tool, arguments.clone(), limit).await {
                    Ok(result) => return Ok(result),
                    Err(Lost::Final(error)) => return Err(error),
                    Err(Lost::Session { never_left, why }) => (never_left, why),
                };
            left += u32::from(!never_left);
            // The caller who lost a call brings the server back, for itself or for the next one.
            let restarted = self.restart(generation, None).await;
            let again = sends < MAX_SENDS && (never_left || may_repeat(settings.config.retry_calls, hints));
            match restarted {
                Ok(()) if again => {}
                Err(Error::Cancelled) => return Err(Error::Cancelled),
                outcome => return Err(self.lost_call(tool, left, why, &health, outcome.err())),
            }
        }
    }

    async fn send(
        &self,
        settings: &Settings,
        peer: &Peer<RoleClient>,
        health: &Health,
        tool: &str,
        arguments: Map<String, Value>,
        limit: Option<Duration>,
    ) -> Result<ToolResult, Lost> {
        let config = &settings.config;
        let configured = config.tool_timeouts.get(tool).copied().unwrap_or(config.call_timeout);
        let limit = limit.unwrap_or(configured);
        let params = CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments);
        // On a timeout the SDK tells the server to cancel; progress starts the clock anew, up to the ceiling.
        let ceiling = config.max_call_time.max(limit);
        let options = PeerRequestOptions::with_timeout(limit)
            .reset_timeout_on_progress()
            .with_max_total_timeout(ceiling);
        let call = health.call();
        let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
        let pending = peer
            .send_request_with_option(request, options)
            .await
            .map_err(|_| lost(true, "the session had ended before the call was sent"))?;
        let mut abandoned = CancelOnDrop { peer, id: Some(pending.id.clone()) };
        let outcome = pending.await_response().await;
        abandoned.id = None;
        match outcome {
            Ok(ServerResult::CallToolResult(result)) => match config.endpoint {
                // Our own transport has cut it already.
                Endpoint::Stdio(_) | Endpoint::Builtin { .. } => Ok(convert::result(result)),
                Endpoint::Http(_) => {
                    let cutter = Cutter::new(config, &settings.around.outputs);
                    Ok(convert::result(cutter.cut_decoded(result).await))
                }
            },
            Ok(ServerResult::InputRequiredResult(_)) => {
                Err(self.refused(tool, 0, "it asks for input that only an interactive client can give"))
            }
            Ok(ServerResult::CreateTaskResult(_)) => {
                Err(self.refused(tool, 0, "it answered with a background task, which was not asked for"))
            }
            Ok(_) => Err(self.refused(tool, 0, "its answer is of another kind than a tool result")),
            Err(ServiceError::McpError(error)) => Err(match why_unusable(&error) {
                Some(why) => Lost::Final(self.unusable(tool, why, health).await),
                None => self.refused(tool, i64::from(error.code.0), &error.message),
            }),
            Err(ServiceError::Timeout { timeout }) => {
                let endless = timeout == ceiling && timeout > limit;
                Err(Lost::Final(Error::CallTimeout {
                    server: self.name().clone(),
                    tool: tool.to_owned(),
                    after: timeout,
                    silence: Box::new(silence(health, &call, endless).await),
                }))
            }
            Err(ServiceError::TransportSend(error)) => {
                let written = error.error.downcast_ref::<WriteError>();
                let never_left = written.is_some_and(|error| !error.may_have_left);
                Err(Lost::Session { never_left, why: error.error.to_string() })
            }
            Err(ServiceError::TransportClosed) => {
                Err(lost(call.was_never_read(), "the connection ended during the call"))
            }
            Err(error) => Err(Lost::Session { never_left: false, why: error.to_string() }),
        }
    }

    fn refused(&self, tool: &str, rpc_code: i64, message: &str) -> Lost {
        let message = self.settings().around.kin.secrets.hide(&convert::brief(message));
        Lost::Final(Error::CallRefused {
            server: self.name().clone(),
            tool: tool.to_owned(),
            rpc_code,
            message,
        })
    }

    /// An answer came, and it cannot be used. The session goes on.
    async fn unusable(&self, tool: &str, why: &str, health: &Health) -> Error {
        let mut error = self.lost(format!("gave an answer to `{tool}` that cannot be used"));
        error.code = ErrorCode::ProtocolMismatch;
        error.causes.push(why.to_owned());
        error.stderr_tail = health.last_words().await;
        error.help = Some("the tool has run: ask it for less, or look for a newer version of it".to_owned());
        error.into()
    }

    /// `left` counts the times that the request may have reached the server.
    fn lost_call(
        &self,
        tool: &str,
        left: u32,
        why: String,
        health: &Health,
        restart: Option<Error>,
    ) -> Error {
        let outcome = match left {
            0 => "it was not run".to_owned(),
            1 => "outcome unknown, it was sent once".to_owned(),
            times => format!("outcome unknown, it was sent {times} times"),
        };
        let mut error = self.lost(format!("was lost during `{tool}` ({outcome})"));
        error.causes.push(why);
        if let Some(death) = health.death() {
            error.code = death.code;
            error.causes.push(death.to_string());
            error.causes.extend(death.causes.clone());
            error.stderr_tail.clone_from(&death.stderr_tail);
            error.help.clone_from(&death.help);
        }
        match restart {
            None => error.causes.push("the server was restarted and is usable again".to_owned()),
            Some(failed) => {
                // It names the death too, since it is also told to those who did not see it.
                let known = health.death().map(|death| format!("before that: {death}"));
                error.causes.push(failed.to_string());
                error
                    .causes
                    .extend(failed.causes().into_iter().filter(|cause| Some(cause) != known.as_ref()));
                error.stderr_tail = failed.stderr_tail().to_vec();
            }
        }
        if left > 0 && error.help.is_none() {
            error.help = Some(
                "if the tool may run twice, set `retry_calls` to \"read-only\" or \"idempotent\"".to_owned(),
            );
        }
        error.into()
    }
}

fn may_repeat(policy: RetryCalls, hints: ToolAnnotations) -> bool {
    let read_only = hints.read_only_hint == Some(true);
    match policy {
        RetryCalls::Never => false,
        RetryCalls::ReadOnly => read_only,
        RetryCalls::Idempotent => read_only || hints.idempotent_hint == Some(true),
    }
}

/// `endless` if the server went on reporting progress until the ceiling.
async fn silence(health: &Health, call: &Call<'_>, endless: bool) -> Silence {
    let mut causes = call.overdue();
    let key = if endless {
        causes.insert(0, "its progress reports went on until `max_call_time`".to_owned());
        "`max_call_time`"
    } else {
        "`call_timeout`, or give the tool its own in `tools.timeout`"
    };
    let help = format!("if it needs that long, raise {key}");
    Silence { causes, stderr_tail: health.last_words().await, help }
}

fn lost(never_left: bool, why: &str) -> Lost {
    Lost::Session { never_left, why: why.to_owned() }
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
