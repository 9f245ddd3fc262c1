//! The command line's frame: runtime, signals to a token, log output to stderr, exit code. No logic.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
