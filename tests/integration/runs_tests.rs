//! Models, agents and runs of tasks, on one machine and on many.
//!
//! Nothing here measures time: what has to happen is polled for with a generous deadline.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test fails by panicking")]

mod models;
mod runs;
mod support;
mod workers;
