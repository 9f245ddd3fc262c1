//! Servers behind a URL: the SDK's client over streamable HTTP.

pub(super) mod client;
pub(super) mod stalls;
pub(super) mod streamable;
