//! What happens while an agent works: for its log, and for whoever watches.

use serde::Serialize;

use super::correct::Correction;

/// One event of a task. In the log of a task each is a line of JSON.
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
        /// What was put right, in this order.
        corrections: Vec<Correction>,
    },
}
