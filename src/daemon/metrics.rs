//! Metrics of the servers of a daemon, over HTTP.

use std::net::SocketAddr;

use futures_util::future::BoxFuture;

use crate::{error::Result, manager::Manager};

/// The address of metrics that are served, and what ends that.
pub(super) type Running = (SocketAddr, BoxFuture<'static, ()>);

pub(super) async fn start(address: SocketAddr, manager: &Manager) -> Result<Running> {
    let toolboxes = crate::manager::Toolboxes::of(&manager.toolbox());
    let server = toolcrib_gateway::metrics::MetricsServer::start(address, toolboxes).await?;
    Ok((server.address(), Box::pin(server.end())))
}
