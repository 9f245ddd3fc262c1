//! Remote servers: our own client of MCP over HTTP, for both eras, and for the older transport of events beside messages.

mod body_form;
mod challenge;
mod client;
mod connect;
mod connection;
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
mod words;

pub(in crate::session) use self::{
    client::{RemoteClient, RemoteSession},
    connect::{Opened, Remote},
};
pub use crate::http::HttpClients as RemoteClients;
