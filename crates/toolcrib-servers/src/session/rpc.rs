//! JSON-RPC on every wire: the client, messages decoded and written, and requests that wait for their answers.

pub(super) mod client;
pub(super) mod decode;
pub(super) mod error_object;
pub(super) mod fast_path;
pub(super) mod json_string;
pub(super) mod mend;
pub(super) mod receive;
pub(super) mod requests;
pub(super) mod write;
