//! The library from outside, against real processes that misbehave.
//!
//! Nothing here measures time: what has to happen is polled for with a generous deadline.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test fails by panicking")]

mod answers;
mod apply;
mod bench;
mod bench_init;
mod browser;
mod calls;
mod cli;
#[cfg(guarded)]
mod confined;
mod daemon;
mod delegates;
mod encrypted;
mod ends;
mod engine;
mod faults;
mod fetch;
mod flooded;
mod formats;
mod headers;
mod health;
#[cfg(guarded)]
mod inherited;
mod killed;
mod launched;
mod lazy;
mod lent;
mod live;
mod locked;
mod logged;
mod mistakes;
mod model;
mod names;
mod newcomer;
mod order;
mod packages;
mod parity;
mod prefill;
mod program;
mod props;
mod rates;
mod real;
mod reconnect;
mod recovery;
mod remote;
mod replay;
mod report;
mod run_folder;
mod search;
mod secrecy;
mod shared;
mod sites;
mod start;
mod support;
mod teardown;
mod thinking;
mod tidy;
mod torture;
mod traced;
mod unread;
mod warm;
mod watch;
mod wire;
