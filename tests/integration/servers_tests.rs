//! Servers, their sessions and their ends, against real processes that misbehave.
//!
//! Nothing here measures time: what has to happen is polled for with a generous deadline.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test fails by panicking")]

mod lifecycle;
mod servers;
mod support;
