//! Writes messages to servers that are no requests.

use serde_json::value::RawValue;

use crate::{json_rpc, session::server_messages::ClientAnswer};

/// Writes a notification.
pub(in crate::session) fn notification(method: &str, params: Option<&RawValue>) -> Vec<u8> {
    let params = params.map_or_else(String::new, |params| format!(",\"params\":{params}"));
    let method = json_rpc::raw(&method);
    format!("{{\"jsonrpc\":\"2.0\",\"method\":{method}{params}}}").into_bytes()
}

/// The notice that nobody waits for the answer to a request any more.
pub(in crate::session) fn cancellation(id: i64) -> Vec<u8> {
    format!(
        "{{\"jsonrpc\":\"2.0\",\"method\":\"notifications/cancelled\",\"params\":{{\"requestId\":{id},\
         \"reason\":\"given up by the caller\"}}}}"
    )
    .into_bytes()
}

/// The answer to a request of the server's.
pub(in crate::session) fn reply(id: &RawValue, answer: ClientAnswer) -> Vec<u8> {
    let outcome = match answer {
        Ok(result) => format!("\"result\":{result}"),
        Err(error) => format!("\"error\":{}", json_rpc::raw(&error)),
    };
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},{outcome}}}").into_bytes()
}
