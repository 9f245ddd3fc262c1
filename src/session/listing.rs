//! The tools of a live connection: all pages within bounds, and again whenever the server says they changed.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rmcp::{
    ClientHandler,
    model::{
        ClientConfig, ClientRequest, ListToolsRequest, PaginatedRequestParams, ServerNotification,
        ServerResult, SubscriptionFilter,
    },
    service::{NotificationContext, Peer, PeerRequestOptions, RoleClient, ServiceError},
};
use tokio::sync::Notify;

use super::{convert, cut::weigh, failure::Cause, handshake::Era};
use crate::tool::Tool;

/// Pages of a tool list before it counts as endless.
const MAX_PAGES: usize = 1000;
/// Tools of one server.
const MAX_TOOLS: usize = 10_000;
/// Bytes of one server's tools, as JSON.
const MAX_BYTES: usize = 4 << 20;
/// Values in one server's tools: they cost more memory than their bytes do.
const MAX_VALUES: usize = 200_000;

/// From the first word of a change until the list is read: changes come in flocks.
const SETTLE: Duration = Duration::from_millis(50);
/// How long a page of a list that is read again may take.
const PAGE_LIMIT: Duration = Duration::from_secs(30);
/// Pause before a subscription that ended is asked for again.
const RESUBSCRIBE: Duration = Duration::from_secs(1);

/// The tools of one connection as last listed.
pub(super) struct ToolList(Mutex<(u64, Arc<[Tool]>)>);

impl ToolList {
    pub(super) fn new(tools: Vec<Tool>) -> Self {
        Self(Mutex::new((0, tools.into())))
    }

    /// The tools, and how often they have changed.
    pub(super) fn now(&self) -> (u64, Arc<[Tool]>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn replace(&self, tools: Vec<Tool>) {
        let mut now = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if *now.1 != *tools {
            *now = (now.0 + 1, tools.into());
        }
    }
}

/// Our side of a session, as the SDK calls it: who we are, and an ear for changes.
pub(super) struct Ear {
    config: ClientConfig,
    changed: Arc<Notify>,
}

impl Ear {
    pub(super) fn new(config: ClientConfig) -> Self {
        Self { config, changed: Arc::default() }
    }

    /// Told when the server says that its tools changed.
    pub(super) fn changed(&self) -> Arc<Notify> {
        self.changed.clone()
    }
}

impl ClientHandler for Ear {
    fn get_info(&self) -> ClientConfig {
        self.config.clone()
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.changed.notify_one();
    }
}

/// All pages. A cursor that comes back, or more than is bearable, is an error and not an endless loop.
/// `limit` is that of one page.
pub(super) async fn all_tools(peer: &Peer<RoleClient>, limit: Duration) -> Result<Vec<Tool>, Cause> {
    let broken = |what: String| Cause::Protocol(format!("`tools/list` {what}"));
    let mut tools: Vec<Tool> = Vec::new();
    let (mut bytes, mut values) = (0, 0);
    let mut seen = std::collections::HashSet::new();
    let mut cursor = None;
    for _ in 0..MAX_PAGES {
        let page = page(peer, cursor.take(), limit).await?;
        for tool in page.tools.into_iter().map(convert::tool) {
            let json = serde_json::to_vec(&tool).unwrap_or_default();
            bytes += json.len();
            values += weigh(&json);
            tools.push(tool);
        }
        for (what, count, limit) in
            [("tools", tools.len(), MAX_TOOLS), ("bytes", bytes, MAX_BYTES), ("values", values, MAX_VALUES)]
        {
            if count > limit {
                return Err(broken(format!("has more than {limit} {what}")));
            }
        }
        match page.next_cursor.filter(|next| !next.is_empty()) {
            None => return Ok(tools),
            Some(next) if !seen.insert(next.clone()) => {
                return Err(broken(format!("gave the cursor {next:?} twice")));
            }
            next => cursor = next,
        }
    }
    Err(broken(format!("has more than {MAX_PAGES} pages")))
}

/// One page, past the SDK's cache: that one answers with an old list when the server fails.
async fn page(
    peer: &Peer<RoleClient>,
    cursor: Option<String>,
    limit: Duration,
) -> Result<rmcp::model::ListToolsResult, Cause> {
    let params = PaginatedRequestParams::default().with_cursor(cursor);
    let request = ClientRequest::ListToolsRequest(ListToolsRequest::with_param(params));
    let answer = async {
        let options = PeerRequestOptions::with_timeout(limit);
        peer.send_request_with_option(request, options).await?.await_response().await
    };
    match answer.await {
        Ok(ServerResult::ListToolsResult(page)) => Ok(page),
        Ok(_) => Err(Cause::Protocol("`tools/list` was answered with something else".to_owned())),
        Err(ServiceError::TransportClosed | ServiceError::TransportSend(_)) => Err(Cause::Closed),
        Err(ServiceError::Timeout { .. }) => Err(Cause::Timeout),
        Err(ServiceError::McpError(error)) => {
            let why = super::decode::why_unusable(&error).map_or_else(
                || format!("was refused: {} ({})", convert::brief(&error.message), error.code.0),
                |why| format!("gave an answer that cannot be used: {why}"),
            );
            Err(Cause::Protocol(format!("`tools/list` {why}")))
        }
        Err(error) => Err(Cause::Protocol(format!("`tools/list` failed: {error}"))),
    }
}

/// Keeps `list` up to date for as long as the connection lives.
pub(super) async fn follow(peer: Peer<RoleClient>, list: Arc<ToolList>, changed: Arc<Notify>, era: Era) {
    match era {
        Era::Legacy => loop {
            changed.notified().await;
            tokio::time::sleep(SETTLE).await;
            relist(&peer, &list).await;
        },
        Era::Modern => subscribe(&peer, &list).await,
    }
}

/// As the era of 2026-07-28 has it: changes are told to those who listen.
async fn subscribe(peer: &Peer<RoleClient>, list: &ToolList) {
    let wanted = SubscriptionFilter::builder().tools_list_changed().build();
    loop {
        let mut subscription = match peer.listen(wanted.clone()).await {
            Ok(subscription) => subscription,
            Err(error) => {
                tracing::debug!(%error, "changes of the tool list will not be heard of");
                return;
            }
        };
        // What changed before was told to nobody.
        relist(peer, list).await;
        loop {
            match subscription.next().await {
                Ok(Some(ServerNotification::ToolListChangedNotification(_))) => {
                    tokio::time::sleep(SETTLE).await;
                    relist(peer, list).await;
                }
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => break,
            }
        }
        if peer.is_transport_closed() {
            return;
        }
        tokio::time::sleep(RESUBSCRIBE).await;
    }
}

async fn relist(peer: &Peer<RoleClient>, list: &ToolList) {
    match all_tools(peer, PAGE_LIMIT).await {
        Ok(tools) => list.replace(tools),
        Err(cause) => tracing::warn!(?cause, "the changed tool list cannot be read; the old one stays"),
    }
}
