//! How many servers may start at once.

use std::{fmt, num::NonZeroUsize, str::FromStr};

use serde::{Serialize, Serializer};

/// How many servers may start at once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum StartJobs {
    /// One server for each core, counting only servers that use CPU time: a server that only waits, for a network, a disk or a
    /// clock, lets the next one start. Servers without a process never wait.
    #[default]
    Cores,
    /// This many, also if they only wait.
    AtMost(NonZeroUsize),
    /// All of them.
    Unlimited,
}

impl StartJobs {
    /// The number of slots. `None`: there is no limit.
    pub fn slots(self) -> Option<NonZeroUsize> {
        match self {
            Self::Cores => Some(std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)),
            Self::AtMost(jobs) => Some(jobs),
            Self::Unlimited => None,
        }
    }
}

impl From<NonZeroUsize> for StartJobs {
    fn from(jobs: NonZeroUsize) -> Self {
        Self::AtMost(jobs)
    }
}

impl FromStr for StartJobs {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "cores" => Ok(Self::Cores),
            "unlimited" => Ok(Self::Unlimited),
            number => match number.parse() {
                Ok(jobs) => Ok(Self::AtMost(jobs)),
                Err(_) => Err("expected a whole number from 1, \"cores\" or \"unlimited\"".to_owned()),
            },
        }
    }
}

impl fmt::Display for StartJobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cores => f.write_str("cores"),
            Self::AtMost(jobs) => jobs.fmt(f),
            Self::Unlimited => f.write_str("unlimited"),
        }
    }
}

impl Serialize for StartJobs {
    /// A number, `"cores"` or `"unlimited"`: as in `servers.toml`.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::AtMost(jobs) => jobs.serialize(serializer),
            word => serializer.collect_str(word),
        }
    }
}
