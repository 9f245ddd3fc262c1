//! Tool calls of a task without a model.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::object;

/// One tool call of a task without a model.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PlannedCall {
    /// `server.tool`.
    pub tool: String,
    /// The arguments.
    #[serde(default)]
    pub args: Map<String, Value>,
    /// Conditions on the result. Default: it is not an error.
    #[serde(default, deserialize_with = "object::one")]
    pub expect: Expect,
}

impl PlannedCall {
    /// A call that must not be an error.
    pub fn new(tool: impl Into<String>, args: Map<String, Value>) -> Self {
        Self { tool: tool.into(), args, expect: Expect::default() }
    }
}

/// Conditions on the result of a planned call; all given ones must hold.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Expect {
    /// The text holds this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contains: Option<String>,
    /// The trimmed text is this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub equals: Option<String>,
    /// The tool reports an error.
    pub is_error: bool,
}
