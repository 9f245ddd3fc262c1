//! Tool servers that need no key and no network, shipped in the library: `time`, `files`, `calc`.
//!
//! Each is served in memory (`builtin = "time"` in a configuration) or as a process of its own
//! (`toolcrib builtin time`), through the same code and in both eras of the protocol. Everything they do is
//! read-only. What goes wrong in a tool is a tool error, which the model sees.

mod calc;
mod files;
mod time;

use std::{path::Path, sync::Arc};

use rmcp::{
    ErrorData, RoleServer, ServerHandler, ServiceExt,
    model::{
        CacheScope, CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation,
        JsonObject, ListToolsResult, PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
        ToolAnnotations,
    },
    service::RequestContext,
    transport::IntoTransport,
};
use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::error::{Error, Result, nearest};

/// The names of the built-in servers.
pub const BUILTIN_NAMES: [&str; 3] = ["time", "files", "calc"];

/// For how long a list of tools is good: another one comes with another version only, and that is another program.
/// What the SDK says when nothing is said is that it is good for no time at all.
const LIST_TTL_MS: u64 = 30 * 24 * 60 * 60 * 1000;

/// One built-in server, ready to serve.
#[derive(Clone)]
pub(crate) enum Builtin {
    Time,
    Files(Arc<files::Files>),
    Calc,
}

/// What a tool gives: a value for structured content and text, or text alone.
enum Output {
    Text(String),
    Data(Value),
}

type Outcome = Result<Output, String>;

impl Builtin {
    /// The server `name` with its arguments; relative paths start at `base`.
    pub(crate) fn parse(name: &str, args: &[String], base: &Path) -> Result<Self, String> {
        let (server, taken) = match name {
            "time" => (Self::Time, 0),
            "calc" => (Self::Calc, 0),
            "files" => {
                let root = args.first().map_or_else(|| base.to_owned(), |root| base.join(root));
                (Self::Files(Arc::new(files::Files::open(&root)?)), 1)
            }
            _ => {
                let meant = nearest(name, BUILTIN_NAMES).map(|near| format!(", did you mean `{near}`?"));
                let names = BUILTIN_NAMES.join(", ");
                return Err(format!(
                    "no built-in server is named `{name}`{} There are: {names}",
                    meant.unwrap_or(".".into())
                ));
            }
        };
        match args.get(taken) {
            Some(surplus) => Err(format!("the built-in server `{name}` takes no argument `{surplus}`")),
            None => Ok(server),
        }
    }

    /// Serves until the peer closes.
    pub(crate) async fn serve<T, E, A>(self, transport: T)
    where
        T: IntoTransport<RoleServer, E, A>,
        E: std::error::Error + Send + Sync + 'static,
    {
        match ServiceExt::<RoleServer>::serve(self, transport).await {
            Ok(service) => drop(service.waiting().await),
            Err(error) => tracing::debug!(%error, "built-in server ended before its handshake"),
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Time => "time",
            Self::Files(_) => "files",
            Self::Calc => "calc",
        }
    }

    fn tools(&self) -> Vec<Tool> {
        match self {
            Self::Time => time::tools(),
            Self::Files(_) => files::tools(),
            Self::Calc => calc::tools(),
        }
    }

    fn run(&self, tool: &str, arguments: Map<String, Value>) -> Option<Outcome> {
        match self {
            Self::Time => time::run(tool, arguments),
            Self::Files(files) => files.run(tool, arguments),
            Self::Calc => calc::run(tool, arguments),
        }
    }
}

impl ServerHandler for Builtin {
    fn get_info(&self) -> ServerConfig {
        let name = format!("toolcrib-{}", self.name());
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new(name, env!("CARGO_PKG_VERSION")))
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let mut list = ListToolsResult::with_all_items(self.tools());
        list.ttl_ms = Some(LIST_TTL_MS);
        list.cache_scope = Some(CacheScope::Public);
        Ok(list)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let server = self.clone();
        let arguments = request.arguments.unwrap_or_default();
        let tool = request.name.clone();
        // Reading files and long sums block; the session must go on meanwhile.
        let outcome = tokio::task::spawn_blocking(move || server.run(&tool, arguments))
            .await
            .map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
        let unknown = || ErrorData::invalid_params(format!("there is no tool `{}`", request.name), None);
        Ok(match outcome.ok_or_else(unknown)? {
            Ok(Output::Text(text)) => CallToolResult::success(vec![ContentBlock::text(text)]),
            Ok(Output::Data(data)) => CallToolResult::structured(data),
            Err(why) => CallToolResult::error(vec![ContentBlock::text(why)]),
        }
        .into())
    }
}

/// Serves the built-in server `name` over standard input and output until the input ends.
///
/// # Errors
/// [`Error::Input`] for an unknown name or wrong arguments, [`Error::Io`] when the streams cannot be used.
pub async fn serve_builtin(name: &str, args: &[String], base: &Path) -> Result<()> {
    let server = Builtin::parse(name, args, base).map_err(|why| Error::input(why, None))?;
    let pipes = rmcp::transport::stdio_pipes();
    server.serve(pipes).await;
    Ok(())
}

/// A read-only tool with the arguments `A`.
fn tool<A: JsonSchema>(name: &'static str, description: &'static str) -> Tool {
    let generator = SchemaGenerator::new(SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    }));
    let mut schema: JsonObject = match generator.into_root_schema_for::<A>().to_value() {
        Value::Object(schema) => schema,
        _ => Map::new(),
    };
    schema.remove("title");
    let hints = ToolAnnotations::new().read_only(true).idempotent(true).destructive(false).open_world(false);
    Tool::new(name, description, Arc::new(schema)).with_annotations(hints)
}

/// The arguments of a call.
fn arguments<A: DeserializeOwned>(arguments: Map<String, Value>) -> Result<A, String> {
    serde_json::from_value(Value::Object(arguments)).map_err(|error| format!("wrong arguments: {error}"))
}

#[cfg(test)]
mod tests;
