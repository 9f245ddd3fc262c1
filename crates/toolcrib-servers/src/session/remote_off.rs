//! In place of `remote` in a build without the feature `http`: there are no remote servers.

#![allow(
    clippy::unnecessary_wraps,
    clippy::unused_async,
    clippy::unused_self,
    reason = "as in the module that it replaces"
)]

use std::{
    convert::Infallible,
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::{Map, Value, value::RawValue};
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;

use super::{
    SessionObserver,
    connect::{ConnectContext, ServerHello, facts::ServerFacts, failure::Cause, handshake::Era},
    forward::ForwardedRequest,
    progress::ProgressListener,
    recovery::health::Health,
    result::{
        reply::{CallLimits, CallReply, NoReply},
        truncate::Truncator,
    },
    rpc::{requests::RpcAnswer, write::CallArguments},
    server_messages::Counting,
    transport::Transport,
    wire_log::WireLog,
};
use crate::{
    cancel::CancellationToken,
    config::{HttpConfig, HttpEndpoint},
    error::Result as OurResult,
    tool::{ServerName, Tool},
};

/// No HTTP clients.
#[derive(Clone)]
pub struct RemoteClients;

impl RemoteClients {
    /// Does nothing.

    pub fn new(_: &HttpConfig) -> OurResult<Self> {
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

    pub(in crate::session) fn is_busy(&self) -> bool {
        match self.0 {}
    }

    pub(in crate::session) async fn call(
        &self,
        _: &str,
        _: (CallArguments<'_>, &Map<String, Value>),
        _: CallLimits<'_>,
        _: Option<&ProgressListener>,
    ) -> Result<CallReply, NoReply> {
        match self.0 {}
    }

    pub(in crate::session) async fn ask(
        &self,
        _: &str,
        _: &Map<String, Value>,
        _: Duration,
    ) -> Result<RpcAnswer, NoReply> {
        match self.0 {}
    }

    pub(in crate::session) async fn forward(
        &self,
        _: &ForwardedRequest<'_>,
        _: Option<&Map<String, Value>>,
        _: CallLimits<'_>,
    ) -> Result<RpcAnswer, NoReply> {
        match self.0 {}
    }

    pub(in crate::session) fn tell(&self, _: &str, _: Option<&RawValue>, _: Option<Counting>) {
        match self.0 {}
    }

    pub(in crate::session) fn drop_unusable(&self, _: &mut Vec<Tool>) {
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

/// An open remote session, which this build never has.
pub(in crate::session) struct Opened {
    pub(in crate::session) session: RemoteSession,
    pub(in crate::session) facts: Arc<ServerFacts>,
    pub(in crate::session) hello: ServerHello,
    pub(in crate::session) changed: Arc<Notify>,
    pub(in crate::session) gone: CancellationToken,
}

impl<'a> Remote<'a> {
    pub(in crate::session) fn new(
        endpoint: &'a HttpEndpoint,
        _: &ConnectContext,
        _: (Health, Truncator, WireLog),
    ) -> Result<Self, String> {
        Ok(Self(endpoint))
    }

    pub(in crate::session) async fn open(&self, _: Option<Era>, _: Instant) -> Result<Opened, Cause> {
        let origin = crate::config::origin_of(&self.0.url);
        let why = format!("{origin}: remote servers are not part of this build (cargo feature `http`)");
        Err(Cause::Unreachable(why, None))
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
