//! The tools of a manager as one MCP server: all of them under their visible names, or those of one server under
//! their own.
//!
//! Both eras of the protocol are served, whichever era the servers speak. A call is cancelled when its client
//! cancels it, and when the client goes away.

use std::{borrow::Cow, sync::Arc, time::Duration};

use rmcp::{
    ErrorData, RoleServer, ServerHandler, ServiceExt,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation,
        ListToolsResult, PaginatedRequestParams, ProgressNotificationParam, ServerCapabilities, ServerConfig,
        SubscriptionFilter, Tool as WireTool, ToolAnnotations as WireAnnotations,
    },
    service::{Peer, RequestContext, SubscriptionContext},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{mpsc, watch},
};
use tokio_util::{io::InspectReader, sync, task::TaskTracker};

use crate::{
    cancel::CancellationToken,
    catalog::{CatalogEntry, ToolCatalog},
    error::{Error, ErrorCode},
    manager::Toolbox,
    session::CallOptions,
    session::{Progress, ProgressListener},
    tool::{ServerName, ToolResult},
};

/// Reports on one call that wait for a client that is slow to read.
const REPORTS: usize = 64;
/// A list of tools can change without an event: it is looked at as often.
const LOOK: Duration = Duration::from_secs(1);

/// One client's view of the tools.
#[derive(Clone)]
pub(crate) struct Gateway {
    toolbox: Toolbox,
    /// Only this server.
    only: Option<ServerName>,
    /// Changes when something happened to a server.
    news: watch::Receiver<u64>,
    /// Calls under way.
    calls: TaskTracker,
    /// The client will say nothing more: it waits for the answers to its calls, and for no news.
    said_all: CancellationToken,
    /// The client is gone. Of the type that the SDK takes.
    over: sync::CancellationToken,
    /// No new calls.
    draining: CancellationToken,
}

impl Gateway {
    /// `news` changes with every event of the servers; once `draining` is cancelled, calls are refused and the
    /// client is left when those under way have ended.
    pub(crate) fn new(
        toolbox: Toolbox,
        only: Option<ServerName>,
        news: watch::Receiver<u64>,
        draining: CancellationToken,
    ) -> Self {
        let (calls, over, said_all) = Default::default();
        Self { toolbox, only, news, calls, said_all, over, draining }
    }

    /// Serves one client until it leaves. Dropping the future cancels its calls.
    pub(crate) async fn serve<R, W>(self, read: R, write: W)
    where
        R: AsyncRead + Send + Unpin + 'static,
        W: AsyncWrite + Send + Unpin + 'static,
    {
        let _over = self.over.clone().drop_guard();
        let (calls, draining) = (self.calls.clone(), self.draining.clone());
        let gateway = self.clone();
        let said_all = self.said_all.clone();
        let read = InspectReader::new(read, move |bytes: &[u8]| {
            if bytes.is_empty() {
                said_all.cancel();
            }
        });
        let serving = async {
            let service = match self.serve_with_ct((read, write), gateway.over.child_token()).await {
                Ok(service) => service,
                Err(error) => return tracing::debug!(%error, "a client ended before its handshake"),
            };
            let peer = service.peer().clone();
            tokio::select! {
                _ = service.waiting() => {}
                () = gateway.announce(&peer) => {}
            }
        };
        tokio::select! {
            () = serving => {}
            () = async {
                draining.cancelled().await;
                calls.close();
                calls.wait().await;
            } => {}
        }
    }

    /// Tells a client of the old era when its list of tools has changed. Those of the new one ask for it.
    async fn announce(&self, peer: &Peer<RoleServer>) {
        let mut news = self.news.clone();
        let mut known = self.toolbox.catalog();
        loop {
            known = self.changed(&mut news, known).await;
            let legacy = peer.peer_info().is_some();
            if legacy && peer.notify_tool_list_changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// Waits until the tools are others than `known`.
    async fn changed(&self, news: &mut watch::Receiver<u64>, known: Arc<ToolCatalog>) -> Arc<ToolCatalog> {
        let shown = |catalog: &ToolCatalog| -> Vec<Arc<CatalogEntry>> {
            catalog.entries().iter().filter(|entry| self.shows(entry)).cloned().collect()
        };
        let mut seen = known;
        let before = shown(&seen);
        loop {
            let _ = tokio::time::timeout(LOOK, news.changed()).await;
            let now = self.toolbox.catalog();
            if Arc::ptr_eq(&now, &seen) {
                continue;
            }
            let same = |(one, other): (&Arc<CatalogEntry>, &Arc<CatalogEntry>)| {
                one.visible_name == other.visible_name && one.tool == other.tool
            };
            let after = shown(&now);
            if before.len() != after.len() || !before.iter().zip(&after).all(same) {
                return now;
            }
            seen = now;
        }
    }

    fn shows(&self, entry: &CatalogEntry) -> bool {
        self.only.as_ref().is_none_or(|only| entry.server == *only)
    }

    fn tool(&self, entry: &CatalogEntry) -> WireTool {
        let name = if self.only.is_some() { &entry.tool.name } else { &entry.visible_name };
        let tool = &entry.tool;
        let mut shown =
            WireTool::new(name.clone(), Cow::Owned(tool.description.clone()), tool.input_schema.clone());
        shown.output_schema.clone_from(&tool.output_schema);
        let hints = tool.annotations;
        let mut annotations = WireAnnotations::new();
        annotations.read_only_hint = hints.read_only_hint;
        annotations.destructive_hint = hints.destructive_hint;
        annotations.idempotent_hint = hints.idempotent_hint;
        annotations.open_world_hint = hints.open_world_hint;
        shown.with_annotations(annotations)
    }

    /// The tool that the client knows by `name`.
    fn entry(&self, name: &str) -> Option<Arc<CatalogEntry>> {
        let catalog = self.toolbox.catalog();
        match &self.only {
            Some(server) => catalog.find(server.as_str(), name).ok().cloned(),
            None => catalog.by_visible_name(name).cloned(),
        }
    }

    /// Why there is no tool of that name.
    fn unknown(&self, name: &str) -> ErrorData {
        let catalog = self.toolbox.catalog();
        let denied = |entry: &&Arc<CatalogEntry>| match &self.only {
            Some(server) => entry.server == *server && entry.tool.name == name,
            None => entry.visible_name == name,
        };
        let why = match catalog.denied().iter().find(denied) {
            Some(_) => format!("the tool `{name}` is denied by the configuration"),
            None => format!("there is no tool `{name}`"),
        };
        ErrorData::invalid_params(why, None)
    }

    /// Calls, and passes the server's reports on to a client that wants them, by the client's own token.
    async fn call_for(
        &self,
        request: CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some(token) = context.meta.get_progress_token() else { return self.call(request, None).await };
        let (tell, mut reports) = mpsc::channel(REPORTS);
        let calling = async move {
            // A client that does not read misses reports, and its call goes on.
            let listener: ProgressListener = Arc::new(move |report| drop(tell.try_send(report)));
            self.call(request, Some(&listener)).await
        };
        let passing = async {
            while let Some(Progress { progress, total, message, .. }) = reports.recv().await {
                let mut report = ProgressNotificationParam::new(token.clone(), progress);
                (report.total, report.message) = (total, message);
                // A client that is gone takes its call along.
                let _ = context.peer.notify_progress(report).await;
            }
        };
        // The listener ends with the call, and then what it has heard is passed on: before the answer.
        tokio::join!(calling, passing).0
    }

    async fn call(
        &self,
        request: CallToolRequestParams,
        progress: Option<&ProgressListener>,
    ) -> Result<CallToolResponse, ErrorData> {
        let entry = match self.entry(&request.name) {
            Some(entry) => entry,
            None => {
                // It may be one of a server that is being started.
                match &self.only {
                    Some(server) => drop(self.toolbox.await_server(server.as_str()).await),
                    None => self.toolbox.await_all().await,
                }
                self.entry(&request.name).ok_or_else(|| self.unknown(&request.name))?
            }
        };
        let arguments = request.arguments.unwrap_or_default();
        let options = CallOptions::new().progress(progress.cloned());
        let outcome = self.toolbox.call_entry(&entry, &arguments, &options).await;
        match outcome {
            Ok(result) => Ok(wire_result(result)),
            // The model is to read it and do better.
            Err(Error::ArgumentsInvalid { problems, .. }) => {
                let text = format!("the arguments do not fit the tool's schema: {}", problems.join("; "));
                Ok(CallToolResult::error(vec![ContentBlock::text(text)]).into())
            }
            // The call was not given up: that would have dropped it.
            Err(Error::Cancelled) => Err(wire_error(&Error::stopped_before(&entry.server, &entry.tool.name))),
            Err(error) => Err(wire_error(&error)),
        }
    }
}

impl ServerHandler for Gateway {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().enable_tool_list_changed().build();
        let name = self.only.as_ref().map_or("toolcrib".to_owned(), |only| format!("toolcrib-{only}"));
        ServerConfig::new(capabilities).with_server_info(Implementation::new(name, env!("CARGO_PKG_VERSION")))
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        // Few clients ask again: a start under way is waited for.
        tokio::select! {
            () = self.toolbox.await_all() => {}
            () = context.ct.cancelled() => {}
            () = self.over.cancelled() => {}
        }
        let catalog = self.toolbox.catalog();
        let shown = catalog.entries().iter().filter(|entry| self.shows(entry));
        Ok(ListToolsResult::with_all_items(shown.map(|entry| self.tool(entry)).collect()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        if self.draining.is_cancelled() {
            return Err(ErrorData::internal_error("the daemon is ending: connect again", None));
        }
        let call = self.calls.track_future(self.call_for(request, &context));
        // The client has cancelled the call or is gone; it may still read this.
        let cancelled = || ErrorData::internal_error("cancelled (outcome unknown, it may have run)", None);
        tokio::select! {
            outcome = call => outcome,
            () = context.ct.cancelled() => Err(cancelled()),
            () = self.over.cancelled() => Err(cancelled()),
        }
    }

    fn accepted_subscription_filter(&self, requested: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        // The library cuts it down to what this server says that it can.
        Some(requested.clone())
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let mut news = self.news.clone();
        let mut known = self.toolbox.catalog();
        loop {
            tokio::select! {
                () = context.cancelled() => return Ok(()),
                () = self.said_all.cancelled() => return Ok(()),
                () = self.over.cancelled() => return Ok(()),
                now = self.changed(&mut news, known.clone()) => known = now,
            }
            if context.sink().notify_tool_list_changed().await.is_err() {
                return Ok(());
            }
        }
    }
}

/// A result as the tool gave it, blocks of unknown kinds included.
fn wire_result(result: ToolResult) -> CallToolResponse {
    let ToolResult { content, structured_content, is_error } = result;
    let mut fields = json!({"content": content, "isError": is_error});
    if let Some(structured) = structured_content {
        fields["structuredContent"] = structured;
    }
    let shown: Result<CallToolResult, _> = serde_json::from_value(fields);
    // A kind of block that the library does not know was text to it before: so it stays.
    shown
        .unwrap_or_else(|_| CallToolResult::error(vec![ContentBlock::text(Value::from(content).to_string())]))
        .into()
}

/// An error of toolcrib, with all its parts.
fn wire_error(error: &Error) -> ErrorData {
    let data = serde_json::to_value(error).ok();
    match error.code() {
        ErrorCode::ToolNotFound | ErrorCode::ToolDenied | ErrorCode::ServerNotFound => {
            ErrorData::invalid_params(error.to_string(), data)
        }
        _ => ErrorData::internal_error(error.to_string(), data),
    }
}
