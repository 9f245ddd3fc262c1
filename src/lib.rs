//! toolcrib: an MCP tool-server process manager.

mod builtin;
mod config;
mod error;
mod http;
mod limit;
mod llm;
mod process;
mod retry;
mod session;
mod task;
mod tool;

pub use config::*;
pub use error::*;
pub use llm::*;
pub use retry::*;
pub use task::*;
pub use tool::*;
