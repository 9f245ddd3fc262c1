//! Our JSON-RPC client for servers that are processes: reads lines, hands answers to callers.

pub(super) mod queue;
pub(super) mod reader;
pub(super) mod rpc_client;
