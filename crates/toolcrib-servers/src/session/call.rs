//! One tool call: its limits, and the handling of a server that dies during it.

use std::time::Duration;

use rmcp::model::ErrorCode as RpcErrorCode;
use serde_json::{Map, Value, value::RawValue};
use tracing::Instrument as _;

use super::{
    CallTerms, ConnectionHandle, Forwarded, ForwardedAnswer, ForwardedRequest, ForwardedTool, Session,
    SessionEvent,
    recovery::health::{AwaitedCall, Health},
    result::{
        reply::{CallLimits, CallReply, MissingAccess, NoReply, Refusal, SlowCallNotice},
        words,
    },
    rpc::{decode::why_unusable, requests::RpcAnswer, write::CallArguments},
    settings::Settings,
    traced,
};
use crate::{
    config::{RetryCalls, ServerConfig},
    error::{Error, ErrorCode, Result, ServerError, Silence},
    json_rpc::is_set,
    tool::{Tool, ToolAnnotations, ToolResult},
    trace,
};

/// Times that one call is sent at most, when sending again is allowed at all.
const MAX_SENDS: u32 = 3;
/// Advice for a lost call that was not sent again.
const MAY_RUN_TWICE: &str = "if the tool may run twice, set `retry_calls` to \"read-only\" or \"idempotent\"";

/// A call on its way.
#[derive(Clone, Copy)]
struct OutgoingCall<'a> {
    /// The name that is shown.
    tool: &'a str,
    hints: ToolAnnotations,
    /// Arguments of the call; empty for a forwarded request.
    arguments: &'a Map<String, Value>,
    /// The forwarded request, if the call is one.
    written: Option<&'a ForwardedRequest<'a>>,
    terms: CallTerms<'a>,
}

/// The answer to a call.
pub(super) enum CallAnswer {
    Result(ToolResult),
    /// The answer to a forwarded call, as it was written.
    Written(ForwardedAnswer),
}

/// Why a call has no answer.
pub(super) enum CallFailure {
    /// The session broke. `never_left` if the request provably stayed here.
    Session { never_left: bool, why: String },
    /// The server does not know the session: nothing was done.
    SessionEnded { why: String },
    /// The session goes on, and whether the tool has run is not known.
    Unknown { why: String },
    /// The server refused headers that repeat its arguments, before anything else: our list of its tools may be old.
    HeaderMismatch(Box<Result<CallAnswer>>),
    /// Anything that leaves the session as it was.
    Final(Error),
}

impl Session {
    /// Calls `tool`. A tool-level error is `Ok`; see [`Error`] for the rest.
    pub async fn call(
        &self,
        tool: &str,
        hints: ToolAnnotations,
        arguments: &Map<String, Value>,
        terms: CallTerms<'_>,
    ) -> Result<ToolResult> {
        let call = OutgoingCall { tool, hints, arguments, written: None, terms };
        match self.call_within_limits(call).await?.0 {
            CallAnswer::Result(result) => Ok(result),
            // Only of calls that were written elsewhere.
            CallAnswer::Written(_) => Err(self.lost("gave no result".to_owned()).into()),
        }
    }

    /// Sends a call that was written elsewhere, and gives its answer as it was written.
    pub(super) async fn forward_call(
        &self,
        tool: ForwardedTool<'_>,
        request: &ForwardedRequest<'_>,
    ) -> Result<Forwarded> {
        let ForwardedTool { name, hints } = tool;
        let terms = CallTerms { limit: request.limit, ..CallTerms::default() };
        let none = Map::new();
        let call = OutgoingCall { tool: name, hints, arguments: &none, written: Some(request), terms };
        match self.call_within_limits(call).await? {
            (CallAnswer::Written(answer), is_error) => Ok(Forwarded { answer, is_error }),
            (CallAnswer::Result(_), _) => Err(self.lost("gave no result".to_owned()).into()),
        }
    }

    /// The answer, and whether it says that the call has failed.
    async fn call_within_limits(&self, call: OutgoingCall<'_>) -> Result<(CallAnswer, bool)> {
        if let Some(rules) = self.rules_of(call.tool) {
            // Boxed: few tools have rules.
            match call.written {
                None => Box::pin(self.permitted(call.tool, call.arguments, rules)).await?,
                Some(request) => Box::pin(self.permitted_as_written(call.tool, request, rules)).await?,
            }
        }
        let action = self.call_action(call.tool);
        let _place =
            trace::wait("call_limit", self.settings().calls.acquire()).instrument(action.span()).await;
        let counted = self.counters.begin();
        let mut outcome = self.call_in_place(call).instrument(action.span()).await;
        if let Err(error) = &mut outcome {
            // Much of it is in the words of servers and libraries.
            self.secrets().hide_error(error);
        }
        let failed = outcome.as_ref().map_or(true, CallAnswer::is_error);
        counted.end(failed);
        traced::call_ended(action, &outcome);
        outcome.map(|answer| (answer, failed))
    }

    async fn call_in_place(&self, call: OutgoingCall<'_>) -> Result<CallAnswer> {
        let OutgoingCall { tool, hints, .. } = call;
        let (mut sends, mut left) = (0, 0);
        let (mut lost, mut read_again) = (None, false);
        let mut renewed = false;
        loop {
            let connection = match self.borrow().await {
                Ok(connection) => connection,
                Err(error) => return Err(self.not_resent_error(tool, left, lost, error)),
            };
            let settings = self.settings();
            // The catalog hides what is denied, but an entry may come from another catalog, or from an older one:
            // that of an earlier start perhaps.
            let listed = connection.tools.now().tools;
            let ServerConfig { renames, tools, .. } = &settings.config;
            let known = listed.iter().find(|known| Some(&*known.name) == renames.own(tool));
            let Some(known) = known.filter(|known| tools.permits(&known.name)) else {
                let (known, denied): (Vec<&Tool>, Vec<&Tool>) =
                    listed.iter().partition(|known| tools.permits(&known.name));
                let [known, denied] = [known, denied].map(|list| -> Vec<&str> {
                    list.into_iter().map(|known| renames.shown(&known.name)).collect()
                });
                let error = Error::no_tool(self.name(), tool, known, &denied);
                return Err(self.not_resent_error(tool, left, lost, error));
            };
            sends += 1;
            let sending = self.send(&settings, &connection, call, known);
            let (never_left, why) = match sending.await {
                Ok(answer) => {
                    if renewed {
                        self.renewals.helped();
                    }
                    return Ok(answer);
                }
                Err(CallFailure::Final(error)) => return Err(error),
                Err(CallFailure::SessionEnded { why }) => {
                    // It has not run.
                    sends -= 1;
                    let is_new = std::mem::replace(&mut renewed, true);
                    let again = if is_new { Ok(false) } else { self.renew_session(&connection, &why).await };
                    match again {
                        Ok(true) => continue,
                        Ok(false) => {
                            self.renewals.failed();
                            let error = self.refusal(tool, 0, &format!("{why}; it was not run"));
                            return Err(self.not_resent_error(tool, left, lost, error));
                        }
                        Err(Error::Cancelled) if left == 0 => return Err(Error::Cancelled),
                        Err(error) => {
                            return Err(self.lost_call(tool, left, why, &connection.health, Some(error)));
                        }
                    }
                }
                Err(CallFailure::Unknown { why }) => {
                    left += 1;
                    if sends < MAX_SENDS && may_repeat(settings.config.retry_calls, hints) {
                        lost = Some((why, connection.health));
                        continue;
                    }
                    return Err(self.unknown_outcome(tool, left, why).into());
                }
                Err(CallFailure::HeaderMismatch(answer)) => {
                    let tools = &connection.tools;
                    let is_old = || tools.now().tools.iter().all(|now| now != known);
                    if !std::mem::replace(&mut read_again, true) && (is_old() || tools.read_again().await) {
                        // It has not run.
                        sends -= 1;
                        continue;
                    }
                    return *answer;
                }
                Err(CallFailure::Session { never_left, why }) => (never_left, why),
            };
            left += u32::from(!never_left);
            // The caller who lost a call brings the server back, for itself or for the next one.
            let restarted = Box::pin(self.restart(connection.generation, None)).await;
            let again = sends < MAX_SENDS && (never_left || may_repeat(settings.config.retry_calls, hints));
            match restarted {
                Ok(()) if again => lost = Some((why, connection.health)),
                Err(Error::Cancelled) if left == 0 => return Err(Error::Cancelled),
                outcome => return Err(self.lost_call(tool, left, why, &connection.health, outcome.err())),
            }
        }
    }

    async fn send(
        &self,
        settings: &Settings,
        connection: &ConnectionHandle,
        call: OutgoingCall<'_>,
        Tool { name: own, input_schema: schema, .. }: &Tool,
    ) -> Result<CallAnswer, CallFailure> {
        let OutgoingCall { tool, arguments, written, terms, .. } = call;
        let config = &settings.config;
        let configured = config.tool_timeouts.get(own).copied().unwrap_or(config.call_timeout);
        let limit = terms.limit.unwrap_or(configured);
        let tell = |waited: Duration| {
            tracing::warn!(server = %self.name(), tool, ?waited, "a call has no answer yet");
            self.tell(SessionEvent::SlowCall { tool: tool.to_owned(), waited });
        };
        let notice = Some(SlowCallNotice { every: config.slow_call_notice, tell: &tell });
        let call_limits = CallLimits { limit, ceiling: config.max_call_time.max(limit), notice };
        let health = &connection.health;
        let awaited = health.call();
        let transport = &connection.transport;
        let mut renamed = None;
        if let Some(request) = written.filter(|_| own != tool) {
            renamed.insert(request.params.clone()).write("name", own);
        }
        let written = written.map(|request| match &renamed {
            Some(params) => ForwardedRequest { params, ..*request },
            None => *request,
        });
        let reply = match &written {
            None => {
                let arguments = CallArguments { values: arguments, exact: terms.exact };
                transport.call(own, (arguments, schema), call_limits, terms.progress).await
            }
            Some(request) => match transport.forward(request, Some(schema), call_limits).await {
                Ok(answer) => match answer {
                    RpcAnswer::Result(result) => return Ok(CallAnswer::Written(Ok(result))),
                    RpcAnswer::Plain(result) => Ok(CallReply::Result(result)),
                    RpcAnswer::Refused(error) if error.code == RpcErrorCode::HEADER_MISMATCH => {
                        return Err(CallFailure::HeaderMismatch(Box::new(Ok(CallAnswer::Written(Err(
                            error,
                        ))))));
                    }
                    RpcAnswer::Refused(error) if why_unusable(&error).is_none() => {
                        return Ok(CallAnswer::Written(Err(error)));
                    }
                    RpcAnswer::Refused(error) => Ok(CallReply::Refused(error)),
                },
                Err(none) => Err(none),
            },
        };
        match reply {
            Ok(CallReply::Result(result)) => Ok(CallAnswer::Result(result)),
            Ok(CallReply::Refused(error)) => Err(match why_unusable(&error) {
                Some(why) => CallFailure::Final(self.unusable(tool, why, health).await),
                None if error.code == RpcErrorCode::HEADER_MISMATCH => {
                    let refused = self.refusal(tool, i64::from(error.code.0), &words::of_error(&error));
                    CallFailure::HeaderMismatch(Box::new(Err(refused)))
                }
                None => self.refused(tool, i64::from(error.code.0), &words::of_error(&error)),
            }),
            Ok(CallReply::NeedsInput) => {
                Err(self.refused(tool, 0, "it asks for input that only an interactive client can give"))
            }
            Ok(CallReply::Task) => {
                Err(self.refused(tool, 0, "it answered with a background task, which was not asked for"))
            }
            Err(NoReply::Timeout(after)) => {
                let endless = after == call_limits.ceiling && after > limit;
                Err(CallFailure::Final(Error::CallTimeout {
                    server: self.name().clone(),
                    tool: tool.to_owned(),
                    after,
                    silence: Box::new(silence(health, &awaited, endless).await),
                }))
            }
            Err(NoReply::Unauthorized(missing)) => {
                Err(CallFailure::Final(self.access_missing(tool, missing)))
            }
            Err(NoReply::Refused(refused)) => Err(CallFailure::Final(self.refused_by_status(tool, refused))),
            Err(none) => Err(none.into()),
        }
    }

    /// A remote server refused a request with a status, before it was carried out. The session goes on.
    pub(super) fn refused_by_status(&self, asked: &str, Refusal { status, why }: Refusal) -> Error {
        self.refusal(asked, status.into(), &format!("{why}; it was not run"))
    }

    /// A remote server gave no answer to a request that it may have carried out. The session goes on.
    pub(super) fn unknown_outcome(&self, asked: &str, left: u32, why: String) -> ServerError {
        let mut error = self.lost(format!("gave no answer to `{asked}` ({})", outcome(left)));
        error.code = ErrorCode::OutcomeUnknown;
        error.causes.push(why);
        error.causes.push("the session goes on".to_owned());
        error.help = Some(MAY_RUN_TWICE.to_owned());
        error
    }

    /// A remote server refused a request for want of access. The session goes on.
    pub(super) fn access_missing(&self, asked: &str, MissingAccess { why, help }: MissingAccess) -> Error {
        let mut error = self.lost(format!("asks for authorization for `{asked}`"));
        (error.code, error.help) = (ErrorCode::LoginRequired, Some(help));
        error.causes.push(why);
        error.into()
    }

    fn refused(&self, tool: &str, rpc_code: i64, message: &str) -> CallFailure {
        CallFailure::Final(self.refusal(tool, rpc_code, message))
    }

    fn refusal(&self, tool: &str, rpc_code: i64, message: &str) -> Error {
        let message = message.to_owned();
        Error::CallRefused { server: self.name().clone(), tool: tool.to_owned(), rpc_code, message }
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

    /// The error of a call that is not sent again because of `error`: if the server may have read it before, the error
    /// says how it was lost then.
    fn not_resent_error(&self, tool: &str, left: u32, lost: Option<(String, Health)>, error: Error) -> Error {
        match lost {
            Some((why, health)) if left > 0 => self.lost_call(tool, left, why, &health, Some(error)),
            _ => error,
        }
    }

    /// Builds the error of a lost call: that of [`Session::lost_request`], with advice if the call may have run.
    fn lost_call(
        &self,
        tool: &str,
        left: u32,
        why: String,
        health: &Health,
        restart: Option<Error>,
    ) -> Error {
        let mut error = self.lost_request(tool, left, why, health, restart);
        if left > 0 && error.help.is_none() {
            error.help = Some(MAY_RUN_TWICE.to_owned());
        }
        error.into()
    }

    /// The error of a request that is not sent again. `left` counts the times that it may have reached the server. `restart`
    /// is why the server is not there again: [`Error::Cancelled`] if it was stopped.
    pub(super) fn lost_request(
        &self,
        asked: &str,
        left: u32,
        why: String,
        health: &Health,
        restart: Option<Error>,
    ) -> ServerError {
        let outcome = outcome(left);
        let stopped = matches!(restart, Some(Error::Cancelled));
        let end = if stopped && health.death().is_none() { "stopped" } else { "lost" };
        let mut error = self.lost(format!("was {end} during `{asked}` ({outcome})"));
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
            Some(Error::Cancelled) => {
                error.causes.push("the server was stopped and is not restarted automatically".to_owned());
                error.help = Some(format!(
                    "find out whether it has run before it is called again; toolcrib start {} starts the server",
                    self.name()
                ));
            }
            Some(failed) => {
                // It names the death too, because other callers get it too.
                let known = health.death().map(|death| format!("before that: {death}"));
                error.causes.push(failed.to_string());
                error
                    .causes
                    .extend(failed.causes().into_iter().filter(|cause| Some(cause) != known.as_ref()));
                error.stderr_tail = failed.stderr_tail().to_vec();
            }
        }
        error
    }
}

/// Describes the outcome of a request without an answer; `left` counts the times that it may have reached the server.
fn outcome(left: u32) -> String {
    match left {
        0 => "it was not run".to_owned(),
        1 => "outcome unknown, it was sent once and may have run".to_owned(),
        times => format!("outcome unknown, it was sent {times} times and may have run each time"),
    }
}

fn may_repeat(policy: RetryCalls, hints: ToolAnnotations) -> bool {
    let read_only = hints.read_only_hint == Some(true);
    match policy {
        RetryCalls::Never => false,
        RetryCalls::ReadOnly => read_only,
        RetryCalls::Idempotent => hints.is_repeatable(),
    }
}

/// `endless` if the server went on reporting progress until the ceiling.
async fn silence(health: &Health, call: &AwaitedCall<'_>, endless: bool) -> Silence {
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

impl From<NoReply> for CallFailure {
    /// Converts every reason except a timeout, which leaves the session as it was.
    fn from(none: NoReply) -> Self {
        let (never_left, why) = match none {
            NoReply::NotSent => (true, "the session had ended before the call was sent".to_owned()),
            NoReply::NotWritten(error) => (!error.may_have_left, error.reason),
            NoReply::Ended { never_left } => (never_left, "the connection ended during the call".to_owned()),
            NoReply::Timeout(after) => (false, format!("there was no answer within {after:?}")),
            NoReply::Unauthorized(missing) => (true, missing.why),
            NoReply::Refused(refused) => (true, refused.why),
            NoReply::SessionEnded(why) => return Self::SessionEnded { why },
            NoReply::Unknown(why) => return Self::Unknown { why },
        };
        Self::Session { never_left, why }
    }
}

impl CallAnswer {
    /// Whether the tool or the server says that the call has failed.
    pub(super) fn is_error(&self) -> bool {
        #[derive(serde::Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Flag<'a> {
            #[serde(borrow)]
            is_error: Option<&'a RawValue>,
        }
        match self {
            Self::Result(result) => result.is_error,
            Self::Written(Err(_)) => true,
            Self::Written(Ok(result)) => {
                let flag: serde_json::Result<Flag> = serde_json::from_str(result.get());
                flag.is_ok_and(|flag| flag.is_error.is_some_and(|flag| is_set(flag.get())))
            }
        }
    }
}
