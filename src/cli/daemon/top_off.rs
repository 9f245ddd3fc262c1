//! The module `top` of a program without the Cargo feature `top`: no command.

#![expect(clippy::unused_async, reason = "as in the module that it replaces")]

use std::process::ExitCode;

use clap::Subcommand;

use crate::cli::context::Context;

#[derive(Subcommand)]
pub(crate) enum Command {}

impl Command {
    pub(crate) async fn run(self, _: &Context<'_>) -> anyhow::Result<ExitCode> {
        match self {}
    }
}
