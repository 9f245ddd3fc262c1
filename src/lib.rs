//! toolcrib: an MCP tool-server process manager.

mod config;
mod error;
mod http;
mod limit;
mod llm;
mod retry;
mod task;
mod tool;

pub use config::*;
pub use error::*;
pub use http::*;
pub use limit::*;
pub use llm::*;
pub use retry::*;
pub use task::*;
pub use tool::*;
