//! Servers whose tools are functions of the client.

use std::{collections::BTreeMap, sync::Arc};

use rmcp::{
    ErrorData, RoleServer, ServerHandler, ServiceExt,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation, ListToolsResult,
        PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
    },
    service::RequestContext,
};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::io::DuplexStream;

use super::{callbacks::Callbacks, message::invalid};
use crate::{
    config::{self, Config, Endpoint, LocalServer, ServerEntry},
    error::Result,
    tool::ServerName,
};

/// A server of functions, as the client describes it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FunctionServer {
    /// In the form of MCP, but for the names of their members: `input_schema` or `inputSchema`.
    tools: Vec<Map<String, Value>>,
    instructions: Option<String>,
}

/// All servers of functions of one manager.
pub(super) struct FunctionServers(Vec<(ServerName, Result<LocalServer, String>)>);

impl FunctionServers {
    pub(super) fn new(
        servers: BTreeMap<ServerName, FunctionServer>,
        manager: String,
        callbacks: Callbacks,
    ) -> Self {
        let manager: Arc<str> = manager.into();
        let made = |(name, FunctionServer { tools, instructions }): (ServerName, FunctionServer)| {
            let tools = tools.into_iter().map(tool).collect::<std::result::Result<Vec<_>, _>>();
            let server = tools.map(|tools| {
                let functions = Functions {
                    server: name.clone(),
                    manager: manager.clone(),
                    tools: tools.into(),
                    instructions: instructions.map(Into::into),
                    callbacks: callbacks.clone(),
                };
                LocalServer::new(move |stream| serve(functions.clone(), stream))
            });
            (name, server)
        };
        Self(servers.into_iter().map(made).collect())
    }

    /// Adds the servers to a configuration. One that has a table of the same name there gets the settings of that.
    ///
    /// # Errors
    /// A tool has no name, or a wrong schema.
    pub(super) fn add_to(&self, config: &mut Config) -> Result<()> {
        for (name, server) in &self.0 {
            let server = server.clone().map_err(|why| invalid(format!("`functions` of `{name}`: {why}")))?;
            let endpoint = Endpoint::Local(server);
            let known = config.servers.get_mut(name).and_then(|entry| entry.server.as_mut().ok());
            if let Some(known) = known {
                known.endpoint = endpoint;
                continue;
            }
            let server = config::ServerConfig::new(name.clone(), endpoint);
            let mut made = Config::new([server]);
            let made: Option<ServerEntry> = made.servers.shift_remove(name);
            config.servers.extend(made.map(|entry| (name.clone(), entry)));
        }
        Ok(())
    }
}

/// A tool in the form of MCP.
fn tool(mut tool: Map<String, Value>) -> std::result::Result<Tool, String> {
    for (ours, theirs) in [("input_schema", "inputSchema"), ("output_schema", "outputSchema")] {
        if let Some(value) = tool.remove(ours).filter(|value| !value.is_null()) {
            tool.insert(theirs.to_owned(), value);
        }
    }
    if !tool.contains_key("inputSchema") {
        tool.insert("inputSchema".to_owned(), json!({"type": "object"}));
    }
    tool.retain(|_, value| !value.is_null());
    let name = tool.get("name").map_or_else(|| "a tool without a name".to_owned(), Value::to_string);
    serde_json::from_value(Value::Object(tool)).map_err(|error| format!("{name}: {error}"))
}

#[derive(Clone)]
struct Functions {
    server: ServerName,
    manager: Arc<str>,
    tools: Arc<[Tool]>,
    instructions: Option<Arc<str>>,
    callbacks: Callbacks,
}

async fn serve(functions: Functions, stream: DuplexStream) {
    match ServiceExt::<RoleServer>::serve(functions, stream).await {
        Ok(service) => drop(service.waiting().await),
        Err(error) => tracing::debug!(%error, "a server of functions ended before its handshake"),
    }
}

impl ServerHandler for Functions {
    fn get_info(&self) -> ServerConfig {
        let info = ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new(self.server.as_str(), env!("CARGO_PKG_VERSION")));
        match &self.instructions {
            Some(instructions) => info.with_instructions(instructions.to_string()),
            None => info,
        }
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> std::result::Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(self.tools.to_vec()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> std::result::Result<CallToolResponse, ErrorData> {
        let params = json!({
            "manager": self.manager,
            "server": self.server,
            "tool": request.name,
            "arguments": request.arguments.unwrap_or_default(),
        });
        let asking = self.callbacks.ask("function.call", &params);
        // Dropped when the call is given up: then the client hears of it.
        let answer = match context.ct.run_until_cancelled(asking).await {
            Some(answer) => answer,
            None => return Err(ErrorData::internal_error("the call was cancelled", None)),
        };
        let result: CallToolResult = match answer {
            Ok(result) => serde_json::from_str(result.get()).map_err(|error| {
                ErrorData::internal_error(format!("the function's result is none of a tool: {error}"), None)
            })?,
            Err(error) => CallToolResult::error(vec![ContentBlock::text(error.message)]),
        };
        Ok(result.into())
    }
}
