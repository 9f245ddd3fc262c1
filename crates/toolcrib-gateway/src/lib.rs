//! The servers of a manager as MCP endpoints, over lines and over HTTP; what a process shows to Prometheus.
//!
//! Programs use the crate `toolcrib`, which re-exports what is documented here. What is hidden from the documentation is for the
//! crates of toolcrib, and can change in any version.

// A build of parts leaves some functions without a caller.
#![cfg_attr(not(feature = "serve"), allow(dead_code, unused_imports))]

pub mod gateway;
#[cfg(feature = "serve")]
#[doc(hidden)]
pub mod metrics;

use toolcrib_core::{cancel, config, error, json_rpc, large, style, text, tool};
use toolcrib_net::{http, oauth};
use toolcrib_servers::{StartOptions, catalog, manager, process, session, start};
