//! The manager for programs without an async runtime: each function waits until its work is done.
//!
//! A [`Manager`] here owns a Tokio runtime of two threads, on which its servers are looked after while the program does
//! other things. Everything else of this library can run on it too, through [`Manager::block_on`].
//!
//! ```no_run
//! # fn example() -> toolcrib::Result<()> {
//! use serde_json::Map;
//! use toolcrib::{Config, Env, blocking::Manager};
//!
//! let manager = Manager::start(&Config::load(None, &Env::process())?)?;
//! let now = manager.call("time", "now", Map::new())?;
//! println!("{:?}", now.content);
//! manager.shutdown();
//! # Ok(())
//! # }
//! ```

use std::{future::Future, io, sync::Arc};

use serde_json::{Map, Value};
use tokio::runtime::{Builder, Handle, Runtime};

use crate::{
    catalog::{CatalogEntry, ToolCatalog},
    config::Config,
    error::{Error, Result},
    manager::{self, StartOptions, Toolbox},
    session::{CallOptions, ServerStatus},
    start::{StartReport, StopReport},
    tool::ToolResult,
};

/// All servers of one configuration, running: see [`toolcrib::Manager`](crate::Manager).
///
/// Its functions can be called from any number of threads at once, but not from async code: there they return an error,
/// since waiting would block the thread that drives the program's own futures. Dropping it kills every process at once;
/// [`Manager::shutdown`] asks them to leave first.
pub struct Manager {
    // Dropped first: its servers end while the runtime is still there.
    manager: manager::Manager,
    runtime: OwnRuntime,
}

/// Never waits for tasks when it is dropped: what matters was killed by then.
struct OwnRuntime(Option<Runtime>);

impl OwnRuntime {
    fn new() -> Result<Self> {
        let runtime =
            Builder::new_multi_thread().worker_threads(2).thread_name("toolcrib").enable_all().build();
        runtime
            .map(|runtime| Self(Some(runtime)))
            .map_err(|error| Error::io("could not start a runtime", error))
    }

    fn block_on<F: Future>(&self, future: F) -> Result<F::Output> {
        if Handle::try_current().is_ok() {
            let why = io::Error::other("this thread runs async code: use toolcrib::Manager there");
            return Err(Error::io("toolcrib::blocking cannot wait here", why));
        }
        match &self.0 {
            Some(runtime) => Ok(runtime.block_on(future)),
            None => Err(Error::Cancelled),
        }
    }
}

impl Drop for OwnRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl Manager {
    /// Starts every server of `config`.
    ///
    /// # Errors
    /// The errors of [`toolcrib::Manager::start`](crate::Manager::start), and [`Error::Io`] in async code.
    pub fn start(config: &Config) -> Result<Self> {
        Self::start_with(config, StartOptions::default())
    }

    /// Starts all servers like [`Manager::start`], with options.
    ///
    /// # Errors
    /// The errors of [`toolcrib::Manager::start_with`](crate::Manager::start_with), and [`Error::Io`] in async code.
    pub fn start_with(config: &Config, options: StartOptions) -> Result<Self> {
        let runtime = OwnRuntime::new()?;
        let manager = runtime.block_on(manager::Manager::start_with(config, options))??;
        Ok(Self { manager, runtime })
    }

    /// How the start went.
    pub fn report(&self) -> &StartReport {
        self.manager.report()
    }

    /// All tools at this moment.
    pub fn catalog(&self) -> Arc<ToolCatalog> {
        self.manager.catalog()
    }

    /// The state of every configured server at this moment.
    pub fn status(&self) -> Vec<ServerStatus> {
        self.manager.status()
    }

    /// A handle on the tools, for what runs in [`Manager::block_on`].
    pub fn toolbox(&self) -> Toolbox {
        self.manager.toolbox()
    }

    /// Calls `tool` of `server`. A tool-level error is `Ok`.
    ///
    /// # Errors
    /// The errors of [`toolcrib::Toolbox::call`](crate::Toolbox::call), and [`Error::Io`] in async code.
    pub fn call(&self, server: &str, tool: &str, arguments: Map<String, Value>) -> Result<ToolResult> {
        self.runtime.block_on(self.manager.call(server, tool, arguments))?
    }

    /// Calls a tool of the catalog, with options.
    ///
    /// # Errors
    /// The errors of [`toolcrib::Toolbox::call_entry`](crate::Toolbox::call_entry), and [`Error::Io`] in async code.
    pub fn call_entry(
        &self,
        entry: &CatalogEntry,
        arguments: &Map<String, Value>,
        options: &CallOptions,
    ) -> Result<ToolResult> {
        self.runtime.block_on(self.manager.toolbox().call_entry(entry, arguments, options))?
    }

    /// Runs a future on the runtime of this manager: an agent with its [`Manager::toolbox`], say.
    ///
    /// # Errors
    /// [`Error::Io`] in async code.
    pub fn block_on<F: Future>(&self, future: F) -> Result<F::Output> {
        self.runtime.block_on(future)
    }

    /// Asks every server to leave, all at once, and ends those that do not.
    ///
    /// # Errors
    /// [`Error::Io`] in async code: every process was killed all the same.
    pub fn shutdown(self) -> Result<StopReport> {
        let Self { manager, runtime } = self;
        runtime.block_on(manager.shutdown())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        config::{Endpoint, ServerConfig},
        tool::ServerName,
    };

    fn config() -> Config {
        let endpoint = Endpoint::Builtin { name: "calc".to_owned(), args: Vec::new(), base: ".".into() };
        Config::new([ServerConfig::new(ServerName::new("calc").unwrap(), endpoint)])
    }

    fn sum() -> Map<String, Value> {
        json!({"expression": "2 + 3"}).as_object().cloned().unwrap_or_default()
    }

    #[test]
    fn threads_call_without_a_runtime_of_their_own() {
        let manager = Manager::start(&config()).unwrap();
        let answers: Vec<String> = std::thread::scope(|scope| {
            let call = || manager.call("calc", "evaluate", sum()).unwrap().text();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(call)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(answers, ["5"; 4]);
        assert!(manager.shutdown().unwrap().survivors.is_empty());
    }

    #[tokio::test]
    async fn async_code_gets_an_error_in_place_of_a_panic() {
        let error = Manager::start(&config()).err().unwrap();
        assert!(error.causes()[0].contains("async code"), "{error}");
    }
}
