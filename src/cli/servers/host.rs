//! `toolcrib host`: the library for programs in other languages, over a socket that they pass on.

use std::process::ExitCode;

use clap::Args;
use toolcrib::{
    Error,
    cli_support::{inherited_socket, leave_group},
};

use crate::cli::context::Context;

#[derive(Args)]
pub(crate) struct Host {
    /// The number of the inherited file descriptor.
    #[arg(long, value_name = "N")]
    fd: i32,
}

impl Host {
    pub(crate) fn run(&self, context: &Context<'_>) -> anyhow::Result<ExitCode> {
        // Ctrl-C in a terminal is for the program, which decides what ends.
        leave_group();
        let socket = inherited_socket(self.fd);
        let socket = socket.map_err(|error| {
            Error::io(format!("the file descriptor {} cannot be used as the host's socket", self.fd), error)
        })?;
        context.in_runtime(async {
            let reports = toolcrib::serve_host(socket, &context.cancel).await?;
            for report in reports {
                report.complete()?;
            }
            Ok(ExitCode::SUCCESS)
        })
    }
}
