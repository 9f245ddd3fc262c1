//! Tool servers that are shipped in the library: `time`, `files`, `calc`, `search`, `fetch`.
//!
//! Each is served in memory (`builtin = "time"` in a configuration) or as a process of its own
//! (`toolcrib builtin time`), through the same code and in both eras of the protocol. Everything they do is
//! read-only. What goes wrong in a tool is a tool error, which the model sees.

mod calc;
mod fetch;
mod files;
mod search;
mod settings;
mod time;
mod web;

pub use self::calc::fuzz as fuzz_calc;

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
use tokio::task::{JoinError, spawn_blocking};

use crate::{
    config::{BUILTINS, HttpConfig},
    error::{Error, Result, nearest},
    http::HttpClients,
    task::PageExtractor,
};

/// Time for which a list of tools is good: another list comes with another version only, and that is another program. Without
/// it the SDK would say that the list is good for no time at all.
const LIST_TTL_MS: u64 = 30 * 24 * 60 * 60 * 1000;

/// One built-in server, ready to serve.
#[derive(Clone)]
pub enum Builtin {
    Time,
    Files(Arc<files::Files>),
    Calc(calc::Calc),
    Search(Arc<search::Search>),
    Fetch(Arc<fetch::Fetch>),
}

/// Surroundings of a built-in server: its folder, clients and variables.
pub struct Site<'a> {
    /// Relative paths start here.
    pub base: &'a Path,
    /// HTTP clients, for servers that use the web.
    pub http: &'a HttpClients,
    /// Reads pages for `fetch`.
    pub extractor: Option<Arc<dyn PageExtractor>>,
    /// Where a key is taken from that the arguments do not give: nowhere in a process that is shared, whose
    /// environment is not this server's.
    pub variable: fn(&str) -> Option<String>,
}

/// The result of a tool: a value for structured content and text, or text alone.
enum Output {
    Text(String),
    Data(Value),
    /// A text for the model, and a value for those who count what it took.
    Both(String, Value),
}

type Outcome = Result<Output, String>;

impl Builtin {
    /// The server `name` with its arguments.
    pub fn parse(name: &str, args: &[String], site: &Site<'_>) -> Result<Self, String> {
        let (server, taken) = match name {
            "time" => (Self::Time, 0),
            "calc" => (Self::Calc(calc::Calc::default()), 0),
            "files" => {
                let root = args.first().map_or_else(|| site.base.to_owned(), |root| site.base.join(root));
                (Self::Files(Arc::new(files::Files::open(&root)?)), 1)
            }
            "search" => {
                let search = search::Search::open(args, site.http.clone(), site.variable)?;
                (Self::Search(Arc::new(search)), args.len())
            }
            "fetch" => {
                let fetch = fetch::Fetch::open(args, site.http.clone(), site.extractor.clone())?;
                (Self::Fetch(Arc::new(fetch)), args.len())
            }
            _ => {
                let meant =
                    nearest(name, BUILTINS.iter().copied()).map(|near| format!(", did you mean `{near}`?"));
                let names = BUILTINS.join(", ");
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
    pub async fn serve<T, E, A>(self, transport: T)
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
            Self::Calc(_) => "calc",
            Self::Search(_) => "search",
            Self::Fetch(_) => "fetch",
        }
    }

    fn tools(&self) -> Vec<Tool> {
        match self {
            Self::Time => time::tools(),
            Self::Files(_) => files::tools(),
            Self::Calc(_) => calc::tools(),
            Self::Search(search) => search.tools(),
            Self::Fetch(fetch) => fetch.tools(),
        }
    }

    /// `None` if there is no such tool.
    async fn run(self, tool: String, arguments: Map<String, Value>) -> Result<Option<Outcome>, JoinError> {
        // Reading files and long sums block; the session must go on meanwhile.
        spawn_blocking(match self {
            Self::Search(search) => return Ok(search.run(&tool, arguments).await),
            Self::Fetch(fetch) => return Ok(fetch.run(&tool, arguments).await),
            Self::Time => Box::new(move || time::run(&tool, arguments)) as Box<dyn FnOnce() -> _ + Send>,
            Self::Files(files) => Box::new(move || files.run(&tool, arguments)),
            Self::Calc(calc) => Box::new(move || calc.run(&tool, arguments)),
        })
        .await
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
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let running = self.clone().run(request.name.to_string(), request.arguments.unwrap_or_default());
        let outcome = context.ct.run_until_cancelled(running).await;
        let outcome = outcome
            .ok_or_else(|| ErrorData::internal_error("the call was cancelled", None))?
            .map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
        let unknown = || ErrorData::invalid_params(format!("there is no tool `{}`", request.name), None);
        Ok(match outcome.ok_or_else(unknown)? {
            Ok(Output::Text(text)) => CallToolResult::success(vec![ContentBlock::text(text)]),
            Ok(Output::Data(data)) => CallToolResult::structured(data),
            Ok(Output::Both(text, data)) => {
                let mut result = CallToolResult::structured(data);
                result.content = vec![ContentBlock::text(text)];
                result
            }
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
    let http = HttpClients::new(&HttpConfig::default())?;
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let site = Site { base, http: &http, extractor: None, variable };
    let server = Builtin::parse(name, args, &site).map_err(|why| Error::input(why, None))?;
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
    plain(&mut schema);
    let hints = ToolAnnotations::new().read_only(true).idempotent(true).destructive(false).open_world(false);
    Tool::new(name, description, Arc::new(schema)).with_annotations(hints)
}

/// A schema in the words that every client reads: some converters of clients know one type of a value, and no other formats and
/// keys than the most usual. An argument that may be left out is one that is not required; `null` is taken for it all the same,
/// and unknown arguments are refused by the tool.
fn plain(schema: &mut Map<String, Value>) {
    schema.remove("additionalProperties");
    // Rust's own types of numbers are no formats of JSON Schema.
    schema.remove("format");
    if schema.get("default").is_some_and(Value::is_null) {
        schema.remove("default");
    }
    if let Some(Value::Array(kinds)) = schema.get_mut("type") {
        kinds.retain(|kind| kind != "null");
        if let [one] = &mut kinds[..] {
            let one = one.take();
            schema.insert("type".to_owned(), one);
        }
    }
    if let Some(Value::Array(forms)) = schema.get_mut("anyOf") {
        forms.retain(|form| form.get("type").is_none_or(|kind| kind != "null"));
        if let [Value::Object(one)] = &mut forms[..] {
            let one = std::mem::take(one);
            schema.remove("anyOf");
            for (key, value) in one {
                schema.entry(key).or_insert(value);
            }
        }
    }
    if let Some(Value::Array(values)) = schema.get_mut("enum") {
        values.retain(|value| !value.is_null());
    }
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        properties.values_mut().filter_map(Value::as_object_mut).for_each(plain);
    }
    if let Some(Value::Object(items)) = schema.get_mut("items") {
        plain(items);
    }
}

/// The arguments of a call.
fn arguments<A: DeserializeOwned>(arguments: Map<String, Value>) -> Result<A, String> {
    serde_json::from_value(Value::Object(arguments)).map_err(|error| format!("wrong arguments: {error}"))
}

#[cfg(test)]
mod tests;
