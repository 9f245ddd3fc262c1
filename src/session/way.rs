//! The way to a server: over lines, or through the SDK to one behind a URL. What is asked of servers besides calls
//! is asked here. The SDK's futures are in boxes: they are large, and what waits for lines is not to hold their room.

use std::time::Duration;

use rmcp::{
    model::{
        ClientRequest, ListToolsRequest, ListToolsResult, PaginatedRequestParams, PingRequest, ServerResult,
    },
    service::{Peer, PeerRequestOptions, RoleClient, ServiceError},
};
use serde_json::{Map, Value};

use super::{
    convert,
    cut::Cutter,
    decode::why_unusable,
    failure::Cause,
    handshake::{Era, discover_request},
    lane::{Answer, Lane},
    remote,
    reply::{NoReply, Patience, Reply},
};

/// The way to one server. Clones share it.
#[derive(Clone)]
pub(super) enum Way {
    Lines(Lane),
    Remote(Peer<RoleClient>),
}

impl Way {
    /// Whether the connection has ended.
    pub(super) fn is_closed(&self) -> bool {
        match self {
            Self::Lines(lane) => lane.is_ended(),
            Self::Remote(peer) => peer.is_transport_closed(),
        }
    }

    /// Calls `tool`. If the time is over, or the future is dropped, the server is told to cancel.
    pub(super) async fn call(
        &self,
        tool: &str,
        arguments: &Map<String, Value>,
        patience: Patience,
        cutter: impl FnOnce() -> Cutter,
    ) -> Result<Reply, NoReply> {
        match self {
            Self::Lines(lane) => lane.call(tool, arguments, patience).await,
            Self::Remote(peer) => Box::pin(remote::call(peer, tool, arguments, patience, &cutter())).await,
        }
    }

    /// One page of the tool list. Over HTTP, past the SDK's cache: that one answers with an old list when the server
    /// fails.
    pub(super) async fn page(
        &self,
        cursor: Option<String>,
        limit: Duration,
    ) -> Result<ListToolsResult, Cause> {
        let broken = |why: String| Cause::Protocol(format!("`tools/list` {why}"));
        match self {
            Self::Lines(lane) => {
                let params = cursor.map(|cursor| ("cursor".to_owned(), Value::String(cursor)));
                match lane.ask("tools/list", &params.into_iter().collect(), limit).await {
                    Ok(Answer::Result(result)) => serde_json::from_str(result.get())
                        .map_err(|error| broken(format!("gave an answer that cannot be used: {error}"))),
                    Ok(Answer::Plain(_)) => Err(broken("was answered with something else".to_owned())),
                    Ok(Answer::Refused(error)) => Err(broken(refusal(&error))),
                    Err(NoReply::NotSent | NoReply::NotWritten(_) | NoReply::Ended) => Err(Cause::Closed),
                    Err(NoReply::Timeout(_)) => Err(Cause::Timeout),
                    Err(NoReply::Broken(why)) => Err(broken(format!("failed: {why}"))),
                }
            }
            Self::Remote(peer) => {
                let params = PaginatedRequestParams::default().with_cursor(cursor);
                let request = ClientRequest::ListToolsRequest(ListToolsRequest::with_param(params));
                match ask_remote(peer, request, limit).await {
                    Ok(ServerResult::ListToolsResult(page)) => Ok(page),
                    Ok(_) => Err(broken("was answered with something else".to_owned())),
                    Err(ServiceError::TransportClosed | ServiceError::TransportSend(_)) => Err(Cause::Closed),
                    Err(ServiceError::Timeout { .. }) => Err(Cause::Timeout),
                    Err(ServiceError::McpError(error)) => Err(broken(refusal(&error))),
                    Err(error) => Err(broken(format!("failed: {error}"))),
                }
            }
        }
    }

    /// Whether there is an answer of any kind within `limit` to the [question](question) of `era`. A server that
    /// cannot be asked is none of those who do not answer: its end is noticed as such.
    pub(super) async fn answers(&self, era: Era, limit: Duration) -> bool {
        match self {
            Self::Lines(lane) => match lane.ask(question(era), &Map::new(), limit).await {
                Err(NoReply::Timeout(_)) => false,
                Err(NoReply::Ended | NoReply::NotWritten(_)) => unreachable_for(limit).await,
                _ => true,
            },
            Self::Remote(peer) => {
                let request = match era {
                    Era::Legacy => ClientRequest::PingRequest(PingRequest::default()),
                    Era::Modern => ClientRequest::DiscoverRequest(discover_request()),
                };
                match ask_remote(peer, request, limit).await {
                    Err(ServiceError::Timeout { .. }) => false,
                    Err(ServiceError::TransportSend(_) | ServiceError::TransportClosed) => {
                        unreachable_for(limit).await
                    }
                    _ => true,
                }
            }
        }
    }
}

/// What a server is asked to see whether it is there. The 2026-07-28 revision has no `ping`; every server of it
/// answers `server/discover`.
pub(super) fn question(era: Era) -> &'static str {
    match era {
        Era::Legacy => "ping",
        Era::Modern => "server/discover",
    }
}

/// The death of a process is noticed within `limit`, and told with its real cause. A remote server that cannot be
/// reached has no other way to tell.
async fn unreachable_for(limit: Duration) -> bool {
    tokio::time::sleep(limit).await;
    false
}

async fn ask_remote(
    peer: &Peer<RoleClient>,
    request: ClientRequest,
    limit: Duration,
) -> Result<ServerResult, ServiceError> {
    let options = PeerRequestOptions::with_timeout(limit);
    let asking = async { peer.send_request_with_option(request, options).await?.await_response().await };
    Box::pin(asking).await
}

/// Continues the sentence "`tools/list` ...".
fn refusal(error: &rmcp::model::ErrorData) -> String {
    why_unusable(error).map_or_else(
        || format!("was refused: {} ({})", convert::brief(&error.message), error.code.0),
        |why| format!("gave an answer that cannot be used: {why}"),
    )
}
