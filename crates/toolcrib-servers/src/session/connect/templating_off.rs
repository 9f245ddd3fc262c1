//! In place of `templating` in a build without the feature `templates`: every server starts the ordinary way.

#![allow(clippy::unused_async, clippy::unused_self, reason = "as in the module that it replaces")]

use std::{
    convert::Infallible,
    marker::PhantomData,
    path::Path,
    time::{Duration, Instant},
};

use super::{ConnectRequest, Connection, failure::Failure};
use crate::session::ConnectContext;
use crate::{
    config::{Secrets, ServerConfig, StdioConfig},
    forking::{Forecast, TemplateStatus},
    launch::Launcher,
    process::{Pipes, Process, Supervisor},
};

/// No templates.
#[derive(Clone)]
pub struct Templates;

impl Templates {
    /// Does nothing.
    pub fn new(_: Supervisor, _: Option<&Path>, _: Secrets) -> Self {
        Self
    }

    /// Does nothing.
    pub fn learn(&self, _: &Secrets) {}

    /// Returns nothing.
    pub fn status(&self) -> Vec<TemplateStatus> {
        Vec::new()
    }

    /// Does nothing.
    pub fn close(&self) {}

    /// Does nothing.
    pub async fn end(&self) {}
}

/// None of these can exist.
#[derive(Clone)]
pub(in crate::session) struct ForkPlan(Infallible);

impl ForkPlan {
    pub(in crate::session) fn ended_early(
        &self,
        _: bool,
        _: (&str, &str),
        _: &ServerConfig,
        _: &ConnectContext,
    ) {
        match self.0 {}
    }
}

/// None of these can exist.
pub(in crate::session) struct Counted(Infallible);

/// None of these can exist.
pub(super) struct Spawning<'a>(Infallible, PhantomData<&'a ()>);

impl Spawning<'_> {
    pub(super) async fn spawn(
        &self,
        _: &StdioConfig,
        _: &ServerConfig,
        _: &ConnectContext,
        _: Instant,
    ) -> Result<((Process, Pipes), Instant), Failure> {
        match self.0 {}
    }

    pub(super) fn waited(&self) -> (Duration, Duration) {
        match self.0 {}
    }
}

/// Begins nothing: no server can be forked.
pub(super) async fn connect(_: ConnectRequest<'_>) -> Option<Result<Connection, Failure>> {
    None
}

/// Does nothing.
pub async fn expect(_: impl Iterator<Item = &ServerConfig>, _: &ConnectContext) {}

/// Knows nothing.
pub fn forecast(_: &StdioConfig, _: &Launcher, _: &Templates) -> Option<Forecast> {
    None
}
