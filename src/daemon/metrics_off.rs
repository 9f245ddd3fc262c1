//! In place of `metrics` in a build without the feature `serve`: there are none.

use std::{convert::Infallible, net::SocketAddr};

use crate::error::{Error, Result};

/// None of these can exist.
pub(super) struct MetricsServer(Infallible);

#[expect(clippy::unused_async, reason = "as in the module that it replaces")]
impl MetricsServer {
    pub(super) async fn start(_: SocketAddr) -> Result<Self> {
        let help = "build it with the Cargo feature `serve`".to_owned();
        Err(Error::input("this build has no metrics", Some(help)))
    }

    pub(super) fn address(&self) -> SocketAddr {
        match self.0 {}
    }

    pub(super) async fn end(self) {
        match self.0 {}
    }
}
