//! Tool calls that are recorded to, or replayed from, a cassette, and reported to the journal.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::toolbox::Toolbox;
use crate::{
    catalog::{CatalogEntry, ToolCatalog},
    error::{Error, Result, ServerError, Silence, Told},
    recording::{Answerer, Kind, Tap},
    tool::{ServerName, Tool, ToolResult},
};

/// A tap, and the tools that its agent saw last.
#[derive(Clone)]
pub(super) struct RecordedCalls {
    tap: Tap,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    id: String,
    catalog: Option<Arc<ToolCatalog>>,
}

/// How a call ended, as it is recorded. The failures with a variant come back as they were, since an agent goes on
/// differently after each; of all others only what they say is used, and that is what comes back.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Recorded {
    Result(ToolResult),
    Server(ServerError),
    Timeout {
        server: ServerName,
        tool: String,
        after: Duration,
        silence: Silence,
    },
    Refused {
        server: ServerName,
        tool: String,
        rpc_code: i64,
        message: String,
    },
    Arguments {
        server: ServerName,
        tool: String,
        problems: Vec<String>,
    },
    Denied {
        server: ServerName,
        tool: String,
        arg: String,
        pattern: String,
    },
    Unavailable {
        server: ServerName,
        cause: Told,
    },
    NoServer {
        name: String,
        suggestion: Option<String>,
    },
    NoTool {
        server: ServerName,
        tool: String,
        suggestion: Option<String>,
        #[serde(default)]
        denied: bool,
    },
    ToolDenied {
        server: ServerName,
        tool: String,
    },
    Other(Told),
}

impl RecordedCalls {
    pub(super) fn new(tap: &Tap) -> Self {
        Self { tap: tap.clone(), seen: Arc::default() }
    }

    /// The tools that the agent sees now: `now` in the world, or those that were seen at this point.
    pub(super) fn catalog(&self, now: impl FnOnce() -> Arc<ToolCatalog>) -> Arc<ToolCatalog> {
        if !self.tap.has_tape() {
            return now();
        }
        let n = self.tap.reading();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.tap.is_replay() {
            let now = now();
            if !seen.catalog.as_ref().is_some_and(|last| Arc::ptr_eq(last, &now)) {
                self.tap.saw(n, as_json(&now));
                seen.catalog = Some(now.clone());
            }
            return now;
        }
        let (id, servers) = match self.tap.recorded_tools(n, &seen.id) {
            Some((id, Some(servers))) => (id, servers),
            Some((_, None)) => return seen.catalog.clone().unwrap_or_default(),
            None => return Arc::default(),
        };
        let catalog = Arc::new(from_json(servers));
        *seen = Seen { id, catalog: Some(catalog.clone()) };
        catalog
    }

    /// Has a tool called by `call`, or its result looked up.
    pub(super) async fn call(
        &self,
        entry: &CatalogEntry,
        arguments: &Map<String, Value>,
        call: impl Future<Output = Result<ToolResult>>,
    ) -> Result<ToolResult> {
        let (server, tool) = (entry.server.as_str(), entry.tool.name.as_str());
        let span = self.tap.call_started(server, tool, arguments);
        let question = || json!({"server": server, "tool": tool, "arguments": arguments});
        let outcome = match self.tap.ask(Kind::Tool, question).await? {
            Answerer::World(pending) => {
                let outcome = call.await;
                if let Some(pending) = pending {
                    pending.answered(serde_json::to_value(Recorded::of(&outcome)).unwrap_or_default());
                }
                outcome
            }
            Answerer::Tape(answer) => Recorded::read(answer),
        };
        span.ended(&outcome);
        outcome
    }

    /// Has a server waited for by `wait`, or its outcome looked up.
    pub(super) async fn ready(&self, server: &str, wait: impl Future<Output = Result<()>>) -> Result<()> {
        match self.tap.ask(Kind::Server, || json!({"server": server})).await? {
            Answerer::World(None) => wait.await,
            Answerer::World(Some(pending)) => {
                let outcome = wait.await.map(|()| ToolResult::default());
                pending.answered(serde_json::to_value(Recorded::of(&outcome)).unwrap_or_default());
                outcome.map(drop)
            }
            Answerer::Tape(answer) => Recorded::read(answer).map(drop),
        }
    }
}

impl Toolbox {
    /// The same tools with somebody who listens.
    #[must_use]
    pub fn tapped(&self, tap: &Tap) -> Self {
        Self { taped: Some(RecordedCalls::new(tap)), ..self.clone() }
    }
}

impl Recorded {
    fn of(outcome: &Result<ToolResult>) -> Self {
        match outcome {
            Ok(result) => Self::Result(result.clone()),
            Err(Error::Server(error)) => Self::Server((**error).clone()),
            Err(Error::CallTimeout { server, tool, after, silence }) => Self::Timeout {
                server: server.clone(),
                tool: tool.clone(),
                after: *after,
                silence: (**silence).clone(),
            },
            Err(Error::CallRefused { server, tool, rpc_code, message }) => Self::Refused {
                server: server.clone(),
                tool: tool.clone(),
                rpc_code: *rpc_code,
                message: message.clone(),
            },
            Err(Error::ArgumentsInvalid { server, tool, problems }) => {
                Self::Arguments { server: server.clone(), tool: tool.clone(), problems: problems.clone() }
            }
            Err(Error::CallDenied { server, tool, arg, pattern }) => Self::Denied {
                server: server.clone(),
                tool: tool.clone(),
                arg: arg.clone(),
                pattern: pattern.clone(),
            },
            Err(Error::Unavailable { server, cause }) => {
                Self::Unavailable { server: server.clone(), cause: Told::from(&**cause) }
            }
            Err(Error::ServerNotFound { name, suggestion, .. }) => {
                Self::NoServer { name: name.clone(), suggestion: suggestion.clone() }
            }
            Err(Error::ToolNotFound { server, tool, suggestion, denied }) => Self::NoTool {
                server: server.clone(),
                tool: tool.clone(),
                suggestion: suggestion.clone(),
                denied: *denied,
            },
            Err(Error::ToolDenied { server, tool }) => {
                Self::ToolDenied { server: server.clone(), tool: tool.clone() }
            }
            Err(error) => Self::Other(Told::from(error)),
        }
    }

    fn read(answer: Value) -> Result<ToolResult> {
        let recorded = serde_json::from_value(answer)
            .map_err(|error| Error::input(format!("a recorded result cannot be read: {error}"), None))?;
        Err(match recorded {
            Self::Result(result) => return Ok(result),
            Self::Server(error) => error.into(),
            Self::Timeout { server, tool, after, silence } => {
                Error::CallTimeout { server, tool, after, silence: Box::new(silence) }
            }
            Self::Refused { server, tool, rpc_code, message } => {
                Error::CallRefused { server, tool, rpc_code, message }
            }
            Self::Arguments { server, tool, problems } => Error::ArgumentsInvalid { server, tool, problems },
            Self::Denied { server, tool, arg, pattern } => Error::CallDenied { server, tool, arg, pattern },
            Self::Unavailable { server, cause } => {
                Error::Unavailable { server, cause: Arc::new(Error::Told(Box::new(cause))) }
            }
            Self::NoServer { name, suggestion } => Error::ServerNotFound { name, suggestion, known: vec![] },
            Self::NoTool { server, tool, suggestion, denied } => {
                Error::ToolNotFound { server, tool, suggestion, denied }
            }
            Self::ToolDenied { server, tool } => Error::ToolDenied { server, tool },
            Self::Other(told) => Error::Told(Box::new(told)),
        })
    }
}

type Lists = Vec<(ServerName, Vec<Tool>)>;

/// The tools of each server, in order; where some are denied, those besides.
fn as_json(catalog: &ToolCatalog) -> Value {
    let servers = json!(lists(catalog.entries()));
    match catalog.denied() {
        [] => servers,
        denied => json!({"servers": servers, "denied": lists(denied)}),
    }
}

fn from_json(seen: Value) -> ToolCatalog {
    let read = |lists: Value| -> Lists { serde_json::from_value(lists).unwrap_or_default() };
    match seen {
        Value::Object(mut parts) => {
            let mut part = |key| read(parts.remove(key).unwrap_or_default());
            ToolCatalog::new(part("servers")).with_denied(part("denied"))
        }
        servers => ToolCatalog::new(read(servers)),
    }
}

fn lists(entries: &[Arc<CatalogEntry>]) -> Vec<(&ServerName, Vec<&Tool>)> {
    let mut servers: Vec<(&ServerName, Vec<&Tool>)> = Vec::new();
    for entry in entries {
        match servers.last_mut() {
            Some((server, tools)) if **server == entry.server => tools.push(&entry.tool),
            _ => servers.push((&entry.server, vec![&entry.tool])),
        }
    }
    servers
}
