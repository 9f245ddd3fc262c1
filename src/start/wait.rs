//! What a server waited for before its own start began.

use std::{fmt, num::NonZeroUsize, time::Duration};

use serde::{Serialize, Serializer};

use crate::{config::StartJobs, tool::ServerName};

/// What a server waits for before it is started.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitReason {
    /// A start slot: so many others are being started.
    Slot {
        /// How slots are counted.
        jobs: StartJobs,
        /// How many there are.
        slots: NonZeroUsize,
    },
    /// Another server, whose package runner installs the same package.
    Install {
        /// The package runner and the package.
        package: String,
        /// The other server.
        by: ServerName,
    },
}

/// One wait before a start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Wait {
    /// For what.
    pub reason: WaitReason,
    /// How long.
    #[serde(rename = "ms", serialize_with = "as_millis")]
    pub took: Duration,
}

fn as_millis<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(crate::task::millis(*time))
}

impl fmt::Display for WaitReason {
    /// `slot: cores=2`, `slot: jobs=3`, `install of npx some-package by server-name`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slot { jobs: StartJobs::Cores, slots } => write!(f, "slot: cores={slots}"),
            Self::Slot { slots, .. } => write!(f, "slot: jobs={slots}"),
            Self::Install { package, by } => write!(f, "install of {package} by {by}"),
        }
    }
}

impl Serialize for WaitReason {
    /// As it is shown.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
