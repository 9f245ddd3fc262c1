//! Servers whose tools are functions of the client: small MCP servers in memory, which pass calls on.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use serde::Deserialize;
use serde_json::{Map, Value, json, value::RawValue};
use tokio::io::{AsyncWriteExt, DuplexStream};

use super::{
    callbacks::Callbacks,
    lines::Lines,
    message::{invalid, raw, refusal},
};
use crate::{
    cancel::CancellationToken,
    config::{self, Config, Endpoint, LocalServer, ServerEntry},
    error::Result,
    tool::{ServerName, Tool},
};

/// Revision of MCP that these servers speak.
const REVISION: &str = "2025-11-25";

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
        callbacks: &Callbacks,
    ) -> Self {
        let manager: Arc<str> = manager.into();
        let made = |(name, FunctionServer { tools, instructions }): (ServerName, FunctionServer)| {
            let tools = tools.into_iter().map(tool).collect::<std::result::Result<Vec<_>, _>>();
            let server = tools.map(|tools| {
                let functions = Arc::new(Functions {
                    server: name.clone(),
                    manager: manager.clone(),
                    tools,
                    instructions,
                    callbacks: callbacks.clone(),
                });
                LocalServer::new(move |stream| functions.clone().serve(stream))
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
fn tool(mut tool: Map<String, Value>) -> std::result::Result<Value, String> {
    for (ours, theirs) in [("input_schema", "inputSchema"), ("output_schema", "outputSchema")] {
        if let Some(value) = tool.remove(ours) {
            tool.insert(theirs.to_owned(), value);
        }
    }
    tool.retain(|_, value| !value.is_null());
    if !tool.contains_key("inputSchema") {
        tool.insert("inputSchema".to_owned(), json!({"type": "object"}));
    }
    let (known, unusable) = Tool::from_wire(tool.clone()).map_err(|why| format!("a tool {why}"))?;
    match unusable.first() {
        Some(member) => Err(format!("`{member}` of the tool `{}` cannot be used", known.name)),
        None => Ok(Value::Object(tool)),
    }
}

struct Functions {
    server: ServerName,
    manager: Arc<str>,
    tools: Vec<Value>,
    instructions: Option<String>,
    callbacks: Callbacks,
}

/// A message of the manager.
#[derive(Deserialize)]
struct Asked {
    id: Option<Box<RawValue>>,
    #[serde(default)]
    method: String,
    params: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
struct Called {
    name: String,
    arguments: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
struct GivenUp {
    #[serde(rename = "requestId")]
    id: Box<RawValue>,
}

impl Functions {
    /// Serves one connection.
    async fn serve(self: Arc<Self>, stream: DuplexStream) {
        let (read, mut write) = tokio::io::split(stream);
        let (mut lines, mut calls) = (Lines::new(read), FuturesUnordered::new());
        let mut open = HashMap::<String, CancellationToken>::new();
        loop {
            let answer = tokio::select! {
                biased;
                Some((id, answer)) = calls.next() => {
                    let id: Box<RawValue> = id;
                    open.remove(id.get());
                    answer
                }
                line = lines.next() => {
                    let Ok(Some(line)) = line else { return };
                    let Ok(Asked { id, method, params }) = serde_json::from_slice(line) else { continue };
                    match (id, method.as_str()) {
                        (Some(id), "tools/call") => {
                            let cancel = CancellationToken::new();
                            open.insert(id.get().to_owned(), cancel.clone());
                            calls.push(self.call(id, params, cancel));
                            continue;
                        }
                        (Some(id), method) => self.answer(&id, method),
                        (None, "notifications/cancelled") => {
                            let params = params.as_deref().map_or("null", RawValue::get);
                            if let Ok(GivenUp { id }) = serde_json::from_str(params)
                                && let Some(call) = open.get(id.get())
                            {
                                call.cancel();
                            }
                            continue;
                        }
                        (None, _) => continue,
                    }
                }
            };
            if write.write_all((answer + "\n").as_bytes()).await.is_err() {
                return;
            }
        }
    }

    fn answer(&self, id: &RawValue, method: &str) -> String {
        let result = match method {
            "initialize" => {
                let software = json!({"name": self.server, "version": env!("CARGO_PKG_VERSION")});
                let mut result = json!({"protocolVersion": REVISION, "capabilities": {"tools": {}}, "serverInfo": software});
                if let Some(instructions) = &self.instructions {
                    result["instructions"] = instructions.as_str().into();
                }
                result
            }
            "tools/list" => json!({"tools": self.tools}),
            "ping" => json!({}),
            _ => return refusal(id, -32601, "there is no such method"),
        };
        format!(r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#, id.get())
    }

    /// Has the client call a function; the line of the answer. If it is dropped or cancelled, the client hears of it.
    async fn call(
        &self,
        id: Box<RawValue>,
        params: Option<Box<RawValue>>,
        cancel: CancellationToken,
    ) -> (Box<RawValue>, String) {
        let params = params.as_deref().map_or("null", RawValue::get);
        let Called { name, arguments } = match serde_json::from_str(params) {
            Ok(called) => called,
            Err(error) => {
                let refused = refusal(&id, -32602, &error.to_string());
                return (id, refused);
            }
        };
        let arguments = arguments.unwrap_or_else(|| raw(&json!({})));
        let asked =
            FunctionCall { manager: &self.manager, server: &self.server, tool: &name, arguments: &arguments };
        let asking = self.callbacks.ask("function.call", &asked);
        let result = match cancel.run_until_cancelled(asking).await {
            Some(Ok(result)) => result,
            Some(Err(error)) => {
                raw(&json!({"content": [{"type": "text", "text": error.message}], "isError": true}))
            }
            None => {
                let refused = refusal(&id, -32800, "the call was cancelled");
                return (id, refused);
            }
        };
        let answer = format!(r#"{{"jsonrpc":"2.0","id":{},"result":{}}}"#, id.get(), one_line(&result));
        (id, answer)
    }
}

/// Parameters of the request `function.call`.
#[derive(serde::Serialize)]
struct FunctionCall<'a> {
    manager: &'a str,
    server: &'a ServerName,
    tool: &'a str,
    arguments: &'a RawValue,
}

/// JSON without line feeds, which would end the message. Inside of texts there are none.
pub(super) fn one_line(json: &RawValue) -> String {
    json.get().replace(['\n', '\r'], " ")
}
