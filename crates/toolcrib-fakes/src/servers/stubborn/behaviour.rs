//! The behaviours of MCP servers that obey the protocol but resist their end: the rows of `toolcrib-lab torture`.

use clap::ValueEnum;

/// How a server behaves when its client is gone, and which helper processes it starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Behaviour {
    /// Leaves at the end of its input.
    Polite,
    /// Stays after the end of its input; SIGTERM ends it.
    IgnoresEof,
    /// Stays after the end of its input and after SIGTERM, SIGINT and SIGHUP.
    IgnoresEofAndTerm,
    /// Ignores the end of its input, and is the child of `sh -c`.
    BehindSh,
    /// Leaves at the end of its input; its helper in the same process group stays.
    Helper,
    /// The same, with a helper that is deaf to SIGTERM, SIGINT and SIGHUP.
    DeafHelper,
    /// The same, with the helper in a session of its own.
    SetsidHelper,
    /// The same, with a helper that was forked twice: its parent is gone.
    Daemon,
    /// The same, with a helper that keeps the server's stdout open.
    HelperHoldsStdout,
    /// A deaf loop in its own session keeps 400 sleepers alive, a group each.
    ForkStorm,
    /// Every few ms a process starts a copy of itself in a new session and exits.
    SessionHopper,
    /// Behind `sh -c`, deaf to EOF and SIGTERM, with a deaf helper and a daemon.
    Everything,
}

impl Behaviour {
    /// All of them.
    pub const ALL: &'static [Self] = &[
        Self::Polite,
        Self::IgnoresEof,
        Self::IgnoresEofAndTerm,
        Self::BehindSh,
        Self::Helper,
        Self::DeafHelper,
        Self::SetsidHelper,
        Self::Daemon,
        Self::HelperHoldsStdout,
        Self::ForkStorm,
        Self::SessionHopper,
        Self::Everything,
    ];

    /// The name on the command line and in the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Polite => "polite",
            Self::IgnoresEof => "ignores-eof",
            Self::IgnoresEofAndTerm => "ignores-eof-and-term",
            Self::BehindSh => "behind-sh",
            Self::Helper => "helper",
            Self::DeafHelper => "deaf-helper",
            Self::SetsidHelper => "setsid-helper",
            Self::Daemon => "daemon",
            Self::HelperHoldsStdout => "helper-holds-stdout",
            Self::ForkStorm => "fork-storm",
            Self::SessionHopper => "session-hopper",
            Self::Everything => "everything",
        }
    }

    /// Whether the server and all that it starts stay in the process group that the client made for it.
    pub fn stays_in_group(self) -> bool {
        !matches!(
            self,
            Self::SetsidHelper | Self::Daemon | Self::ForkStorm | Self::SessionHopper | Self::Everything
        )
    }

    /// Whether a shell stands between the client and the server.
    pub fn wrapped(self) -> bool {
        matches!(self, Self::BehindSh | Self::Everything)
    }

    /// Whether the server goes on after the end of its input.
    pub fn ignores_eof(self) -> bool {
        matches!(self, Self::IgnoresEof | Self::IgnoresEofAndTerm | Self::BehindSh | Self::Everything)
    }

    /// Whether the server and all that it starts block the signals that ask a process to end.
    pub fn ignores_term(self) -> bool {
        matches!(self, Self::IgnoresEofAndTerm | Self::Everything)
    }
}
