//! Agreeing on the protocol with a server on lines: both eras, one process, no fixed wait.
//!
//! The 2026-07-28 revision has no handshake: `server/discover` tells what a server speaks. Older servers want
//! `initialize` first. The SDK's automatic mode waits ten seconds for a server that ignores the question and
//! fails for ever when the answer comes late; here the question is followed by `initialize` after a short
//! wait, without giving up on either, and a late answer is swallowed.

use std::time::Duration;

use rmcp::{
    model::{
        ClientConfig, ClientJsonRpcMessage, ClientNotification, ClientRequest, ClientResult, DiscoverRequest,
        DiscoverRequestParams, DiscoverResult, Implementation, InitializeRequest, InitializedNotification,
        JsonRpcMessage, ProtocolVersion, RequestId, RequestMetaObject, ServerPeerInfo, ServerRequest,
        ServerResult,
    },
    transport::Transport,
};

use super::{convert, transport::LineTransport};

/// How long a server may leave `server/discover` unanswered before it is asked the old way too.
const PROBE: Duration = Duration::from_secs(1);

/// The two lifecycles of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Era {
    /// `initialize`, up to 2025-11-25.
    Legacy,
    /// `server/discover` and metadata in every request, from 2026-07-28.
    Modern,
}

/// Why there is no agreement.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The stream ended.
    Closed,
    /// The server answered, but not so that we could go on.
    Refused(String),
}

/// Who we are. The version is pinned: the SDK's default is one that has no `initialize`.
pub(super) fn client_config() -> ClientConfig {
    let ours = Implementation::new("toolcrib", env!("CARGO_PKG_VERSION"));
    ClientConfig::new(rmcp::model::ClientCapabilities::default(), ours)
        .with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE)
}

/// The era of an agreed version.
pub(super) fn era_of(version: &ProtocolVersion) -> Era {
    if version.has_initialize() { Era::Legacy } else { Era::Modern }
}

/// What every request of the new era says about us.
pub(super) fn client_context() -> RequestMetaObject {
    let ours = client_config();
    RequestMetaObject::with_client_context(ProtocolVersion::LATEST, ours.client_info, ours.capabilities)
}

/// The era of a version that was agreed on at an earlier time. Unknown ones are newer than we are: such servers are
/// asked.
pub(super) fn era_named(version: &str) -> Era {
    let known = ProtocolVersion::KNOWN_VERSIONS.iter().find(|known| known.as_str() == version);
    known.map_or(Era::Modern, era_of)
}

/// The question what a server speaks.
pub(super) fn discover_request() -> DiscoverRequest {
    let mut discover = DiscoverRequest::new(DiscoverRequestParams {});
    discover.extensions.insert(client_context());
    discover
}

/// Whether a server may choose `version` in its answer to `initialize`.
fn is_spoken(version: &ProtocolVersion) -> bool {
    ProtocolVersion::KNOWN_VERSIONS.contains(version) && version.has_initialize()
}

/// What the server speaks, cut, and what we do.
fn spoken(theirs: &[ProtocolVersion]) -> String {
    let list = |versions: &[ProtocolVersion]| {
        let names = versions.iter().map(|version| version.as_str().chars().take(40).collect::<String>());
        names.take(10).collect::<Vec<_>>().join(", ")
    };
    format!("the revision {} (toolcrib: {})", list(theirs), list(ProtocolVersion::KNOWN_VERSIONS))
}

fn discover_id() -> RequestId {
    // Text, so that a late answer can never be taken for one of the SDK's requests, which it numbers.
    RequestId::String("toolcrib-discover".into())
}

fn initialize_id() -> RequestId {
    RequestId::String("toolcrib-initialize".into())
}

/// Talks to the server until both know what they speak. `known` skips the question. Also says whether the
/// question was left out or without an answer.
pub(super) async fn negotiate(
    transport: &mut LineTransport,
    known: Option<Era>,
) -> Result<(ServerPeerInfo, bool), Refusal> {
    let mut talk = Talk {
        transport,
        modern: None,
        discover_open: false,
        unknown_versions: None,
        initialize: Initialize::NotSent,
    };
    match known {
        Some(Era::Legacy) => talk.send_initialize().await?,
        _ => talk.send_discover().await?,
    }
    let probe = tokio::time::sleep(PROBE);
    tokio::pin!(probe);
    loop {
        let message = tokio::select! {
            message = talk.transport.receive() => message.ok_or(Refusal::Closed)?,
            () = &mut probe, if talk.initialize == Initialize::NotSent => {
                talk.send_initialize().await?;
                continue;
            }
        };
        if let Some(info) = talk.hear(message).await? {
            return Ok((info, known == Some(Era::Legacy) || talk.discover_open));
        }
    }
}

#[derive(PartialEq)]
enum Initialize {
    NotSent,
    Sent,
    Refused(String),
}

struct Talk<'a> {
    transport: &'a mut LineTransport,
    /// A good answer to the question, when `initialize` had been sent already.
    modern: Option<ServerPeerInfo>,
    discover_open: bool,
    /// What it said it speaks, when that was nothing we know.
    unknown_versions: Option<String>,
    initialize: Initialize,
}

impl Talk<'_> {
    async fn hear(
        &mut self,
        message: rmcp::model::ServerJsonRpcMessage,
    ) -> Result<Option<ServerPeerInfo>, Refusal> {
        match message {
            JsonRpcMessage::Response(answer) if answer.id == discover_id() => {
                self.discover_open = false;
                match answer.result {
                    ServerResult::DiscoverResult(result) => self.discovered(result).await,
                    _ => self.not_modern().await,
                }
            }
            JsonRpcMessage::Response(answer) if answer.id == initialize_id() => match answer.result {
                // Whoever goes on in a revision that one side does not know talks past the other.
                ServerResult::InitializeResult(result) if !is_spoken(&result.protocol_version) => {
                    self.refused(format!("it speaks {}", spoken(&[result.protocol_version])))
                }
                ServerResult::InitializeResult(result) => {
                    let done =
                        ClientNotification::InitializedNotification(InitializedNotification::default());
                    self.send(ClientJsonRpcMessage::notification(done)).await?;
                    Ok(Some(result.into()))
                }
                _ => self.refused("its answer to `initialize` is of another kind".to_owned()),
            },
            JsonRpcMessage::Error(error) if error.id == Some(discover_id()) => {
                self.discover_open = false;
                self.not_modern().await
            }
            JsonRpcMessage::Error(error)
                if error.id == Some(initialize_id())
                    || (error.id.is_none() && self.initialize == Initialize::Sent) =>
            {
                self.refused(format!(
                    "it refused `initialize`: {} ({})",
                    convert::brief(&error.error.message),
                    error.error.code.0
                ))
            }
            // Servers that cannot read the question may answer without its id.
            JsonRpcMessage::Error(error) if error.id.is_none() => self.not_modern().await,
            JsonRpcMessage::Request(request) if matches!(request.request, ServerRequest::PingRequest(_)) => {
                let pong = ClientJsonRpcMessage::response(ClientResult::empty(()), request.id);
                self.send(pong).await?;
                Ok(None)
            }
            other => {
                tracing::debug!(?other, "ignored before the handshake");
                Ok(None)
            }
        }
    }

    async fn discovered(&mut self, result: DiscoverResult) -> Result<Option<ServerPeerInfo>, Refusal> {
        let version = ProtocolVersion::LATEST;
        if !result.supported_versions.contains(&version) {
            self.unknown_versions = Some(spoken(&result.supported_versions));
            return self.not_modern().await;
        }
        let info = ServerPeerInfo::from_discover_result(version, result);
        match self.initialize {
            Initialize::NotSent | Initialize::Refused(_) => Ok(Some(info)),
            // It may answer `initialize` as well and expect to be talked to in that way.
            Initialize::Sent => {
                self.modern = Some(info);
                Ok(None)
            }
        }
    }

    async fn not_modern(&mut self) -> Result<Option<ServerPeerInfo>, Refusal> {
        match &self.initialize {
            Initialize::NotSent => self.send_initialize().await.map(|()| None),
            Initialize::Sent => Ok(None),
            Initialize::Refused(why) => Err(Refusal::Refused(why.clone())),
        }
    }

    fn refused(&mut self, why: String) -> Result<Option<ServerPeerInfo>, Refusal> {
        if let Some(info) = self.modern.take() {
            return Ok(Some(info));
        }
        let why = match &self.unknown_versions {
            Some(versions) => format!("it speaks {versions}, and {why}"),
            None => why,
        };
        if self.discover_open {
            self.initialize = Initialize::Refused(why);
            return Ok(None);
        }
        Err(Refusal::Refused(why))
    }

    async fn send_discover(&mut self) -> Result<(), Refusal> {
        self.discover_open = true;
        let request = ClientRequest::DiscoverRequest(discover_request());
        self.send(ClientJsonRpcMessage::request(request, discover_id())).await
    }

    async fn send_initialize(&mut self) -> Result<(), Refusal> {
        self.initialize = Initialize::Sent;
        let initialize = InitializeRequest::new(client_config());
        let request = ClientRequest::InitializeRequest(initialize);
        self.send(ClientJsonRpcMessage::request(request, initialize_id())).await
    }

    async fn send(&mut self, message: ClientJsonRpcMessage) -> Result<(), Refusal> {
        // A server that died has closed its input; what it said before is still to be read.
        match self.transport.send(message).await {
            Ok(()) => Ok(()),
            Err(error) => {
                tracing::debug!(%error, "handshake could not be written");
                Err(Refusal::Closed)
            }
        }
    }
}
