//! `toolcrib bench`: measures the servers of a configuration. Each subcommand has a file.
//!
//! Comparisons of toolcrib with others are in `crates/toolcrib-lab`.

mod call;
mod init;

use std::process::ExitCode;

use clap::Subcommand;

use super::context::Context;

#[derive(Subcommand)]
pub(super) enum Bench {
    /// Measure the start of the servers in several modes: each server, each phase, and what the total time depends on.
    Init(init::Init),
    /// Measure tool calls: latency, throughput, CPU time.
    Call(call::Call),
}

impl Bench {
    pub(super) async fn run(self, context: &Context<'_>) -> anyhow::Result<ExitCode> {
        match self {
            Self::Init(init) => Box::pin(init.run(context)).await,
            Self::Call(call) => call.run(context).await,
        }
    }
}
