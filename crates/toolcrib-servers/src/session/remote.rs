//! Remote servers: our own client of MCP over HTTP, for both eras, and for the older transport of events beside messages.

mod body_form;
mod challenge;
mod connect;
mod error;
mod events;
mod exchange;
mod http;
mod listen;
mod session_end;
mod stalls;
#[cfg(test)]
mod tests;
mod tool_headers;
mod wire;
mod words;

pub(in crate::session) use self::{
    connect::{Opened, Remote},
    wire::RemoteWire,
};
pub use crate::{
    http::HttpClients as RemoteClients,
    oauth::{AuthorizationPrompt, Authorizations},
};
