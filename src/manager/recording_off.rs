//! In place of `recording` in a build without the feature `agents`: no traffic is observed.

#![allow(
    clippy::unnecessary_wraps,
    clippy::unused_async,
    clippy::unused_self,
    reason = "as in the module that it replaces"
)]

use std::{convert::Infallible, sync::Arc};

use serde_json::{Map, Value};

use crate::{
    catalog::{CatalogEntry, ToolCatalog},
    error::Result,
    tool::ToolResult,
};

/// None of these can exist.
#[derive(Clone)]
pub(super) struct ObservedCalls(Infallible);

impl ObservedCalls {
    pub(super) fn catalog(&self, _: impl FnOnce() -> Arc<ToolCatalog>) -> Arc<ToolCatalog> {
        match self.0 {}
    }

    pub(super) async fn call(
        &self,
        _: &CatalogEntry,
        _: &Map<String, Value>,
        _: impl Future<Output = Result<ToolResult>>,
    ) -> Result<ToolResult> {
        match self.0 {}
    }

    pub(super) async fn ready(&self, _: &str, _: impl Future<Output = Result<()>>) -> Result<()> {
        match self.0 {}
    }
}
