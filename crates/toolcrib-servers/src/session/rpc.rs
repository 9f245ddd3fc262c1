//! JSON-RPC as every transport needs it: messages decoded and written, and requests that wait for their answers.

pub(super) mod decode;
pub(super) mod error_object;
pub(super) mod fast_path;
pub(super) mod json_string;
pub(super) mod mend;
pub(super) mod requests;
pub(super) mod write;
