//! Writes messages to servers.

use std::sync::OnceLock;

use serde::{Serialize, Serializer, ser::Error as _};
use serde_json::{Map, Value, value::RawValue};

use crate::{
    json_rpc::{self, RawObject},
    session::server_messages::ClientAnswer,
    tool::ExactNumbers,
};

/// Writes the requests of one connection.
#[derive(Default)]
pub(in crate::session) struct RequestWriter {
    /// Members at the beginning of `_meta` in every request, once both sides have agreed on a revision.
    meta: OnceLock<SessionMeta>,
}

struct SessionMeta {
    /// The members as JSON text, each with a comma behind it.
    text: String,
    members: RawObject,
}

/// The parameters of `tools/call`.
#[derive(Serialize)]
pub(in crate::session) struct CallParams<'a> {
    pub(in crate::session) name: &'a str,
    pub(in crate::session) arguments: CallArguments<'a>,
}

/// The arguments of a call.
#[derive(Clone, Copy)]
pub(in crate::session) struct CallArguments<'a> {
    pub(in crate::session) values: &'a Map<String, Value>,
    /// Numbers that the values cannot hold.
    pub(in crate::session) exact: Option<&'a ExactNumbers>,
}

impl Serialize for CallArguments<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.exact.filter(|exact| !exact.is_empty()) {
            None => self.values.serialize(serializer),
            Some(exact) => {
                let written = RawValue::from_string(exact.written(self.values));
                written.map_err(S::Error::custom)?.serialize(serializer)
            }
        }
    }
}

impl RequestWriter {
    /// Sets what `_meta` of every request is to hold.
    pub(in crate::session) fn set_meta(&self, meta: RawObject) {
        let object = serde_json::to_string(&meta).unwrap_or_default();
        if let Some(members) = object.strip_prefix('{').and_then(|object| object.strip_suffix('}')) {
            let text = if members.is_empty() { String::new() } else { format!("{members},") };
            let _ = self.meta.set(SessionMeta { text, members: meta });
        }
    }

    /// A request whose `params` are `_meta` and the members of `params`, an object.
    pub(in crate::session) fn request(&self, id: i64, method: &str, params: &impl Serialize) -> Vec<u8> {
        let meta = self.meta.get().map_or("", |meta| &meta.text);
        let context = if method == "tools/call" { crate::trace::context_members() } else { None };
        let id = id.to_string();
        let mut message = Vec::with_capacity(192 + meta.len());
        for part in [
            r#"{"jsonrpc":"2.0","id":"#,
            &id,
            r#","method":""#,
            method,
            r#"","params":{"_meta":{"#,
            meta,
            context.as_deref().unwrap_or_default(),
            r#""progressToken":"#,
            &id,
            "}",
        ] {
            message.extend_from_slice(part.as_bytes());
        }
        let begin = message.len();
        // Text and a tree of JSON values always can be written, and a vector takes all.
        let _ = serde_json::to_writer(&mut message, params);
        // Its members go on where `_meta` ends, and its end is that of all.
        match &message[begin..] {
            b"{}" => drop(message.remove(begin)),
            _ => message[begin] = b',',
        }
        message.push(b'}');
        message
    }

    /// A request of somebody else's: `params` without `_meta`, and `meta`, whose members count before our own.
    pub(in crate::session) fn forwarded(
        &self,
        id: i64,
        method: &str,
        (params, meta): (&RawObject, &RawObject),
    ) -> Vec<u8> {
        let mut meta = meta.clone();
        meta.fill(self.meta.get().map_or(&RawObject::default(), |meta| &meta.members));
        meta.write("progressToken", &id);
        let mut whole = RawObject::default();
        whole.set("_meta", meta.into_raw());
        whole.fill(params);
        bare_request(id, method, &whole)
    }
}

/// A request whose `params` are all that is said.
pub(in crate::session) fn bare_request(id: i64, method: &str, params: &impl Serialize) -> Vec<u8> {
    let (method, params) = (json_rpc::raw(&method), json_rpc::raw(params));
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":{method},\"params\":{params}}}").into_bytes()
}

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
