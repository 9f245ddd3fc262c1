//! Metrics of the servers of a daemon, over HTTP.

use std::net::SocketAddr;

use futures_util::future::BoxFuture;

#[cfg(not(feature = "serve"))]
use crate::error::Error;
use crate::{error::Result, manager::Manager};

/// The address of metrics that are served, and what ends that.
pub(super) type Running = (SocketAddr, BoxFuture<'static, ()>);

#[cfg(feature = "serve")]
pub(super) async fn start(address: SocketAddr, manager: &Manager) -> Result<Running> {
    let toolboxes = crate::manager::Toolboxes::of(&manager.toolbox());
    let server = crate::metrics::MetricsServer::start(address, toolboxes).await?;
    Ok((server.address(), Box::pin(server.end())))
}

#[cfg(not(feature = "serve"))]
#[expect(clippy::unused_async, reason = "as where there are metrics")]
pub(super) async fn start(_: SocketAddr, _: &Manager) -> Result<Running> {
    let help = "build it with the Cargo feature `serve`".to_owned();
    Err(Error::input("this build has no metrics", Some(help)))
}
