//! A server behind a URL: one tool over streamable HTTP, in both eras.

use std::{
    collections::HashSet,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use axum::{
    Router,
    extract::{ConnectInfo, Request, State},
    http::StatusCode,
    middleware::Next,
    response::Response,
    serve::ListenerExt,
};
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ListToolsResult,
        PaginatedRequestParams, ProgressNotificationParam, ProtocolVersion, ServerCapabilities,
        ServerConfig as Info, Tool,
    },
    service::RequestContext,
    transport::{
        StreamableHttpServerConfig, StreamableHttpService,
        streamable_http_server::session::local::LocalSessionManager,
    },
};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use toolcrib::{Config, Endpoint, ServerConfig, ServerName, config::HttpEndpoint};

/// A remote server with one tool that tells the era it is called in.
#[derive(Clone)]
struct Remote {
    legacy_only: bool,
}

impl ServerHandler for Remote {
    fn get_info(&self) -> Info {
        Info::new(ServerCapabilities::builder().enable_tools().build())
    }

    fn supported_protocol_versions(&self) -> std::borrow::Cow<'static, [ProtocolVersion]> {
        match self.legacy_only {
            true => vec![ProtocolVersion::V_2025_11_25].into(),
            false => ProtocolVersion::KNOWN_VERSIONS.into(),
        }
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let schema = json!({"type": "object"}).as_object().cloned().unwrap();
        Ok(ListToolsResult::with_all_items(vec![Tool::new("era", "the era", Arc::new(schema))]))
    }

    async fn call_tool(
        &self,
        params: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        if let Some(token) = context.meta.get_progress_token() {
            let report = ProgressNotificationParam::new(token, 0.5).with_total(1.0).with_message("half");
            let _ = context.peer.notify_progress(report).await;
        }
        let pause = params.arguments.as_ref().and_then(|arguments| arguments.get("ms")?.as_u64());
        tokio::time::sleep(Duration::from_millis(pause.unwrap_or(0))).await;
        let asks_for_trace =
            params.arguments.as_ref().is_some_and(|arguments| arguments.contains_key("trace"));
        if asks_for_trace {
            let context = context.meta.get("traceparent").and_then(Value::as_str).unwrap_or("none");
            return Ok(CallToolResult::success(vec![ContentBlock::text(context)]).into());
        }
        let era = context.protocol_version().map_or_else(String::new, |version| version.to_string());
        Ok(CallToolResult::success(vec![ContentBlock::text(era)]).into())
    }
}

async fn only_with_key(request: Request, next: Next) -> Result<Response, StatusCode> {
    match request.headers().get("x-key").map(axum::http::HeaderValue::as_bytes) {
        Some(b"open sesame") => Ok(next.run(request).await),
        _ => Err(StatusCode::FORBIDDEN),
    }
}

/// Serves until the test ends; gives the address.
pub(crate) async fn serve(legacy_only: bool) -> String {
    serve_counted(legacy_only, false).await.0
}

type Accepted = Box<dyn FnMut(&mut TcpStream) + Send>;

/// The clients' ends of all connections that had a request.
type Known = Arc<Mutex<HashSet<SocketAddr>>>;

/// Answers like a server without TCP_NODELAY: each request but the first one on a connection is answered late.
async fn late_when_kept(
    State(known): State<Known>,
    ConnectInfo(from): ConnectInfo<SocketAddr>,
    request: Request,
    next: Next,
) -> Response {
    let kept = !known.lock().unwrap().insert(from);
    if kept {
        tokio::time::sleep(Duration::from_millis(60)).await;
    }
    next.run(request).await
}

/// Serves like [`serve`], with a count of the connections that were made; on kept ones it may answer late.
pub(crate) async fn serve_counted(legacy_only: bool, stalls: bool) -> (String, Arc<AtomicUsize>) {
    let sessions = Arc::new(LocalSessionManager::default());
    let config = StreamableHttpServerConfig::default();
    let service = StreamableHttpService::new(move || Ok(Remote { legacy_only }), sessions, config);
    let router = Router::new().nest_service("/mcp", service).layer(axum::middleware::from_fn(only_with_key));
    let router = if stalls {
        router.layer(axum::middleware::from_fn_with_state(Known::default(), late_when_kept))
    } else {
        router
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let connections = Arc::<AtomicUsize>::default();
    let count = connections.clone();
    let accepted: Accepted = Box::new(move |socket| {
        socket.set_nodelay(true).unwrap();
        count.fetch_add(1, SeqCst);
    });
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    #[expect(clippy::disallowed_methods, reason = "ends with the test's runtime")]
    tokio::spawn(async move { axum::serve(listener.tap_io(accepted), service).await });
    (format!("http://{address}/mcp"), connections)
}

pub(crate) fn remote(url: String, key: Option<&str>) -> Config {
    let mut endpoint = HttpEndpoint::new(url);
    if let Some(key) = key {
        endpoint.headers.insert("x-key".to_owned(), key.to_owned());
    }
    Config::new([ServerConfig::new(ServerName::new("remote").unwrap(), Endpoint::Http(endpoint))])
}
