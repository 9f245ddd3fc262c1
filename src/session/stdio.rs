//! Our JSON-RPC client for servers that are processes: reads lines, decodes messages, hands answers to callers.

pub(super) mod decode;
pub(super) mod fast_path;
pub(super) mod json_string;
pub(super) mod queue;
pub(super) mod reader;
pub(super) mod rpc_client;
