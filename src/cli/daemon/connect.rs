//! `toolcrib connect`: serves the daemon's tools to MCP clients that can only start a command.

use std::{
    io::{self, Read, Write},
    net::Shutdown,
    process::ExitCode,
    thread,
};

use clap::Args;
use toolcrib::Error;

use super::args::DaemonArgs;
use crate::cli::{
    context::{Context, Locked},
    terminal::stdout::{self, Stdout},
};

#[derive(Args)]
pub(crate) struct Connect {
    /// Only this server, with the plain names of its tools [default: all servers, with tools named SERVER__TOOL].
    server: Option<String>,
    #[command(flatten)]
    locked: Locked,
}

impl Connect {
    /// A daemon is started if none runs: an MCP client cannot ask its user.
    pub(crate) fn run(&self, context: &Context<'_>) -> anyhow::Result<ExitCode> {
        let daemon = DaemonArgs::connect_or_start(context, self.locked)?;
        let pid = daemon.greeting().pid;
        let mut from_daemon = daemon.into_mcp(self.server.clone())?;
        let lost = |error| Error::io("could not use the socket of the daemon", error);
        let mut to_daemon = from_daemon.try_clone().map_err(lost)?;
        let (over, ended) = std::sync::mpsc::channel();
        thread::spawn(move || {
            let _ = pass(&mut io::stdin().lock(), &mut to_daemon);
            let _ = over.send(());
            // The client has said all: the daemon hears so, and hangs up once it has answered all.
            let _ = to_daemon.shutdown(Shutdown::Write);
        });
        let _ = pass(&mut from_daemon, &mut Stdout);
        if stdout::failed() {
            // The client has gone, or its disk is full: that is told at the end.
            return Ok(ExitCode::FAILURE);
        }
        match ended.try_recv() {
            Ok(()) => Ok(ExitCode::SUCCESS),
            Err(_) => {
                context.ui.bad(
                    "error",
                    format!("the daemon (pid {pid}) has ended; calls without an answer may have run"),
                );
                Ok(ExitCode::from(4))
            }
        }
    }
}

/// Passes on what comes as it comes, until one side ends.
fn pass(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => {
                to.write_all(&buffer[..count])?;
                to.flush()?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
