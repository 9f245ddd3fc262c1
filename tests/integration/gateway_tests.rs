//! The daemon and the gateway, with clients of all kinds.
//!
//! Nothing here measures time: what has to happen is polled for with a generous deadline.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test fails by panicking")]

mod daemon;
mod gateway;
mod gateway_http;
mod support;
