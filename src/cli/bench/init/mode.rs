//! The modes of a start that are compared.

use std::fmt;

use clap::ValueEnum;
use toolcrib::{Config, Endpoint, ServerConfig, config::TemplatePackages};

/// The modes, in the order in which they are measured and shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(super) enum Mode {
    /// One server after the other.
    Sequential,
    /// A bare program that only spawns, does the handshake and lists tools, all at once. Beside a bare mode, servers
    /// without a process are left out of every mode.
    Bare,
    /// Like bare, but only as many at a time as there are cores.
    BareCores,
    /// Starts all at once.
    AtOnce,
    /// Starts as configured.
    Parallel,
    /// Starts as configured, but with no server forked from a template.
    Ordinary,
    /// Starts as configured, without the history of earlier starts.
    Cold,
    /// Starts as configured, after an unmeasured start that filled the caches.
    Warm,
    /// Time until all tools are known from the cache, with no server started; then until a first call is answered.
    Lazy,
    /// Time until a task has its own servers and their tools, with a spare of each server ready.
    Spare,
}

impl Mode {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Sequential => "sequential",
            Self::Bare => "bare",
            Self::BareCores => "bare-cores",
            Self::AtOnce => "at-once",
            Self::Parallel => "parallel",
            Self::Ordinary => "ordinary",
            Self::Cold => "cold",
            Self::Warm => "warm",
            Self::Lazy => "lazy",
            Self::Spare => "spare",
        }
    }

    /// Explanation of what is measured, where the name alone would promise more or less.
    pub(super) fn note(self, caches_dropped: bool) -> Option<&'static str> {
        match self {
            Self::Ordinary => Some("without templates: each Python server imports its packages itself"),
            Self::Cold if caches_dropped => Some("empty page cache, and an empty cache folder each time"),
            Self::Cold => Some(
                "empty cache folder each time: no history, direct launch, catalog, templates; page cache warm",
            ),
            Self::Warm => Some("a cache folder of its own, filled by one unmeasured start"),
            Self::Lazy => Some("wall: until all tools are known, required servers put off as well"),
            Self::Spare => Some("wall: from the beginning of a task until it has its servers and all tools"),
            _ => None,
        }
    }

    /// Whether servers are started in the time that is measured.
    pub(super) fn starts(self) -> bool {
        !matches!(self, Self::Lazy | Self::Spare)
    }

    pub(super) fn is_bare(self) -> bool {
        matches!(self, Self::Bare | Self::BareCores)
    }

    /// Whether it uses caches of earlier starts.
    pub(super) fn has_caches(self) -> bool {
        self != Self::Cold
    }

    /// Whether it uses caches that one unmeasured start has filled.
    pub(super) fn is_taught(self) -> bool {
        matches!(self, Self::Warm | Self::Lazy)
    }
}

/// Has all servers of `config` started the ordinary way.
pub(super) fn without_templates(config: &mut Config) {
    for entry in config.servers.values_mut() {
        if let Ok(ServerConfig { endpoint: Endpoint::Stdio(command), .. }) = &mut entry.server {
            command.template = TemplatePackages::Never;
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
