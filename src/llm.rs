//! Models: one client for OpenAI-compatible endpoints and for scripts.
//!
//! [`LlmClient::chat`] is an in-flight limit and one retry layer around a backend that makes a single attempt.
//! Nothing below it repeats anything, so the attempts reported are those on the wire. Knows no agent and no tool
//! server. A prompt or a key never gets into an error.

mod attempt;
mod cache;
mod class;
mod client;
mod detect;
mod error;
mod error_body;
mod fault;
mod hint;
mod message;
mod reissue;
mod request;
mod script;
mod silence;
mod stats;
mod transport;
mod wire;

/// For the fuzz target `answer`: a body of any kind.
#[cfg(fuzzing)]
pub(crate) fn fuzz_answer(body: &[u8]) {
    let _ = wire::decode(body, 0);
}

#[cfg(test)]
mod tests;

pub use class::LlmErrorClass;
pub use client::LlmClient;
pub use detect::{DETECT_PORTS, detect};
pub use error::LlmError;
pub use error_body::ContextOverflow;
pub use message::{Message, ToolCall};
pub use request::{Attempt, ChatAnswer, ChatRequest, ChatTimings, Finish, ToolMode, ToolSpec};
pub use stats::LlmStats;
