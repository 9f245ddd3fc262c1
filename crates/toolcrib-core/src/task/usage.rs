//! The tokens of a model's answer and why it ended.

use serde::{Deserialize, Serialize};

/// Token counts, as the model's server gives them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Prompt tokens, those read from and written to the server's cache included.
    #[serde(rename = "in")]
    pub input: u64,
    /// Generated tokens.
    #[serde(rename = "out")]
    pub output: u64,
    /// Prompt tokens read from the server's cache.
    pub cached: u64,
    /// Prompt tokens written to the server's cache. Some providers charge more for them.
    #[serde(default)]
    pub cache_write: u64,
    /// Generated tokens spent on reasoning.
    pub reasoning: u64,
}

impl Usage {
    /// Tokens read and generated.
    pub fn total(&self) -> u64 {
        self.input.saturating_add(self.output)
    }
}

impl std::ops::AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        // A model server may send any count.
        self.input = self.input.saturating_add(other.input);
        self.output = self.output.saturating_add(other.output);
        self.cached = self.cached.saturating_add(other.cached);
        self.cache_write = self.cache_write.saturating_add(other.cache_write);
        self.reasoning = self.reasoning.saturating_add(other.reasoning);
    }
}

/// Why the model stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// It was done.
    Stop,
    /// It wants tools.
    ToolCalls,
    /// It ran into the limit of tokens. A tool call in such an answer may be cut: never run it.
    Length,
    /// The server held the answer back.
    ContentFilter,
    /// A reason of the server's own, or none.
    #[default]
    Other,
}

impl Finish {
    /// The word for it in files.
    #[doc(hidden)]
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::ToolCalls => "tool_calls",
            Self::Length => "length",
            Self::ContentFilter => "content_filter",
            Self::Other => "other",
        }
    }
}
