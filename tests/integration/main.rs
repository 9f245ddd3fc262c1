//! The library from outside, against real processes that misbehave.
//!
//! Nothing here measures time: what has to happen is polled for with a generous deadline.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test fails by panicking")]

mod cli;
mod daemon;
mod gateway;
mod gateway_http;
mod house;
mod lifecycle;
mod models;
mod runs;
pub(crate) mod security;
pub(crate) mod servers;
mod support;
mod workers;
