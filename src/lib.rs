//! toolcrib: an MCP tool-server process manager.

mod builtin;
mod catalog;
mod config;
mod error;
mod http;
mod limit;
mod llm;
mod manager;
mod process;
mod retry;
mod session;
mod start;
mod task;
mod tool;

pub use builtin::serve_builtin;
pub use catalog::*;
pub use config::*;
pub use error::*;
pub use http::HttpClients;
pub use llm::*;
pub use manager::*;
pub use process::{ProcessUsage, StopOutcome};
pub use retry::*;
pub use session::Phases;
pub use start::*;
pub use task::*;
pub use tool::*;
