//! The library from outside, against real processes that misbehave.
//!
//! Nothing here measures time: what has to happen is polled for with a generous deadline.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test fails by panicking")]

mod calls;
mod cli;
mod engine;
mod faults;
mod real;
mod reconnect;
mod remote;
mod start;
mod support;
mod teardown;
mod tidy;
