//! The rows of the torture table: servers that are hard to end.

use clap::{ValueEnum, builder::PossibleValue};
use toolcrib_fakes::servers::stubborn::Behaviour;

/// A server, and what is done to the process that it is forked from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Row {
    /// A program of its own.
    Program(Behaviour),
    /// A Python server that is forked from a template.
    Forked(Forked),
}

/// Python servers that are forked from a template.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Forked {
    /// Forked from a template: stays after the end of its input and after SIGTERM, SIGINT and SIGHUP.
    #[value(name = "forked-deaf")]
    Deaf,
    /// The same start; its helper, a fork of it, is deaf and in a session of its own.
    #[value(name = "forked-setsid-helper")]
    SetsidHelper,
    /// The same start; a helper that was forked twice, without any of its files and variables.
    #[value(name = "forked-daemon")]
    Daemon,
    /// The same start; processes of multiprocessing, by `spawn` and by `forkserver`.
    #[value(name = "forked-processes")]
    Processes,
    /// The same start; deaf, with a loop of asyncio, a process of it, TLS, and threads that do not end.
    #[value(name = "forked-threads")]
    Threads,
    /// The same start; a deaf copy of itself, by its command line in /proc.
    #[value(name = "forked-copy")]
    Copy,
    /// The same start; deaf, and leaves its process group and session.
    #[value(name = "forked-session")]
    Session,
    /// Deaf; its template is killed while it forks another server.
    TemplateKilled,
    /// Deaf; its template is stopped while it forks another server.
    TemplateStopped,
    /// Deaf; its template hangs in an import, so that it is not forked.
    TemplateHangs,
    /// Deaf; an import has started a thread.
    TemplateThread,
    /// Deaf; an import holds a descriptor.
    TemplateDescriptor,
    /// Deaf; an import has read all variables.
    TemplateEnvironment,
}

impl Row {
    pub(super) fn all() -> Vec<Self> {
        let programs = Behaviour::ALL.iter().copied().map(Self::Program);
        programs.chain(Forked::ALL.iter().copied().map(Self::Forked)).collect()
    }

    /// The name on the command line and in the table.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Program(behaviour) => behaviour.name(),
            Self::Forked(forked) => forked.name(),
        }
    }

    pub(super) fn help() -> Vec<Option<PossibleValue>> {
        let programs = Behaviour::ALL.iter().map(ValueEnum::to_possible_value);
        programs.chain(Forked::ALL.iter().map(ValueEnum::to_possible_value)).collect()
    }

    /// Whether the server and all that it starts stay in the process group that the client made for it.
    pub(super) fn stays_in_group(self) -> bool {
        matches!(self, Self::Program(behaviour) if behaviour.stays_in_group())
    }

    pub(super) fn is_forked(self) -> bool {
        matches!(self, Self::Forked(_))
    }
}

impl Forked {
    pub(super) const ALL: &'static [Self] = &[
        Self::Deaf,
        Self::SetsidHelper,
        Self::Daemon,
        Self::Processes,
        Self::Threads,
        Self::Copy,
        Self::Session,
        Self::TemplateKilled,
        Self::TemplateStopped,
        Self::TemplateHangs,
        Self::TemplateThread,
        Self::TemplateDescriptor,
        Self::TemplateEnvironment,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Deaf => "forked-deaf",
            Self::SetsidHelper => "forked-setsid-helper",
            Self::Daemon => "forked-daemon",
            Self::Processes => "forked-processes",
            Self::Threads => "forked-threads",
            Self::Copy => "forked-copy",
            Self::Session => "forked-session",
            Self::TemplateKilled => "template-killed",
            Self::TemplateStopped => "template-stopped",
            Self::TemplateHangs => "template-hangs",
            Self::TemplateThread => "template-thread",
            Self::TemplateDescriptor => "template-descriptor",
            Self::TemplateEnvironment => "template-environment",
        }
    }

    /// The trait of the server, a function of `torture_servers.py`.
    pub(super) fn server_trait(self) -> &'static str {
        match self {
            Self::SetsidHelper => "setsid_helper",
            Self::Daemon => "daemon",
            Self::Processes => "processes",
            Self::Threads => "threads",
            Self::Copy => "copy",
            Self::Session => "session",
            _ => "deaf",
        }
    }

    /// The module that it imports besides: a name in [`super::python`].
    pub(super) fn import(self) -> Option<&'static str> {
        match self {
            Self::TemplateHangs => Some("torture_hang"),
            Self::TemplateThread => Some("torture_thread"),
            Self::TemplateDescriptor => Some("torture_descriptor"),
            Self::TemplateEnvironment => Some("torture_environment"),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_forked_rows_are_those_of_the_command_line() {
        for forked in Forked::ALL {
            assert_eq!(forked.to_possible_value().unwrap().get_name(), forked.name());
        }
        assert_eq!(Forked::ALL.len(), Forked::value_variants().len());
    }
}
