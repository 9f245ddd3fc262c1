//! The command line, attacks on all of it, and the sources themselves.
//!
//! Nothing here measures time: what has to happen is polled for with a generous deadline.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test fails by panicking")]

mod cli;
mod house;
mod security;
mod support;
