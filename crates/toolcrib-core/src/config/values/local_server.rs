//! A tool server of the program that uses the library, served in memory.

use std::{fmt, sync::Arc};

use futures_util::future::{BoxFuture, FutureExt};
use tokio::io::DuplexStream;

/// A tool server that is part of the program: it speaks MCP over a stream in memory, a message a line.
///
/// It is called for each connection, and again when the server is restarted. The future serves one connection; it is
/// dropped when the connection ends.
///
/// ```
/// # mod toolcrib { pub use toolcrib_core::*; }
/// use toolcrib::config::{Config, Endpoint, LocalServer, ServerConfig};
/// use toolcrib::ServerName;
///
/// // With the SDK: `MyTools.serve(stream).await`.
/// let server = LocalServer::new(|stream| async move { drop(stream) });
/// let name = ServerName::new("mine").unwrap();
/// let config = Config::new([ServerConfig::new(name, Endpoint::Local(server))]);
/// ```
#[derive(Clone)]
pub struct LocalServer(Arc<dyn Fn(DuplexStream) -> BoxFuture<'static, ()> + Send + Sync>);

impl LocalServer {
    /// A server whose connections `serve` serves.
    pub fn new<F>(serve: impl Fn(DuplexStream) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Self(Arc::new(move |stream| serve(stream).boxed()))
    }

    /// Serves one connection, until its other end is closed.
    #[doc(hidden)]
    pub fn serve(&self, stream: DuplexStream) -> BoxFuture<'static, ()> {
        (self.0)(stream)
    }
}

/// Two are equal if they are clones of one.
impl PartialEq for LocalServer {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for LocalServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LocalServer")
    }
}
