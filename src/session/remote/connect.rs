//! Opens a session with a remote server, in whichever protocol era it speaks.

use std::sync::Arc;

use rmcp::{
    model::{ProtocolVersion, ServerPeerInfo},
    service::{ClientLifecycleMode, serve_client_with_lifecycle},
    transport::{StreamableHttpClientTransport, streamable_http_client::StreamableHttpClientTransportConfig},
};
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;

use super::{
    client::{CloseNotifying, NotificationHandler, RemoteSession},
    error::http_cause,
    stalls::ToolClient,
};
use crate::{
    cancel::CancellationToken,
    config::HttpEndpoint,
    http::{self, HttpClients},
    session::{
        SessionObserver,
        connect::{
            failure::Cause,
            handshake::{Era, client_config},
        },
        transport::Transport,
        wire_log::WireLog,
    },
    tool::ServerName,
};

/// A session, what the server says of itself, the notice of changed tools, and the token of the session's end.
type Opened = (RemoteSession, Arc<ServerPeerInfo>, Arc<Notify>, CancellationToken);

/// A remote server, and the HTTP client of one connection to it.
pub(in crate::session) struct Remote<'a> {
    endpoint: &'a HttpEndpoint,
    client: ToolClient,
    wire_log: WireLog,
}

impl<'a> Remote<'a> {
    pub(in crate::session) fn new(
        endpoint: &'a HttpEndpoint,
        clients: &HttpClients,
        wire_log: WireLog,
    ) -> Self {
        Self { endpoint, client: ToolClient::new(clients, &endpoint.url), wire_log }
    }

    /// Opens a session: in the newer era first, unless the older one is known.
    pub(in crate::session) async fn open(&self, known: Option<Era>) -> Result<Opened, Cause> {
        if known != Some(Era::Legacy) {
            let discover =
                ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::LATEST] };
            match self.open_as(discover).await {
                Err(Cause::Protocol(why)) => {
                    tracing::debug!(why = self.wire_log.secrets.hide(&why), "not of the new era");
                }
                outcome => return outcome,
            }
        }
        self.open_as(ClientLifecycleMode::Initialize).await
    }

    async fn open_as(&self, lifecycle: ClientLifecycleMode) -> Result<Opened, Cause> {
        let url = self.endpoint.url.as_str();
        let headers = http::headers(&self.endpoint.headers).map_err(Cause::Protocol)?;
        let config = StreamableHttpClientTransportConfig::with_uri(url).custom_headers(headers);
        let transport = StreamableHttpClientTransport::with_client(self.client.clone(), config);
        let (transport, gone) = CloseNotifying::new(transport, self.wire_log.clone());
        let handler = NotificationHandler::new(client_config());
        let service = serve_client_with_lifecycle(handler, transport, lifecycle)
            .await
            .map_err(|error| http_cause(&error, url))?;
        let info = service.peer_info().ok_or(Cause::Closed)?;
        let changed = service.service().changed();
        Ok((RemoteSession(service), info, changed, gone))
    }

    /// Looks beside the session whether a server at `http://` stalls on kept connections.
    pub(in crate::session) fn look_for_stalls(
        &self,
        transport: Transport,
        era: Era,
        name: ServerName,
        tell: SessionObserver,
    ) -> Option<AbortOnDropHandle<()>> {
        self.endpoint.url.starts_with("http://").then(|| {
            let look = self.client.clone().look_for_stalls(transport, era, name, tell);
            #[expect(clippy::disallowed_methods, reason = "the connection holds the handle")]
            AbortOnDropHandle::new(tokio::spawn(look))
        })
    }
}
