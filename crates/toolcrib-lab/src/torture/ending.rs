//! The columns of the torture table: the ways in which the owner of a server ends.

use clap::ValueEnum;
use rustix::process::Signal;

/// The fate of the owner after the server has answered a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(super) enum End {
    /// The session is let go without a word; the program lives on.
    Drop,
    /// The session is closed in order and awaited; the program lives on.
    Cancel,
    /// `main` returns with the session open.
    Return,
    /// The handle is leaked, so that no destructor runs, and `main` returns.
    Leak,
    /// The event loop is shut down first, then the session is let go.
    RuntimeFirst,
    /// A panic, or an exception that is not caught.
    Panic,
    /// `exit(0)` in the middle of the program: no destructor of the stack runs.
    Exit,
    /// `abort()`: nothing of the program runs any more.
    Abort,
    /// SIGTERM from outside.
    Sigterm,
    /// SIGINT from outside, to the program alone.
    Sigint,
    /// SIGKILL from outside.
    Sigkill,
}

impl End {
    pub(super) const ALL: &'static [Self] = &[
        Self::Drop,
        Self::Cancel,
        Self::Return,
        Self::Leak,
        Self::RuntimeFirst,
        Self::Panic,
        Self::Exit,
        Self::Abort,
        Self::Sigterm,
        Self::Sigint,
        Self::Sigkill,
    ];

    /// The head of its column.
    pub(super) fn head(self) -> &'static str {
        match self {
            Self::RuntimeFirst => "rt1st",
            Self::Sigterm => "TERM",
            Self::Sigint => "INT",
            Self::Sigkill => "KILL",
            _ => self.name(),
        }
    }

    /// The name on the command line.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Drop => "drop",
            Self::Cancel => "cancel",
            Self::Return => "return",
            Self::Leak => "leak",
            Self::RuntimeFirst => "runtime-first",
            Self::Panic => "panic",
            Self::Exit => "exit",
            Self::Abort => "abort",
            Self::Sigterm => "sigterm",
            Self::Sigint => "sigint",
            Self::Sigkill => "sigkill",
        }
    }

    /// Whether the destructor of the manager runs.
    pub(super) fn runs_destructors(self) -> bool {
        matches!(self, Self::Drop | Self::Cancel | Self::Return | Self::RuntimeFirst | Self::Panic)
    }

    /// The signal that ends the program from outside; none when it ends itself.
    pub(super) fn signal(self) -> Option<Signal> {
        match self {
            Self::Sigterm => Some(Signal::TERM),
            Self::Sigint => Some(Signal::INT),
            Self::Sigkill => Some(Signal::KILL),
            _ => None,
        }
    }
}
