//! The validated configuration: what the rest of the library reads. Code past this gate never re-checks.
//!
//! A file goes `servers.toml -> raw tables -> Config`: syntax and unknown keys are errors of the whole file,
//! a broken entry (an unset variable, say) is an error of that server alone and keeps its place in the list.

use std::{collections::BTreeMap, num::NonZeroUsize, path::PathBuf, sync::Arc, time::Duration};

use indexmap::IndexMap;

use crate::{error::Error, retry::RetryPolicy, tool::ServerName};

/// Everything that toolcrib reads from `servers.toml` and the files it imports.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Config {
    /// The file it came from; nothing when built in memory.
    pub file: Option<PathBuf>,
    /// Servers in configuration order, local ones first, then imported ones.
    pub servers: IndexMap<ServerName, ServerEntry>,
    /// How many servers may start at once. Nothing: all of them.
    pub start_jobs: Option<NonZeroUsize>,
    /// The shared HTTP clients.
    pub http: HttpConfig,
    /// The model. Nothing when no `[llm]` table names one.
    pub llm: Option<LlmConfig>,
    /// Defaults of agents.
    pub agent: AgentConfig,
    /// Secret values to hide in everything that is printed or written.
    pub secrets: Secrets,
    /// What an import did not understand, one line each.
    pub notes: Vec<String>,
}

/// One `[servers.NAME]` table.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ServerEntry {
    /// Whether a run without this server is worth nothing.
    pub required: bool,
    /// The file the entry came from.
    pub source: Option<PathBuf>,
    /// The server, or why its entry cannot be used.
    pub server: Result<ServerConfig, Arc<Error>>,
}

/// One usable server.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ServerConfig {
    /// Its name.
    pub name: ServerName,
    /// How it is reached.
    pub endpoint: Endpoint,
    /// Limit from the server's own turn until its tools are known.
    pub startup_timeout: Duration,
    /// Limit of one call; progress of the tool starts it anew.
    pub call_timeout: Duration,
    /// Limit of one call whatever its progress.
    pub max_call_time: Duration,
    /// Limits of single tools, in place of `call_timeout`.
    pub tool_timeouts: BTreeMap<String, Duration>,
    /// Which tools are offered and may be called.
    pub tools: ToolFilter,
    /// Calls at once; further ones queue. Nothing: no limit.
    pub max_concurrent_calls: Option<NonZeroUsize>,
    /// Which lost calls may be sent again.
    pub retry_calls: RetryCalls,
    /// How often a dead server is started again.
    pub restart: RestartPolicy,
    /// Waits of the stop ladder.
    pub stop: StopGrace,
}

/// How a server is reached.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Endpoint {
    /// A child process that speaks over its standard streams.
    Stdio(StdioConfig),
    /// A URL that speaks streamable HTTP.
    Http(HttpEndpoint),
    /// A tool server of this library, served in memory.
    Builtin {
        /// `time`, `files` or `calc`.
        name: String,
        /// Its arguments, as after `toolcrib builtin NAME`.
        args: Vec<String>,
        /// The folder that relative paths in `args` start from.
        base: PathBuf,
    },
}

/// A child process to start.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct StdioConfig {
    /// The program: a name to look up in `PATH`, or a path (relative ones are made absolute here).
    pub command: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// The whole environment of the child: allowed inherited names and the entry's own.
    pub env: BTreeMap<String, String>,
    /// Its working directory.
    pub cwd: PathBuf,
}

impl StdioConfig {
    /// A command with arguments in `cwd` and an empty environment.
    pub fn new(command: impl Into<PathBuf>, args: Vec<String>, cwd: impl Into<PathBuf>) -> Self {
        Self { command: command.into(), args, env: BTreeMap::new(), cwd: cwd.into() }
    }
}

/// A remote server.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct HttpEndpoint {
    /// Where it listens.
    pub url: String,
    /// Sent with every request.
    pub headers: BTreeMap<String, String>,
}

/// Allowed and denied tools, as glob patterns over the server's own tool names. Deny wins.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct ToolFilter {
    /// Offered tools. Empty: all.
    pub allow: Vec<globset::GlobMatcher>,
    /// Hidden tools, refused at call time too.
    pub deny: Vec<globset::GlobMatcher>,
}

impl ToolFilter {
    /// Whether `tool` is offered and may be called.
    pub fn permits(&self, tool: &str) -> bool {
        let any = |patterns: &[globset::GlobMatcher]| patterns.iter().any(|pattern| pattern.is_match(tool));
        (self.allow.is_empty() || any(&self.allow)) && !any(&self.deny)
    }
}

/// Which calls may be repeated after the server died under them. A lost call may have run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RetryCalls {
    /// None, unless the request provably never left.
    #[default]
    Never,
    /// Those of tools that the server calls read-only.
    ReadOnly,
    /// Those of tools that the server calls read-only or idempotent.
    Idempotent,
}

/// How often a dead server is started again.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct RestartPolicy {
    /// Restarts allowed within the window.
    pub max: u32,
    /// The window.
    pub within: Duration,
    /// First wait after a failed restart; doubles with each further failure.
    pub backoff: Duration,
    /// Greatest wait.
    pub backoff_cap: Duration,
}

impl Default for RestartPolicy {
    fn default() -> Self {
        Self {
            max: 3,
            within: Duration::from_secs(60),
            backoff: Duration::from_millis(200),
            backoff_cap: Duration::from_secs(10),
        }
    }
}

/// Waits of the stop ladder: after closing stdin, after SIGTERM.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct StopGrace {
    /// From closing stdin until SIGTERM.
    pub eof: Duration,
    /// From SIGTERM until SIGKILL.
    pub term: Duration,
}

impl Default for StopGrace {
    /// 1.5 s and 0.5 s: a Python server needs 0.2 s after end of input, a Node one up to 0.35 s.
    fn default() -> Self {
        Self { eof: Duration::from_millis(1500), term: Duration::from_millis(500) }
    }
}

impl ServerConfig {
    /// A server with default limits.
    pub fn new(name: ServerName, endpoint: Endpoint) -> Self {
        Self {
            name,
            endpoint,
            startup_timeout: Duration::from_secs(30),
            call_timeout: Duration::from_secs(60),
            max_call_time: Duration::from_secs(20 * 60),
            tool_timeouts: BTreeMap::new(),
            tools: ToolFilter::default(),
            max_concurrent_calls: None,
            retry_calls: RetryCalls::default(),
            restart: RestartPolicy::default(),
            stop: StopGrace::default(),
        }
    }
}

impl ServerEntry {
    /// A usable entry that is not required.
    pub fn new(server: ServerConfig) -> Self {
        Self { required: false, source: None, server: Ok(server) }
    }
}

/// The `[http]` table: the pooled clients for remote tool servers and for models.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct HttpConfig {
    /// Limit of making a connection.
    pub connect_timeout: Duration,
    /// Idle connections kept for each host. Active ones are never limited by the pool.
    pub max_idle_per_host: usize,
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self { connect_timeout: Duration::from_secs(5), max_idle_per_host: 256 }
    }
}

/// The `[llm]` table.
#[derive(Clone)]
#[non_exhaustive]
pub struct LlmConfig {
    /// Base URL up to and including `/v1`, or `None` for a scripted model.
    pub base_url: Option<String>,
    /// The model's name, or `script:FILE`.
    pub model: String,
    /// Keys, used in turn. Never printed.
    pub api_keys: Vec<String>,
    /// Requests at once. Nothing: no limit.
    pub max_in_flight: Option<NonZeroUsize>,
    /// Limit of one attempt.
    pub request_timeout: Duration,
    /// Attempts and waits.
    pub retry: RetryPolicy,
    /// Sampling temperature, if sent.
    pub temperature: Option<f64>,
    /// Greatest number of generated tokens, if sent.
    pub max_tokens: Option<u32>,
    /// Sampling seed, if sent.
    pub seed: Option<i64>,
    /// Further fields of the request body, exactly as configured. Nothing vendor-specific by default.
    pub extra_body: serde_json::Map<String, serde_json::Value>,
}

impl LlmConfig {
    /// A model behind an OpenAI-compatible endpoint, with defaults for everything else.
    pub fn new(base_url: Option<String>, model: impl Into<String>) -> Self {
        Self {
            base_url,
            model: model.into(),
            api_keys: Vec::new(),
            max_in_flight: NonZeroUsize::new(256),
            request_timeout: Duration::from_secs(10 * 60),
            retry: RetryPolicy::agent(),
            temperature: None,
            max_tokens: None,
            seed: None,
            extra_body: serde_json::Map::new(),
        }
    }
}

impl std::fmt::Debug for LlmConfig {
    /// Hides the keys.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LlmConfig")
            .field("base_url", &self.base_url)
            .field("model", &self.model)
            .field("api_keys", &self.api_keys.len())
            .finish_non_exhaustive()
    }
}

/// The `[agent]` table: defaults of every task.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct AgentConfig {
    /// System prompt.
    pub system: Option<String>,
    /// Model requests for one task.
    pub max_turns: u32,
    /// Tool calls for one task.
    pub max_tool_calls: u32,
    /// Wall-clock limit of one task.
    pub max_time: Duration,
    /// Whether the model may, must or must not call tools.
    pub tool_choice: ToolChoice,
    /// Characters of one tool result that the model sees.
    pub max_result_chars: usize,
}

impl Default for AgentConfig {
    fn default() -> Self {
        Self {
            system: None,
            max_turns: 50,
            max_tool_calls: 200,
            max_time: Duration::from_secs(30 * 60),
            tool_choice: ToolChoice::Auto,
            max_result_chars: 100_000,
        }
    }
}

/// Whether the model may, must or must not call tools.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// As it likes.
    #[default]
    Auto,
    /// In its first turn it must call one; afterwards as it likes.
    RequiredFirst,
    /// In every turn; the last turn that `max_turns` allows is asked without tools.
    Required,
}

/// Secret values, hidden as `****` in everything that is printed or written.
///
/// A value is secret if it came from a variable outside the inherited names, from an `env_file`, from
/// `headers` or `api_key`, or if its name ends in `KEY`, `TOKEN`, `SECRET` or `PASSWORD`. Values shorter than
/// [`Secrets::SHORTEST`] bytes are not searched for: they would turn ordinary text into stars.
#[derive(Clone, Default)]
pub struct Secrets {
    values: Arc<[String]>,
}

impl Secrets {
    /// Shortest value that is searched for, in bytes.
    pub const SHORTEST: usize = 6;

    /// Collects values; short and repeated ones are dropped.
    pub fn new(values: impl IntoIterator<Item = String>) -> Self {
        let mut values: Vec<String> = values.into_iter().filter(|v| v.len() >= Self::SHORTEST).collect();
        // Longest first, so that a secret that contains another one is hidden whole.
        values.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        values.dedup();
        Self { values: values.into() }
    }

    /// `text` with every secret replaced by `****`, in plain and in JSON-escaped form.
    pub fn hide(&self, text: &str) -> String {
        let mut hidden = text.to_owned();
        for value in self.values.iter() {
            if hidden.contains(value.as_str()) {
                hidden = hidden.replace(value.as_str(), "****");
            }
            let quoted = serde_json::Value::from(value.as_str()).to_string();
            let escaped = &quoted[1..quoted.len() - 1];
            if escaped != value && hidden.contains(escaped) {
                hidden = hidden.replace(escaped, "****");
            }
        }
        hidden
    }
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Secrets({})", self.values.len())
    }
}
