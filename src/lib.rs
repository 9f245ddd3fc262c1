//! toolcrib: an MCP tool-server process manager.

mod agent;
mod batch;
mod builtin;
mod catalog;
mod config;
mod error;
mod http;
mod journal;
mod limit;
mod llm;
mod manager;
mod process;
mod report;
mod retry;
mod score;
mod session;
mod start;
mod task;
mod tool;

pub use agent::Agent;
pub use batch::*;
pub use catalog::*;
pub use config::*;
pub use error::*;
pub use http::HttpClients;
pub use journal::*;
pub use llm::*;
pub use manager::*;
pub use process::StopOutcome;
pub use retry::*;
pub use score::{check as check_score, judge};
pub use session::Phases;
pub use start::*;
pub use task::*;
pub use tool::*;
