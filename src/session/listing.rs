//! The tools of a live connection: all pages within bounds, and again whenever the server says they changed.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
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
use tokio_util::sync::CancellationToken;

use super::{
    convert,
    cut::weigh,
    failure::Cause,
    handshake::{Era, era_of},
    intake::Intake,
};
use crate::{
    catalog::{Listing, ServerSoftware},
    tool::Tool,
};

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

/// The tools of one server as last listed.
pub(super) struct ToolList {
    now: Mutex<Listed>,
    /// Cancelled once the server has listed what it must not.
    refused: CancellationToken,
}

/// One list.
#[derive(Clone)]
pub(super) struct Listed {
    /// How often it has changed.
    pub(super) times: u64,
    pub(super) tools: Arc<[Tool]>,
    /// When it was given.
    pub(super) when: SystemTime,
}

impl ToolList {
    pub(super) fn new(tools: Arc<[Tool]>, when: SystemTime) -> Self {
        let now = Mutex::new(Listed { times: 0, tools, when });
        Self { now, refused: CancellationToken::new() }
    }

    pub(super) fn now(&self) -> Listed {
        self.now.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Cancelled once the server has listed what it must not: it is not to be called any more.
    pub(super) fn refused(&self) -> &CancellationToken {
        &self.refused
    }

    fn replace(&self, tools: Arc<[Tool]>) {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        now.when = SystemTime::now();
        if *now.tools != *tools {
            (now.times, now.tools) = (now.times + 1, tools);
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
pub(super) async fn all_tools(peer: &Peer<RoleClient>, limit: Duration) -> Result<Listing, Cause> {
    let broken = |what: String| Cause::Protocol(format!("`tools/list` {what}"));
    let mut tools: Vec<Tool> = Vec::new();
    let (mut bytes, mut values) = (0, 0);
    let mut seen = std::collections::HashSet::new();
    let mut cursor = None;
    let mut ttl = None;
    for _ in 0..MAX_PAGES {
        let page = page(peer, cursor.take(), limit).await?;
        ttl = ttl.into_iter().chain(page.ttl_ms).min();
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
            None => return Ok(listing(peer, tools, ttl)),
            Some(next) if !seen.insert(next.clone()) => {
                return Err(broken(format!("gave the cursor {next:?} twice")));
            }
            next => cursor = next,
        }
    }
    Err(broken(format!("has more than {MAX_PAGES} pages")))
}

/// The list with what is known of the server. A time to live is for the era that has such a thing: what servers of
/// the old one call so is nobody's word on it.
pub(super) fn listing(peer: &Peer<RoleClient>, tools: Vec<Tool>, ttl_ms: Option<u64>) -> Listing {
    let info = peer.peer_info();
    let version = info.as_ref().map_or_else(Default::default, |info| info.protocol_version.clone());
    let software = info.and_then(|info| info.server_info.clone());
    Listing {
        software: software.map(|it| ServerSoftware { name: it.name, version: it.version }),
        ttl: ttl_ms.map(Duration::from_millis).filter(|_| era_of(&version) == Era::Modern),
        version: version.to_string(),
        tools: tools.into(),
    }
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
pub(super) async fn follow(
    peer: Peer<RoleClient>,
    list: Arc<ToolList>,
    intake: Intake,
    changed: Arc<Notify>,
    era: Era,
) {
    match era {
        Era::Legacy => loop {
            changed.notified().await;
            tokio::time::sleep(SETTLE).await;
            // In a box, as most of the time nothing changes, and this waits for as long as the server lives.
            Box::pin(relist(&peer, &list, &intake)).await;
        },
        Era::Modern => Box::pin(subscribe(&peer, &list, &intake)).await,
    }
}

/// As the era of 2026-07-28 has it: changes are told to those who listen.
async fn subscribe(peer: &Peer<RoleClient>, list: &ToolList, intake: &Intake) {
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
        Box::pin(relist(peer, list, intake)).await;
        loop {
            match subscription.next().await {
                Ok(Some(ServerNotification::ToolListChangedNotification(_))) => {
                    tokio::time::sleep(SETTLE).await;
                    Box::pin(relist(peer, list, intake)).await;
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

async fn relist(peer: &Peer<RoleClient>, list: &ToolList, intake: &Intake) {
    match all_tools(peer, PAGE_LIMIT).await {
        Ok(listing) => match intake.take(&listing) {
            Ok(_) => list.replace(listing.tools),
            Err(cause) => {
                tracing::warn!(?cause, "the changed tool list is refused");
                list.refused.cancel();
            }
        },
        Err(cause) => tracing::warn!(?cause, "the changed tool list cannot be read; the old one stays"),
    }
}
