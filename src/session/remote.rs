//! Remote servers, over streamable HTTP: the SDK's client on our HTTP client.

mod client;
mod connect;
mod error;
mod stalls;
mod streamable;

pub(in crate::session) use self::{
    client::{RemoteClient, RemoteSession},
    connect::Remote,
};
pub(crate) use crate::http::HttpClients as RemoteClients;
