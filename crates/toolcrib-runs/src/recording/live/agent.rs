//! The decisions of an agent while it works: for its log and for watchers.

use std::fmt;

use serde::Serialize;

use crate::config::RollbackReason;

/// One decision of an agent. In the log of a task each is a line of JSON.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum AgentEvent {
    /// A call was put right before it was made. The conversation holds it as it was made.
    Corrected {
        /// The turn, from 1.
        turn: u32,
        /// The id of the call.
        call: String,
        /// `server.tool`.
        tool: String,
        /// The call as the model wrote it.
        raw: String,
        /// Corrections in the order in which they were made.
        corrections: Vec<Correction>,
    },
    /// A call failed, and another tool took it over.
    TakenOver {
        /// The turn, from 1.
        turn: u32,
        /// The tool that failed, as `server.tool`.
        from: String,
        /// The tool that took over, as `server.tool`.
        to: String,
    },
    /// Another agent carried out a task.
    HandedOver {
        /// The turn, from 1.
        turn: u32,
        /// The agent.
        agent: String,
        /// Its turns.
        turns: u32,
        /// The tool calls that it made.
        tool_calls: u32,
        /// Whether it has an answer.
        answered: bool,
        /// Its conversation: a file of the task's folder.
        messages: String,
    },
    /// An answer was taken back. The conversation does not hold it.
    RolledBack {
        /// The turn that it would have been, from 1.
        turn: u32,
        /// The reason.
        reason: RollbackReason,
        /// Number of rollbacks in a row, this one included.
        in_a_row: u32,
        /// The answer as the model gave it.
        said: String,
        /// Its calls, where they came apart from the text.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        calls: Vec<String>,
    },
    /// A turn went well after some that did not.
    Recovered {
        /// The turn, from 1.
        turn: u32,
        /// Rollbacks before it.
        after: u32,
    },
    /// The conversation was too long: results are left out of what the model is sent.
    Shortened {
        /// The turn, from 1.
        turn: u32,
        /// Results that are left out by now.
        left_out: usize,
        /// Tokens that the request would have had, by what was counted before; `None` when the server refused it.
        estimate: Option<u64>,
    },
    /// A result was too long for the model; all of it is in a file of the task's folder.
    Cut {
        /// The turn, from 1.
        turn: u32,
        /// `server.tool`.
        tool: String,
        /// Characters of all of it.
        chars: usize,
        /// The file.
        file: String,
    },
    /// An attempt had no answer, and another one is made.
    TriedAgain {
        /// Number of the new attempt, from 2.
        attempt: u32,
        /// Why the one before it had no answer.
        why: String,
        /// The summary of the attempt, which the next one gets.
        lesson: String,
    },
    /// The model was asked for its answer without tools.
    Summarized {
        /// Number of the request for it, from 1.
        #[serde(rename = "try")]
        attempt: u32,
        /// Why the conversation had come to its end.
        why: String,
        /// The answer.
        said: String,
        /// Whether that is an answer.
        answered: bool,
    },
}

impl AgentEvent {
    /// Bytes of what a model or a tool said in it.
    pub(super) fn weight(&self) -> usize {
        match self {
            Self::Corrected { raw, corrections, .. } => {
                raw.len() + corrections.iter().map(|one| one.from.len() + one.to.len()).sum::<usize>()
            }
            Self::RolledBack { said, calls, .. } => said.len() + calls.iter().map(String::len).sum::<usize>(),
            Self::TriedAgain { why, lesson, .. } => why.len() + lesson.len(),
            Self::Summarized { why, said, .. } => why.len() + said.len(),
            _ => 0,
        }
    }
}

/// Kind of a correction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CorrectionKind {
    /// The server that has the tool.
    Server,
    /// The name of the tool.
    Tool,
    /// The name of an argument.
    Argument,
    /// An argument that the schema requires and has a default for.
    Default,
    /// An empty argument that the schema does not require.
    Null,
    /// The tool: another one takes the call over.
    Fallback,
    /// An argument that is a text where the schema wants something else, and has one reading.
    Text,
    /// The form of the arguments: a code fence, a trailing comma, a literal of Python, a raw line break or another
    /// control character in a string.
    Json,
}

impl fmt::Display for CorrectionKind {
    /// Writes the name that the kind has in JSON.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Server => "server",
            Self::Tool => "tool",
            Self::Argument => "argument",
            Self::Default => "default",
            Self::Null => "null",
            Self::Fallback => "fallback",
            Self::Text => "text",
            Self::Json => "json",
        })
    }
}

/// One thing that was put right in a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Correction {
    /// Its kind.
    pub kind: CorrectionKind,
    /// The text that the model wrote.
    pub from: String,
    /// The text that was sent.
    pub to: String,
}

impl Correction {
    #[doc(hidden)]
    pub fn new(kind: CorrectionKind, from: impl Into<String>, to: impl Into<String>) -> Self {
        Self { kind, from: from.into(), to: to.into() }
    }
}
