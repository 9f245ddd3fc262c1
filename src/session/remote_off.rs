//! In place of `remote` in a build without the feature `http`: there are no remote servers.

#![allow(
    clippy::unnecessary_wraps,
    clippy::unused_async,
    clippy::unused_self,
    reason = "as in the module that it replaces"
)]

use std::{convert::Infallible, sync::Arc, time::Duration};

use rmcp::model::{ListToolsResult, ServerPeerInfo};
use serde_json::{Map, Value};
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;

use super::{
    SessionObserver,
    connect::{failure::Cause, handshake::Era},
    progress::ProgressListener,
    result::{
        reply::{CallLimits, CallReply, NoReply},
        truncate::Truncator,
    },
    transport::Transport,
    wire_log::WireLog,
};
use crate::{
    cancel::CancellationToken,
    config::{HttpConfig, HttpEndpoint},
    error::Result as OurResult,
    tool::ServerName,
};

/// No HTTP clients.
#[derive(Clone)]
pub(crate) struct RemoteClients;

impl RemoteClients {
    pub(crate) fn new(_: &HttpConfig) -> OurResult<Self> {
        Ok(Self)
    }
}

/// None of these can exist.
#[derive(Clone)]
pub(in crate::session) struct RemoteClient(Infallible);

impl RemoteClient {
    pub(in crate::session) fn is_closed(&self) -> bool {
        match self.0 {}
    }

    pub(in crate::session) async fn call(
        &self,
        _: &str,
        _: &Map<String, Value>,
        _: (CallLimits<'_>, Option<&ProgressListener>),
        _: &Truncator,
    ) -> Result<CallReply, NoReply> {
        match self.0 {}
    }

    pub(in crate::session) async fn page(
        &self,
        _: Option<String>,
        _: Duration,
    ) -> Result<Result<ListToolsResult, String>, NoReply> {
        match self.0 {}
    }

    pub(in crate::session) async fn probe(&self, _: Era, _: Duration) -> Result<(), NoReply> {
        match self.0 {}
    }
}

/// None of these can exist.
pub(in crate::session) struct RemoteSession(Infallible);

impl RemoteSession {
    pub(in crate::session) fn client(&self) -> RemoteClient {
        match self.0 {}
    }

    pub(in crate::session) async fn close(self, _: Duration) {
        match self.0 {}
    }
}

/// A remote server that cannot be reached.
pub(in crate::session) struct Remote<'a>(&'a HttpEndpoint);

type Opened = (RemoteSession, Arc<ServerPeerInfo>, Arc<Notify>, CancellationToken);

impl<'a> Remote<'a> {
    pub(in crate::session) fn new(endpoint: &'a HttpEndpoint, _: &RemoteClients, _: WireLog) -> Self {
        Self(endpoint)
    }

    pub(in crate::session) async fn open(&self, _: Option<Era>) -> Result<Opened, Cause> {
        let origin = crate::config::origin_of(&self.0.url);
        Err(Cause::Unreachable(format!(
            "{origin}: remote servers are not part of this build (cargo feature `http`)"
        )))
    }

    pub(in crate::session) fn look_for_stalls(
        &self,
        _: Transport,
        _: Era,
        _: ServerName,
        _: SessionObserver,
    ) -> Option<AbortOnDropHandle<()>> {
        None
    }
}
