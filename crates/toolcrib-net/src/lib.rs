//! HTTP for all crates of toolcrib: the one place that makes connections, a small server, and access tokens for remote servers.
//!
//! Programs use the crate `toolcrib`, which re-exports what is documented here. What is hidden from the documentation is for the
//! crates of toolcrib, and can change in any version.

pub mod http;
pub mod oauth;

use toolcrib_core::{bounded, cancel, config, duration, error, large, limit, text, tool};

pub use http::HttpClients;
