//! What an agent may do and how it speaks with its model: the `[agent]` table.

use std::{collections::BTreeMap, time::Duration};

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
    /// How the model is told of tools and calls them.
    pub tool_protocol: ToolProtocol,
    /// Characters of one tool result that the model sees.
    pub max_result_chars: usize,
    /// Whether calls are corrected where it is plain what was meant.
    pub correct_calls: bool,
    /// Names that models use for others.
    pub aliases: Aliases,
}

impl Default for AgentConfig {
    fn default() -> Self {
        Self {
            system: None,
            max_turns: 50,
            max_tool_calls: 200,
            max_time: Duration::from_secs(30 * 60),
            tool_choice: ToolChoice::Auto,
            tool_protocol: ToolProtocol::Native,
            max_result_chars: 100_000,
            correct_calls: true,
            aliases: Aliases::default(),
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

/// How a model is told of tools and calls them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ToolProtocol {
    /// As fields of the request and of the answer: the model's server knows the model's own form.
    #[default]
    Native,
    /// In the text, as `<use_mcp_tool>` blocks: for models that were trained on them (MiroThinker), and for servers
    /// that know no tools. Results are user messages.
    Xml,
}

/// The `[agent.aliases]` table: names that models use for others. One that exists itself stays what it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Aliases {
    /// From a name that is no tool to a tool: its own name, `server.tool` or its visible name.
    pub tools: BTreeMap<String, String>,
    /// From a name that is no argument of the tool to one that is.
    pub arguments: BTreeMap<String, String>,
}
