//! An observer between an agent and its tools, which may answer in their place: to record, or to replay.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde_json::{Map, Value};

use super::toolbox::Toolbox;
use crate::{
    catalog::{CatalogEntry, ToolCatalog},
    error::Result,
    tool::ToolResult,
};

/// Observes what one agent does with its tools. A future that is dropped ends what it waits for.
pub trait CallObserver: Send + Sync {
    /// The tools that the agent sees: those that are there `now`, or others.
    fn catalog(&self, now: &dyn Fn() -> Arc<ToolCatalog>) -> Arc<ToolCatalog>;

    /// The outcome of a tool call: that of `call`, or another one.
    fn call<'a>(
        &'a self,
        entry: &'a CatalogEntry,
        arguments: &'a Map<String, Value>,
        call: BoxFuture<'a, Result<ToolResult>>,
    ) -> BoxFuture<'a, Result<ToolResult>>;

    /// The outcome of a wait for a server: that of `wait`, or another one.
    fn ready<'a>(&'a self, server: &'a str, wait: BoxFuture<'a, Result<()>>) -> BoxFuture<'a, Result<()>>;
}

impl Toolbox {
    /// The same tools with an observer of the agent that calls them.
    #[must_use]
    #[doc(hidden)]
    pub fn observed_by(&self, observer: Arc<dyn CallObserver>) -> Self {
        Self { observed: Some(observer), ..self.clone() }
    }
}
